"""The ready tasks that a batch may hand out, as far as they were loaded."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from layby.core.codes import fits
from layby.core.model import Codes, HeldKey, Millis, Task

Entry = tuple[Millis, str]
"""Since when a task is ready, and its id."""

TakeKey = tuple[str, tuple[str, ...], str, Codes]
"""Group, names, prefix and codes: takes for the same tasks share one look at the queue."""

Offer = tuple[HeldKey, TakeKey, int]
"""A take that waits in the engine: its holder, what it asks for and its number of free slots."""


def is_for(key: TakeKey, task: Task) -> bool:
    """Whether takes of this key may be handed the task when it is ready.

    The stores find the same tasks by their indexes: a test compares them with this.
    """
    group, names, prefix, codes = key
    is_known = task.group == group and task.name in names
    return is_known and task.id.startswith(prefix) and fits(task.refused, codes)


def is_early(ready_at: Millis, before: Millis | None) -> bool:
    """Whether a take that asks for what was ready `before` may have it in a free slot."""
    return before is None or ready_at < before


class Queue:
    """Ready tasks for takes that ask for the same, oldest first; no more than can be handed out.

    An entry goes stale when its task moves on: readers must compare it with the row.
    """

    __slots__ = ("end", "entries", "is_contended")

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        limit: int | None = None,
        *,
        is_contended: bool = False,
    ) -> None:
        """`limit`: how many were asked for; if that many were found, there may be more."""
        self.is_contended = is_contended
        """Others are missing, because another process is about to change them."""
        self.entries: list[Entry] = list(entries)
        is_cut = limit is not None and len(self.entries) >= limit
        self.end: Entry | None = self.entries[-1] if is_cut and self.entries else None
        """The last one that was loaded; what comes after it is not known. None: all are here."""

    @property
    def is_cut(self) -> bool:
        return self.end is not None

    def add(self, entry: Entry) -> None:
        """A task that became ready within this batch."""
        at = bisect_left(self.entries, entry)
        if self.entries[at : at + 1] != [entry]:
            self.entries.insert(at, entry)

    def drop_first(self, count: int) -> None:
        del self.entries[:count]

    def merged(self, own: Sequence[Entry]) -> Iterator[Entry]:
        """In order of time, as far as the queue was loaded; among equals, `own` come first."""
        at = 0
        for entry in self.entries:
            if self.end is not None and entry > self.end:
                break
            while at < len(own) and own[at][0] <= entry[0]:
                yield own[at]
                at += 1
            yield entry
        for entry in own[at:]:
            if self.end is None or entry[0] <= self.end[0]:
                yield entry


class Ready(tuple[Queue, Queue, Queue]):
    """The nodes and the roots that takes of one key may be handed.

    Nodes that other code has refused are apart: few of them are handed out at a time, and they must
    not stand in front of the others.
    """

    __slots__ = ()

    @property
    def nodes(self) -> Queue:
        return self[0]

    @property
    def roots(self) -> Queue:
        return self[1]

    @property
    def refused(self) -> Queue:
        return self[2]

    def queue_of(self, task: Task) -> Queue:
        if task.is_root:
            return self.roots
        return self.nodes if task.refused is None else self.refused
