"""How much one page of a list may look at and hold, whatever the rows are like.

Rows are found without their params and values (*lean*), and those are fetched only for rows that
are shown, until their bytes reach the bound. So a page may be short, even empty, and still have a
cursor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from layby.core.model import EMPTY, Promise, Task
from layby.core.queue import Ready
from layby.errors import ReadRefused

Pair = tuple[Promise, Task | None]
R = TypeVar("R")
T = TypeVar("T")
Weigh = Callable[[Sequence[str]], Mapping[str, int]]
"""What is stored under these ids, in bytes, where that is much."""

PAGE_BYTES: Final = 2**20
"""A page ends with the row that reaches this."""
LOOKED_AT: Final = 5_000
"""Rows that one page looks at, at most: a rare match in a large store comes in another one."""
UNWEIGHED: Final = 4
"""So many rows may be loaded together, whatever they weigh."""
LIGHT: Final = 2**14
"""What a promise may weigh, param and value together, before anybody has to count it."""
FIRST: Final = 16
CHUNK: Final = 64
"""Rows that are read at a time, at most: a thread that decodes them lets others run in between."""

_encode = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """What a list shows of its promises, besides all that is short."""

    param: bool = False
    value: bool = False


PARAMS: Final = Shown(param=True)
VALUES: Final = Shown(value=True)
WHOLE: Final = Shown(param=True, value=True)


class Fill(Protocol):
    def __call__(self, rows: Sequence[Pair], shown: Shown) -> list[Pair]:
        """The first of these rows, with what is shown of them; as many as a page may hold."""
        ...


class Room:
    """How much a read of everything may still hold."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ReadRefused(f"It holds more than {self._most >> 20} MB: read it page by page")


def page(
    rows: Iterable[R],
    limit: int,
    show: Callable[[list[R]], Iterable[T]],
    key_of: Callable[[R], str],
    key_of_shown: Callable[[T], str],
) -> tuple[list[T], str | None]:
    """What is shown of these rows until the page is full, and where to continue if there is more.

    `show` is given a few rows at a time, and what it makes of them is taken one by one.
    """
    rows, found, size, cursor = iter(rows), list[T](), 0, None
    for portion in portions(limit):
        some = list(islice(rows, portion))
        for each in show(some):
            if len(found) == limit:
                return found, key_of_shown(found[-1])
            found.append(each)
            size += weight(each)
            if size >= PAGE_BYTES:
                return found, key_of_shown(each)
        if len(some) < portion:
            return found, None
        cursor = key_of(some[-1])
    return found, cursor


def portions(limit: int) -> Iterator[int]:
    """How many rows to look at next: few at first, since they may be enough, or large."""
    portion, left = min(limit + 1, FIRST), LOOKED_AT
    while left > 0:
        yield (portion := min(portion, left))
        left -= portion
        portion = min(2 * portion, CHUNK)


def filled(fill: Fill, rows: Sequence[Pair], shown: Shown) -> Iterator[Pair]:
    """All of them, with what is shown; not fetched before it is needed."""
    while rows:
        some = fill(rows, shown)
        yield from some
        rows = rows[len(some) :]


def light_enough(ids: Sequence[str], weigh: Weigh) -> Sequence[str]:
    """The first of these ids, as many as one transaction loads together: what rows belong to them,
    and how many, was chosen by others. A few are not worth weighing.
    """
    if len(ids) <= UNWEIGHED:
        return ids
    heavy = weigh(ids)
    return ids[: fitting(heavy.get(each, 0) for each in ids)]


def shorten(ready: Ready, weigh: Weigh) -> None:
    """Tasks are handed out with their params, so each queue ends with the one that brings it to the
    bound, however many slots are free. Whoever finds the end of one asks again.
    """
    queues = (ready.nodes, ready.roots, ready.oldest)
    ids = {task_id for queue in queues for _, _, task_id in queue.entries}
    heavy: Mapping[str, int] = weigh(sorted(ids)) if len(ids) > UNWEIGHED else {}
    for queue in queues if heavy else ():
        queue.shorten(fitting(heavy.get(task_id, 0) for _, _, task_id in queue.entries))


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
    average = len(_encode(rows)) // max(len(rows), 1)
    return max(1, min(CHUNK, 2 * len(rows), PAGE_BYTES // max(average, 1)))


def weight(row: object) -> int:
    """Its bytes, roughly as an answer shows them."""
    if not isinstance(row, tuple):
        return len(_encode(row))
    pair = cast("Pair", row)
    return len(_encode(lean(pair))) + size_of(pair[0].param) + size_of(pair[0].value)


def size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def lean(row: Pair) -> Pair:
    promise, task = row
    return replace(promise, param=EMPTY, value=EMPTY), task


def only_compared(promise: Promise, compared: Mapping[str, str]) -> Promise:
    """Without its value; with its param if that is one of these, and else with none at all. Each of
    these is the same as itself: so there is one copy of it, however many promises have it.
    """
    return replace(promise, param=compared.get(promise.param, ""), value=EMPTY)


def id_of(row: Pair) -> str:
    return row[0].id
