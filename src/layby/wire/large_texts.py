"""Answers with large texts in them, in pieces: a text of megabytes is never copied as a whole.

Whoever copies 4 MB at once keeps everybody else waiting meanwhile. So while an answer is encoded a
mark stands where a large text goes, and the text itself is sent piece by piece later.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from msgspec import Raw

Encoded = bytes | tuple[bytes | str, ...]
"""An answer: whole, or in pieces, of which texts have yet to become bytes."""

LARGE: Final = 2**16
_MARK: Final = b"\xff"
"""A byte that UTF-8 does not have."""
_aside: ContextVar[list[str] | None] = ContextVar("texts set aside", default=None)


def raw(json: str) -> Raw:
    """JSON that is part of an answer; a mark for it, if large texts are set aside now."""
    texts = _aside.get() if len(json) > LARGE else None
    if texts is None:
        return Raw(json)
    texts.append(json)
    return Raw(b"%b%d%b" % (_MARK, len(texts) - 1, _MARK))


@contextmanager
def set_aside() -> Generator[list[str]]:
    """The texts for which there are marks in what is encoded meanwhile."""
    texts: list[str] = []
    before = _aside.set(texts)
    try:
        yield texts
    finally:
        _aside.reset(before)


def with_texts(encoded: bytes, texts: Sequence[str]) -> Encoded:
    """Its pieces, with texts where their marks were."""
    if not texts:
        return encoded
    pieces = encoded.split(_MARK)
    return tuple(texts[int(each)] if n % 2 else each for n, each in enumerate(pieces))


def joined(separator: bytes, answers: Sequence[Encoded]) -> Encoded:
    if all(isinstance(each, bytes) for each in answers):
        return separator.join(each for each in answers if isinstance(each, bytes))
    pieces = list[bytes | str]()
    for each in answers:
        pieces += [separator] if pieces else []
        pieces += [each] if isinstance(each, bytes) else each
    return tuple(pieces)


def size_of(encoded: Encoded) -> int:
    """Its bytes; of texts that are not ASCII, the bytes they take in memory."""
    return len(encoded) if isinstance(encoded, bytes) else sum(map(_size, encoded))


def exact_size_of(encoded: Encoded) -> int | None:
    """Its bytes, if they can be known without making them."""
    if isinstance(encoded, bytes):
        return len(encoded)
    is_known = all(isinstance(each, bytes) or each.isascii() for each in encoded)
    return sum(map(len, encoded)) if is_known else None


def pieces_of(encoded: Encoded, most: int) -> Iterator[bytes]:
    """At most so many bytes or characters each; made as they are asked for."""
    for each in (encoded,) if isinstance(encoded, bytes) else encoded:
        for begin in range(0, len(each), most):
            piece = each[begin : begin + most]
            yield piece if isinstance(piece, bytes) else piece.encode()


def _size(piece: bytes | str) -> int:
    is_plain = isinstance(piece, bytes) or piece.isascii()
    return len(piece) if is_plain else piece.__sizeof__()
