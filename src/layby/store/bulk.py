"""Statements for many rows at once."""

from collections.abc import Callable, Sequence
from functools import cache

from msgspec import Struct


class Bulk(Struct, frozen=True):
    """A statement for many rows at once, and which cells a row has; none: each is a text."""

    text: str
    names: tuple[str, ...] = ()


class Wide:
    """A statement for promises, whose rows are wide: it may depend on how many rows there are, and
    on how many cells each has.
    """

    def __init__(self, names: Sequence[str], make: Callable[[Sequence[str], int], str]) -> None:
        self.names = tuple(names)
        self._make = make
        self.text = cache(self._text)

    def _text(self, width: int, count: int) -> str:
        return self._make(self.names[:width], count)
