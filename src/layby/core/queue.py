"""The ready tasks that a batch may hand out, as far as they were loaded."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from layby.core.codes import fits
from layby.core.model import Codes, HeldKey, Millis, Task

Entry = tuple[int, Millis, str]
"""The negative priority of a task, since when it is ready, and its id: in the order of turns."""

Dated = tuple[Millis, str]
"""The time of something, and its id."""

Turn = tuple[int, Millis]
"""The order in which tasks begin: of higher priority first, then the oldest."""


class TaskPlace(Struct, frozen=True, rename="camel"):
    """Where a ready task stands, and how many slots of a worker it needs at once."""

    ready_at: Millis
    priority: int = 0
    slots: int = 1

    @property
    def turn(self) -> Turn:
        return (-self.priority, self.ready_at)


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


def place_of(task: Task) -> TaskPlace:
    return TaskPlace(task.ready_at or 0, task.priority, task.slots)


def entry_of(task: Task) -> Entry:
    return (-task.priority, task.ready_at or 0, task.id)


def by_age(entry: Entry) -> Entry:
    """Its entry in a queue in which priorities do not matter."""
    return (0, entry[1], entry[2])


def is_early(turn: Turn, before: Turn | None) -> bool:
    """Whether a take that asks for what comes `before` a turn may have it in a free slot."""
    return before is None or turn < before


class Queue:
    """Ready tasks for takes that ask for the same, in order; no more than can be handed out.

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

    def replace(self, entries: Iterable[Entry], end: Entry | None) -> None:
        self.entries, self.end = sorted(entries), end

    def shorten(self, count: int) -> None:
        """As if no more than the first `count` had been asked for."""
        if count < len(self.entries):
            self.replace(self.entries[:count], self.entries[count - 1])

    def drop_first(self, count: int) -> None:
        del self.entries[:count]

    def merged(self, own: Sequence[Entry]) -> Iterator[Entry]:
        """In order, as far as the queue was loaded; among equals, `own` come first."""
        at = 0
        for entry in self.entries:
            if self.end is not None and entry > self.end:
                break
            while at < len(own) and own[at][:2] <= entry[:2]:
                yield own[at]
                at += 1
            yield entry
        for entry in own[at:]:
            if self.end is None or entry[:2] <= self.end[:2]:
                yield entry


def queues_of(by_priority: Mapping[int, Sequence[Dated]], nodes: int) -> tuple[Queue, Queue]:
    """The first ready nodes in the order of turns, and the oldest of them all.

    `by_priority`: of each, the oldest `nodes`, in order. If no node has a priority, the second
    queue is empty: the first says the same. Both are as long as what may leave them in a batch, and
    one more: so that the oldest one left is known whatever was handed out.
    """
    entries = sorted(
        (-priority, ready_at, task_id)
        for priority, found in by_priority.items()
        for ready_at, task_id in found
    )
    in_order = Queue(entries[:nodes], nodes)
    if not entries or entries[0][0] == entries[-1][0] == 0:
        return in_order, Queue()
    return in_order, Queue(sorted(map(by_age, entries))[:nodes], nodes)


class Ready(tuple[Queue, Queue, Queue, Queue]):
    """The nodes and the roots that takes of one key may be handed.

    Nodes that other code has refused are apart: few of them are handed out at a time, and they must
    not stand in front of the others. `oldest` has the oldest of `nodes` once more, by age alone; it
    is empty while no node has a priority, since then `nodes` are in that order.
    """

    __slots__ = ()

    @classmethod
    def of(cls, nodes: Queue, roots: Queue, refused: Queue, oldest: Queue | None = None) -> "Ready":
        return cls((nodes, roots, refused, Queue() if oldest is None else oldest))

    @property
    def nodes(self) -> Queue:
        return self[0]

    @property
    def roots(self) -> Queue:
        return self[1]

    @property
    def refused(self) -> Queue:
        return self[2]

    @property
    def oldest(self) -> Queue:
        return self[3]

    @property
    def is_mixed(self) -> bool:
        """Whether nodes have priorities, as far as they were loaded."""
        nodes = self.nodes.entries
        return bool(self.oldest.entries or (nodes and (nodes[0][0] or nodes[-1][0])))

    def by_age(self) -> Queue:
        """The nodes by age; if all that were loaded as the oldest are gone, those that are left."""
        if self.oldest.entries:
            return self.oldest
        return Queue(sorted(map(by_age, self.nodes.entries))) if self.is_mixed else self.nodes

    def add(self, task: Task) -> None:
        """A task that became ready within this batch."""
        queue, entry = self.queue_of(task), entry_of(task)
        queue.add(entry)
        if queue is not self.nodes:
            return
        if self.oldest.entries:
            self.oldest.add(by_age(entry))
        elif task.priority:
            end = None if queue.end is None else by_age(queue.end)
            self.oldest.replace(map(by_age, queue.entries), end)

    def queue_of(self, task: Task) -> Queue:
        if task.is_root:
            return self.roots
        return self.nodes if task.refused is None else self.refused
