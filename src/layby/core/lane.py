"""The tasks that wait behind the gate of one limit and that the same workers may take, by their
group and name: as far as they were loaded.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from typing import Final

from layby.core.model import Millis

Waiter = tuple[Millis, str]
"""The place of a task in the lane, and its id."""
BEFORE_ALL: Final[Waiter] = (-1, "")


class Lane:
    """Oldest first. An entry goes stale when its task moves on: readers compare it with the row."""

    __slots__ = ("end", "entries", "is_contended")

    def __init__(
        self,
        entries: Iterable[Waiter] = (),
        most: int | None = None,
        *,
        is_contended: bool = False,
    ) -> None:
        """`most`: how many were asked for; if that many were found, there may be more."""
        self.entries: list[Waiter] = list(entries)
        is_cut = is_contended or (most is not None and len(self.entries) >= most)
        last = self.entries[-1] if self.entries else BEFORE_ALL
        self.end: Waiter | None = last if is_cut else None
        """The last one that was loaded; what comes after it is not known. None: all are here."""
        self.is_contended = is_contended
        """The next ones are about to be changed by another process: they come first, later."""

    def add(self, entry: Waiter) -> None:
        at = bisect_left(self.entries, entry)
        if self.entries[at : at + 1] != [entry]:
            self.entries.insert(at, entry)

    def discard(self, entry: Waiter) -> None:
        at = bisect_left(self.entries, entry)
        if self.entries[at : at + 1] == [entry]:
            del self.entries[at]

    def up_to(self, others: Collection[str]) -> "Lane":
        """Without the first of those that others are about to change, and what comes after it."""
        for at, (_, task_id) in enumerate(self.entries):
            if task_id in others:
                return Lane(self.entries[:at], is_contended=True)
        return self

    @property
    def known(self) -> list[Waiter]:
        """Those before which nobody else can be."""
        if self.end is None:
            return self.entries
        return self.entries[: bisect_right(self.entries, self.end)]
