"""Requests for rows that somebody keeps locked: they are tried again, and others do not wait.

A person may have a transaction open, or a process may have been stopped within one. What a caller
asked after such a request stays behind it, so that its order is kept.
"""

from collections import deque
from collections.abc import Hashable, Iterator

from msgspec import Struct, field

from layby.engine.items import Item


class Line(Struct):
    """Of one caller; the first is the one that is tried."""

    items: deque[Item] = field(default_factory=deque)
    tries: int = 1


class HeldUpItems:
    def __init__(self) -> None:
        self._lines: dict[Hashable, Line] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def all(self) -> list[Item]:
        return [item for line in self._lines.values() for item in line.items]

    def has_caller_of(self, item: Item) -> bool:
        return item.caller in self._lines

    def add(self, item: Item) -> None:
        self._lines.setdefault(item.caller, Line()).items.append(item)

    def next(self) -> Item:
        """Callers take turns."""
        caller = next(iter(self._lines))
        line = self._lines[caller] = self._lines.pop(caller)
        return line.items[0]

    def failed(self, item: Item) -> int:
        """How often it has been tried by now."""
        line = self._lines[item.caller]
        line.tries += 1
        return line.tries

    def behind_failure(self, item: Item) -> Iterator[Item]:
        """Of the line of this item, which was answered: those that are not to be tried any more."""
        line = self._lines.get(item.caller)
        while line is not None and line.items and line.items[0].is_behind_failure:
            yield line.items[0]
            self.ended(line.items[0])

    def ended(self, item: Item) -> None:
        """It was answered: it is the turn of what is behind it."""
        line = self._lines[item.caller]
        line.items.popleft()
        line.tries = 0
        if not line.items:
            del self._lines[item.caller]
