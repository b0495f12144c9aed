"""What the memory store looks up other than by id; updates cost only what they change."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import Final, Generic, TypeVar

from layby.core.birth import schedule_of
from layby.core.endings import Stage, stage_of
from layby.core.model import (
    NEVER,
    HeldKey,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Task,
    Wait,
)
from layby.core.queue import Dated
from layby.core.state import State

K = TypeVar("K")
T = TypeVar("T", str, Dated)

COMPACT: Final = 1_000
"""How many entries may leave at the front before the rest is moved up."""


class InOrder(Generic[T]):
    """Each once, smallest first. Most come at the end and leave at the front."""

    __slots__ = ("_entries", "_head")

    def __init__(self) -> None:
        self._entries: list[T] = []
        self._head = 0

    def __iter__(self) -> Iterator[T]:
        return islice(self._entries, self._head, None)

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def add(self, entry: T) -> None:
        at = bisect_left(self._entries, entry, lo=self._head)
        if self._entries[at : at + 1] != [entry]:
            self._entries.insert(at, entry)

    def remove(self, entry: T) -> None:
        at = bisect_left(self._entries, entry, lo=self._head)
        if self._entries[at : at + 1] != [entry]:
            return
        if at > self._head:
            del self._entries[at]
            return
        self._head += 1
        if self._head >= COMPACT and 2 * self._head >= len(self._entries):
            del self._entries[: self._head]
            self._head = 0


def first(index: InOrder[Dated]) -> Millis | None:
    return next((at for at, _ in index), None)


def until(index: InOrder[Dated], now: Millis, limit: int) -> tuple[str, ...]:
    """The first ids that are due."""
    due = takewhile(lambda entry: entry[0] <= now, islice(index, limit))
    return tuple(key for _, key in due)


class Groups(Generic[K]):
    """Ids grouped by what they have in common, in id order."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[K, InOrder[str]] = {}

    def add(self, key: K, member: str) -> None:
        self._ids.setdefault(key, InOrder()).add(member)

    def remove(self, key: K, member: str) -> None:
        ids = self._ids.get(key)
        if ids is not None:
            ids.remove(member)
            if not ids:
                del self._ids[key]

    def of(self, key: K) -> InOrder[str]:
        return self._ids.get(key) or InOrder()


ReadyKey = tuple[str, str | None, bool]
"""Group, name, and whether it is a root."""


class Indexes:
    """Built from a state once, then updated with every change."""

    def __init__(self, state: State) -> None:
        self.ready: defaultdict[ReadyKey, dict[int, InOrder[Dated]]] = defaultdict(dict)
        """And by priority."""
        self.refused: defaultdict[str, dict[str, InOrder[Dated]]] = defaultdict(dict)
        """By group and refusals."""
        self.lanes: defaultdict[str, dict[str, InOrder[Dated]]] = defaultdict(dict)
        """By limit and name: tasks that wait for its permits."""
        self.wakes: InOrder[Dated] = InOrder()
        self.timeouts: InOrder[Dated] = InOrder()
        self.tails: InOrder[Dated] = InOrder()
        self.remains: InOrder[Dated] = InOrder()
        """Tails of roots that were pruned."""
        self.ended: defaultdict[Stage, InOrder[Dated]] = defaultdict(InOrder)
        self.below: Groups[str] = Groups()
        """Ids of a tree, without that of its root."""
        self.held: Groups[HeldKey] = Groups()
        self.leased: Groups[str] = Groups()
        self.branches: Groups[str] = Groups()
        self.scheduled: Groups[str] = Groups()
        """Pending promises that a schedule has made."""
        self.awaiters: Groups[str] = Groups()
        """Who waits for a promise."""
        self.readers: Groups[str] = Groups()
        """Tasks that have read a promise and may read it again."""
        self.awaited: Groups[str] = Groups()
        """What a task waits for, or has read."""
        self.addresses: Groups[str] = Groups()
        """Addresses that listen to a promise."""
        self.heard: Groups[str] = Groups()
        """Promises that an address listens to."""
        self.outbox: dict[str, set[MessageKey]] = {}
        self.told: Counter[str] = Counter()
        """How many messages there are about a promise, without notices to holders."""
        for promise in state.promises.values():
            self.move_promise(None, promise)
            self.move_ending(None, None, promise, state.tasks.get(promise.id))
        for task in state.tasks.values():
            self.move_task(None, task)
        self.add_waits(state.waits.values())
        self.add_listeners(state.listeners)
        for key, message in state.messages.items():
            self.move_message(key, None, message)

    def move_promise(self, before: Promise | None, after: Promise | None) -> None:
        for row, is_new in ((before, False), (after, True)):
            if row is None:
                continue
            if row.is_armed and row.timeout_at < NEVER:
                _place(self.timeouts, (row.timeout_at, row.id), is_new=is_new)
            if row.tail_at is not None:
                tails = self.remains if row.is_expired else self.tails
                _place(tails, (row.tail_at, row.id), is_new=is_new)
            if row.branch is not None:
                _join(self.branches, row.branch, row.id, is_new=is_new)
            if row.is_pending and (schedule := schedule_of(row.tags)) is not None:
                _join(self.scheduled, schedule, row.id, is_new=is_new)

    def move_ending(
        self,
        before: Promise | None,
        task_before: Task | None,
        after: Promise | None,
        task_after: Task | None,
    ) -> None:
        """Where a pass of pruning finds it."""
        for row, task, is_new in ((before, task_before, False), (after, task_after, True)):
            if row is None:
                continue
            if row.root != row.id:
                _join(self.below, row.root, row.id, is_new=is_new)
            if (stage := stage_of(row, task)) is not None:
                _place(self.ended[stage[0]], (stage[1], row.id), is_new=is_new)

    def move_task(self, before: Task | None, after: Task | None) -> None:
        for row, is_new in ((before, False), (after, True)):
            if row is None:
                continue
            if row.group is not None and row.ready_at is not None and row.is_ready:
                _place(self._queue_of(row, row.group), (row.ready_at, row.id), is_new=is_new)
            if row.gate is not None and row.gate_at is not None:
                self._place_in_lane(row.gate, row.lane, (row.gate_at, row.id), is_new=is_new)
            if row.wake_at is not None and row.wake_at < NEVER:
                _place(self.wakes, (row.wake_at, row.id), is_new=is_new)
            if row.pid is not None and row.holder is not None:
                _join(self.held, (row.pid, row.holder), row.id, is_new=is_new)
            elif row.pid is not None and row.state == "acquired":
                _join(self.leased, row.pid, row.id, is_new=is_new)

    def _place_in_lane(self, gate: str, name: str, entry: Dated, *, is_new: bool) -> None:
        """What is empty goes: limits that belong to something else come and go with that."""
        lanes = self.lanes[gate]
        _place(lanes.setdefault(name, InOrder()), entry, is_new=is_new)
        if not lanes[name]:
            del lanes[name]
        if not lanes:
            del self.lanes[gate]

    def _queue_of(self, row: Task, group: str) -> InOrder[Dated]:
        if row.refused is None:
            by_priority = self.ready[group, row.name, row.is_root]
            return by_priority.setdefault(row.priority, InOrder())
        return self.refused[group].setdefault(row.refused, InOrder())

    def add_waits(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            is_in, is_not_in = (
                (self.readers, self.awaiters) if wait.is_read else (self.awaiters, self.readers)
            )
            is_not_in.remove(wait.awaited, wait.awaiter)
            is_in.add(wait.awaited, wait.awaiter)
            self.awaited.add(wait.awaiter, wait.awaited)

    def drop_wait(self, awaited: str, awaiter: str) -> None:
        self.awaiters.remove(awaited, awaiter)
        self.readers.remove(awaited, awaiter)
        self.awaited.remove(awaiter, awaited)

    def add_listeners(self, listeners: Iterable[Listener]) -> None:
        for listener in listeners:
            self.addresses.add(listener.awaited, listener.address)
            self.heard.add(listener.address, listener.awaited)

    def drop_listener(self, listener: Listener) -> None:
        self.addresses.remove(listener.awaited, listener.address)
        self.heard.remove(listener.address, listener.awaited)

    def move_message(self, key: MessageKey, before: Message | None, after: Message | None) -> None:
        """By the address, which is part of the key."""
        by = (after is not None) - (before is not None)
        if by and key[1] != "lost":
            self.told[key[0]] += by
            if not self.told[key[0]]:
                del self.told[key[0]]
        if after is not None:
            self.outbox.setdefault(key[2], set()).add(key)
        elif before is not None:
            self.outbox[key[2]].discard(key)


def _place(index: InOrder[Dated], entry: Dated, *, is_new: bool) -> None:
    if is_new:
        index.add(entry)
    else:
        index.remove(entry)


def _join(index: Groups[K], key: K, member: str, *, is_new: bool) -> None:
    if is_new:
        index.add(key, member)
    else:
        index.remove(key, member)
