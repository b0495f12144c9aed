"""Links carry a signature: nothing but what we signed is accepted."""

from hypothesis import given
from hypothesis import strategies as st

from layby.server.hook_tokens import MAX_TOKEN_CHARS, HookToken, sign, verify

KEY = b"k" * 32


@given(st.text(min_size=1, max_size=200), st.integers(0, 2**53 - 1))
def test_what_is_signed_comes_back(promise_id: str, at: int) -> None:
    """Whatever the id is made of; and as text that fits into a URL."""
    text = sign(HookToken(promise_id, at), KEY)
    assert text.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert text.isascii()
    assert verify(text, KEY) == HookToken(promise_id, at)
    assert verify(text, b"another key of the same sort....") is None


@given(st.data())
def test_no_character_can_be_changed(data: st.DataObject) -> None:
    """One signature has one text."""
    text = sign(HookToken("run/a:t.c.promise.x", 1_800_000_000_000), KEY)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_.=%"))
    changed = text[:place] + other + text[place + 1 :]
    assert changed == text or verify(changed, KEY) is None


def test_what_is_nothing_like_it() -> None:
    """Never an exception."""
    good = sign(HookToken("p", 1), KEY)
    for text in (
        "",
        ".",
        "a.b",
        good + "=",
        good + "A",
        "é.é",
        "x" * (MAX_TOKEN_CHARS + 1),
        "A" * 9,
    ):
        assert verify(text, KEY) is None
