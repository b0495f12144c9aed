"""What a batch may see: the rows its footprint names plus one hop, and nothing more."""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from layby.core.address import inbox_of
from layby.core.model import (
    Holder,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Schedule,
    Task,
    Wait,
    root_of,
)
from layby.core.queue import Ready

TakeKey = tuple[str, tuple[str, ...], str]
"""Group and names: takes that ask for the same tasks share one look at the queue."""

HeldKey = tuple[str, str]

Offer = tuple[HeldKey, TakeKey, int]
"""A take that waits in the engine: whose it is, for what, and how many slots it has free."""


class NoInstant(Struct, frozen=True):
    """What a calendar answers when there is no next instant."""

    why: str


Calendar = Callable[[str, Millis, str], Millis | NoInstant]
"""The next instant of a cron rule strictly after a given one, in a time zone."""


class OutsideFootprint(Exception):
    """A step read a row it did not declare: a bug in the command's footprint."""


Lineage = Literal["off", "dot", "colon"]
"""How ids tell their origin: text before the first '.' or ':'; off: they tell nothing."""


class Settings(Struct, frozen=True):
    """The few numbers and switches the rules depend on; the defaults accept what SDKs send."""

    retry_ms: Millis = 30_000
    max_crashes: int = 5
    hop_limit: int = 1_000
    """Waits handled in the transaction that settles their promise; the rest is armed as a tick."""
    preload_limit: int = 1_000
    roots_per_take: int = 64
    strict_lineage: Lineage = "off"
    """Lineage tags must fit their id, and waits stay within one origin."""
    strict_external: bool = False
    """Nobody may wait for a promise without a target, timer or external tag: it is internal."""

    @classmethod
    def strict(cls) -> "Settings":
        """The specification's answers, with the lineage rule of the newest SDKs."""
        return cls(strict_lineage="colon", strict_external=True)


class Footprint(Struct):
    """The rows a batch declares."""

    ids: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Waits (awaited, awaiter) a step may add: one that stands already must be seen."""
    branches_of: set[str] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)
    born_into: set[tuple[str, str]] = field(default_factory=set)
    """Id and branch of promises this batch may create: they count when it also reads by id."""
    schedules: set[str] = field(default_factory=set)
    pids: set[str] = field(default_factory=set)
    leases_of: set[str] = field(default_factory=set)
    notices: set[str] = field(default_factory=set)
    takes: dict[TakeKey, int] = field(default_factory=dict)
    """What takes that ask alike have room for."""
    take_count: int = 0
    ahead: int = 0
    """What all takes together may be handed ahead of their slots."""
    waiting: Sequence[Offer] = ()
    """Takes that wait in the engine: nothing is handed out ahead that they have room for."""
    root_params: bool = False
    """Claims bring the params of their roots: each task of a run is loaded with its root."""
    leaving: int = 0
    """So many rows may leave the queue otherwise than by a take."""
    since: Millis = 0
    """When the first command of the batch happens: what is over by then is ready for nobody."""

    def expect(self, key: TakeKey, free: int, ahead: int) -> None:
        """A take will look at the queue."""
        self.takes[key] = self.takes.get(key, 0) + free
        self.take_count += 1
        self.ahead += ahead

    def nodes_of(self, group: str) -> int:
        """How many ready nodes of a group may be handed out, and one more: the oldest left."""
        asked = sum(free for key, free in self.takes.items() if key[0] == group)
        kept = sum(free for _, key, free in self.waiting if key[0] == group) if self.ahead else 0
        return asked + self.ahead + kept + self.leaving + 1

    def roots(self, per_take: int) -> int:
        return per_take * self.take_count + self.leaving

    def all_branches(self) -> set[str]:
        return self.branches | {branch for key, branch in self.born_into if key in self.branches_of}


class Rows:
    """Rows loaded for one batch; `merge` of each draft keeps them current within it."""

    __slots__ = (
        "branches",
        "calendar",
        "forgotten",
        "holders",
        "known",
        "leases_of",
        "listeners",
        "more_waits",
        "notices",
        "promises",
        "ready",
        "schedules",
        "settings",
        "standing",
        "tasks",
        "to_come",
        "waiting",
        "waits",
    )

    def __init__(self, settings: Settings, calendar: Calendar) -> None:
        self.settings = settings
        self.calendar = calendar
        self.known: set[str] = set()
        self.promises: dict[str, Promise] = {}
        self.tasks: dict[str, Task] = {}
        self.waits: dict[str, dict[str, Wait]] = {}
        self.more_waits: set[str] = set()
        self.standing: dict[tuple[str, str], Wait] = {}
        """Declared pairs that stand among the waits too many to load."""
        self.forgotten: set[str] = set()
        self.listeners: dict[str, set[str]] = {}
        self.branches: dict[str, list[str]] = {}
        self.schedules: dict[str, Schedule | None] = {}
        self.holders: dict[str, dict[str, Holder]] = {}
        self.leases_of: dict[str, list[str]] = {}
        self.notices: dict[str, list[Message]] = {}
        self.ready: dict[TakeKey, Ready] = {}
        self.to_come: dict[TakeKey, int] = {}
        """Room of the takes of this batch that have not been served yet."""
        self.waiting: Sequence[Offer] = ()

    def promise(self, promise_id: str) -> Promise | None:
        row = self.promises.get(promise_id)
        if row is None and promise_id not in self.known:
            raise OutsideFootprint(promise_id)
        return row

    def task(self, task_id: str) -> Task | None:
        row = self.tasks.get(task_id)
        if row is None and task_id not in self.known:
            raise OutsideFootprint(task_id)
        return row

    def wait(self, awaited: str, awaiter: str) -> Wait | None:
        loaded = self.waits.get(awaited, {}).get(awaiter)
        return loaded or self.standing.get((awaited, awaiter))

    def unknown_roots(self) -> set[str]:
        """Roots of the runs whose nodes are loaded, or may be born in this batch."""
        return {root_of(each) for each in self.known if ":" in each} - self.known

    def add_promises(self, promises: Iterable[Promise]) -> None:
        for promise in promises:
            self.promises[promise.id] = promise
            branch = promise.branch
            if branch is not None and (ids := self.branches.get(branch)) is not None:
                _insort_once(ids, promise.id)

    def add_tasks(self, tasks: dict[str, Task]) -> None:
        self.tasks.update(tasks)
        for task in tasks.values() if self.leases_of else ():
            leased = self.leases_of.get(task.pid or "")
            if leased is not None and task.holder is None and task.id not in leased:
                leased.append(task.id)

    def add_waits(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            self.waits.setdefault(wait.awaited, {})[wait.awaiter] = wait

    def add_listeners(self, listeners: Iterable[Listener]) -> None:
        for listener in listeners:
            self.listeners.setdefault(listener.awaited, set()).add(listener.address)

    def silence(self, addresses: Iterable[str]) -> None:
        """Whoever listened there has gone within this batch."""
        for listening in self.listeners.values():
            listening.difference_update(addresses)

    def count_held(self, key: HeldKey, by: int) -> None:
        pid, incarnation = key
        holders = self.holders.get(pid, {})
        if incarnation in holders:
            holder = holders[incarnation]
            holders[incarnation] = replace(holder, held=holder.held + by)

    def add_ready(self, task: Task) -> None:
        """Queue a task that became ready within this batch."""
        if task.ready_at is None:
            return
        for (group, names, prefix), ready in self.ready.items():
            if task.group == group and task.name in names and task.id.startswith(prefix):
                queue = ready.roots if task.is_root else ready.nodes
                queue.add((task.ready_at, task.id))

    def come(self, key: TakeKey, free: int) -> None:
        """A take has its turn now, whatever becomes of it: nothing is kept for it any more."""
        self.to_come[key] -= max(0, free)

    def spoken_for(self, key: TakeKey, replaced: HeldKey | None) -> int:
        """Slots that are free for the same tasks: of takes to come, and of takes that wait.

        `replaced`: whose waiting take does not count, because a newer one speaks for it.
        """
        to_come = sum(free for other, free in self.to_come.items() if _overlap(key, other))
        waiting = (
            free
            for holder, other, free in self.waiting
            if holder != replaced and _overlap(key, other)
        )
        return to_come + sum(waiting)

    def add_notice(self, key: MessageKey, notice: Message | None) -> None:
        """A notice sent or read within this batch."""
        _, kind, address = key
        for pid, notices in self.notices.items() if kind == "lost" else ():
            if any(inbox_of(each.group, pid) == address for each in self.holders[pid].values()):
                kept = [each for each in notices if each.key != key]
                kept += [] if notice is None else [notice]
                self.notices[pid] = sorted(kept, key=lambda each: each.key)


def _overlap(key: TakeKey, other: TakeKey) -> bool:
    """Whether there may be a task for both."""
    if key == other:
        return True
    return key[0] == other[0] and not set(key[1]).isdisjoint(other[1])


def _insort_once(items: list[Any], item: Any) -> None:
    if item not in items:
        insort(items, item)
