"""How much one page of a list may look at and hold, whatever the rows are like.

Rows are found without their params and values (*lean*), and those are fetched only for rows that
are shown, until their bytes reach the bound. So a page may be short, and still have a cursor.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from layby.core.model import EMPTY, Promise, Task
from layby.errors import ReadRefused

Pair = tuple[Promise, Task | None]
T = TypeVar("T")

PAGE_BYTES: Final = 4 * 2**20
"""A page ends with the row that reaches this: once for params and values, once for the rest."""
LOOKED_AT: Final = 5_000
"""Rows that one page looks at, at most: a rare match in a large store comes in another one."""
CHUNK: Final = 200
"""Rows that are read at a time, at most: a thread that decodes them lets others run in between."""

_encode = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """What a list shows of its promises, besides all that is short."""

    param: bool = False
    value: bool = False


LEAN: Final = Shown()
PARAMS: Final = Shown(param=True)
WHOLE: Final = Shown(param=True, value=True)

Fill = Callable[[Sequence[Pair], Shown], list[Pair]]
"""The first of these rows, with what is shown of them; as many as a page may hold."""


class Room:
    """How much a read of everything may still hold."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.left = most

    def take(self, size: int) -> None:
        self.left -= size
        self.check(is_cut=self.left < 0)

    def check(self, *, is_cut: bool) -> None:
        if is_cut:
            raise ReadRefused(f"It holds more than {self._most >> 20} MB: read it page by page")


def gathered(
    rows: Iterable[T], limit: int, key_of: Callable[[T], str], matches: Callable[[T], bool]
) -> tuple[list[T], str | None]:
    """What matches, until the page is full; and the key to continue after, if there may be more."""
    found: list[T] = []
    size = 0
    for looked_at, row in enumerate(rows, 1):
        if matches(row):
            if len(found) == limit or size >= PAGE_BYTES:
                return found, key_of(found[-1])
            found.append(row)
            size += weight(row)
        if looked_at == LOOKED_AT:
            return found, key_of(row)
    return found, None


def filled(
    found: tuple[list[T], str | None],
    fill: Callable[[list[T]], list[T]],
    key_of: Callable[[T], str],
) -> tuple[list[T], str | None]:
    """The page that was gathered, cut where its params and values become too large."""
    rows, cursor = found
    whole = fill(rows)
    return whole, key_of(whole[-1]) if len(whole) < len(rows) else cursor


def fitting(sizes: Iterable[int]) -> int:
    """How many rows of these sizes go into a page: it ends with the one that reaches the bound."""
    count = total = 0
    for size in sizes:
        if total >= PAGE_BYTES:
            break
        total += size
        count += 1
    return count


def next_chunk(rows: Sequence[object]) -> int:
    """How many rows to read next, if they are about as large as these."""
    average = weight(rows) // max(len(rows), 1)
    return max(1, min(CHUNK, PAGE_BYTES // max(average, 1)))


def weight(row: object) -> int:
    """Its bytes, roughly as an answer shows them."""
    return len(_encode(row))


def size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def lean(row: Pair) -> Pair:
    promise, task = row
    return replace(promise, param=EMPTY, value=EMPTY), task


def id_of(row: Pair) -> str:
    return row[0].id
