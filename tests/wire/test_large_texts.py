"""Answers with large texts in pieces: the same bytes as in one, and no piece is large."""

from hypothesis import given
from hypothesis import strategies as st

from layby.core.model import NEVER, Promise
from layby.core.replies import FenceData, PromiseData, PromisePage, Reply, ok
from layby.wire import large_texts
from layby.wire.encode import BatchEncoder, encode, encode_in_pieces
from layby.wire.large_texts import LARGE, exact_size_of, joined, pieces_of, size_of

LETTERS = {"ascii": "x", "latin": "é", "wide": "語", "astral": "🙂"}
MOST = 2**16


def promise(name: str, letter: str, size: int) -> Promise:
    text = '{"data":"' + letter * size + '"}'
    return Promise(id=name, root=name, param=text, tags="{}", timeout_at=NEVER, created_at=0)


def pieces(encoded: large_texts.Encoded) -> list[bytes]:
    return list(pieces_of(encoded, MOST))


@given(st.lists(st.tuples(st.sampled_from("xé語🙂"), st.sampled_from([0, 10, LARGE, 3 * LARGE]))))
def test_pieces_are_the_whole_answer(sorts: list[tuple[str, int]]) -> None:
    rows = [promise(f"p{n}", *each) for n, each in enumerate(sorts)]
    reply = ok(PromisePage(rows, None))
    encoded = encode_in_pieces("promise.search", "c", reply)
    whole = encode("promise.search", "c", reply)
    assert b"".join(pieces(encoded)) == whole
    assert all(len(each) <= 4 * MOST for each in pieces(encoded))
    assert exact_size_of(encoded) in (len(whole), None)
    is_plain = all(letter == "x" or size < LARGE for letter, size in sorts)
    assert (exact_size_of(encoded) is not None) == is_plain


def test_small_answers_are_one_piece() -> None:
    assert isinstance(encode_in_pieces("promise.get", "c", ok(PromiseData(small()))), bytes)


def small() -> Promise:
    return promise("small", "x", 10)


def test_a_text_within_an_answer_within_an_answer() -> None:
    inner = ok(PromiseData(promise("p", "x", 2 * LARGE)))
    reply = ok(FenceData("promise.create", inner, []))
    encoded = encode_in_pieces("task.fence", "c", reply)
    assert not isinstance(encoded, bytes)
    assert b"".join(pieces(encoded)) == encode("task.fence", "c", reply)


def test_answers_of_a_batch_are_joined_without_making_one_of_them() -> None:
    def answer(reply: Reply) -> large_texts.Encoded:
        return encode_in_pieces("promise.get", "c", reply)

    replies = [ok(PromiseData(small())), ok(PromiseData(promise("p", "é", 2 * LARGE)))]
    parts = BatchEncoder("c").piece([answer(each) for each in replies], is_last=True)
    whole = BatchEncoder("c").piece(
        [encode("promise.get", "c", each) for each in replies], is_last=True
    )
    assert isinstance(whole, bytes)
    assert b"".join(pieces(parts)) == whole
    assert size_of(parts) >= len(whole) // 2
    assert joined(b",", []) == b""
