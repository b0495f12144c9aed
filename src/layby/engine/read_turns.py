"""Whose read begins next, when there are more of them than threads. Pure: it knows no threads."""

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from typing import Final

from layby.core.kinds import Query
from layby.engine.items import Item

THREADS: Final = 3
"""Reads at the same time; one fewer of those that look at many rows."""


class ReadTurns:
    """Two lines: quick reads, and those that look at many rows (searches, lists, counts).

    Each caller has one turn, then the next caller. One caller has one long read at a time, and
    all but one thread is all that long reads get: so quick ones are never behind them.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._most_long = max(1, threads - 1)
        self._quick, self._long = ReadLine(), ReadLine()
        self._reading_long: set[Hashable] = set()
        self._is_turn_of_long = False

    def add(self, item: Item) -> None:
        (self._quick if is_quick(item) else self._long).add(item)

    def begin(self) -> Item | None:
        """The read that begins now; None if none may."""
        lines = (self._long, self._quick) if self._is_turn_of_long else (self._quick, self._long)
        for line in lines:
            item = self._next_long() if line is self._long else line.next()
            if item is not None:
                self._is_turn_of_long = line is self._quick
                return item
        return None

    def end(self, item: Item) -> None:
        if not is_quick(item):
            self._reading_long.discard(item.caller)

    def drain(self) -> list[Item]:
        """All that have not begun."""
        return [*self._quick.drain(), *self._long.drain()]

    def _next_long(self) -> Item | None:
        if len(self._reading_long) >= self._most_long:
            return None
        item = self._long.next(self._reading_long)
        if item is not None:
            self._reading_long.add(item.caller)
        return item


class ReadLine:
    """Items by caller; whose turn has passed goes to the end."""

    def __init__(self) -> None:
        self._items: dict[Hashable, deque[Item]] = {}

    def add(self, item: Item) -> None:
        self._items.setdefault(item.caller, deque()).append(item)

    def next(self, busy: Collection[Hashable] = ()) -> Item | None:
        """Of the first caller that is not busy."""
        caller = next((each for each in self._items if each not in busy), None)
        if caller is None:
            return None
        items = self._items.pop(caller)
        item = items.popleft()
        if items:
            self._items[caller] = items
        return item

    def drain(self) -> Iterator[Item]:
        while (item := self.next()) is not None:
            yield item


def is_quick(item: Item) -> bool:
    """A command that only reads looks at one row."""
    return not isinstance(item.request, Query) or item.request.is_quick
