"""What a batch may see: the rows its footprint names plus one hop, and nothing more."""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from layby.core.address import inbox_of
from layby.core.changes import Changes
from layby.core.endings import Found
from layby.core.footprint import Footprint, OutsideFootprint
from layby.core.ids import life_root_of
from layby.core.join_limits import is_limited, own_limit
from layby.core.lane import Lane
from layby.core.limit import Limit, rule_for
from layby.core.model import (
    HeldKey,
    Holder,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Task,
    Wait,
    names_in,
)
from layby.core.queue import Offer, Ready, TakeKey, is_for
from layby.core.resumption import clean_up_id, cleans_up
from layby.core.schedule_row import Schedule, is_run_of
from layby.core.settings import Calendar, Settings
from layby.core.waits import exit_ids, told_exit_ids

MOST_LET_IN: Final = 100
"""Tasks of each lane that one batch lets in under a limit; the next tick goes on."""


MOST_LISTENERS: Final = 2_000
"""That one batch loads, to all its promises together: addresses of 2 MB at most."""


class Rows:
    """Rows loaded for one batch; adding the changes of each step keeps them current within it."""

    __slots__ = (
        "awaited",
        "branches",
        "calendar",
        "forgotten",
        "found",
        "holders",
        "known",
        "known_limits",
        "lanes",
        "leases_end",
        "leases_of",
        "limits",
        "listeners",
        "more_listeners",
        "more_waits",
        "notices",
        "now",
        "open_runs",
        "patterns",
        "promises",
        "ready",
        "schedules",
        "settings",
        "standing",
        "tasks",
        "to_come",
        "valueless",
        "waiting",
        "waits",
        "watched",
        "whole",
    )

    def __init__(self, settings: Settings, calendar: Calendar, now: Millis = 0) -> None:
        self.settings = settings
        self.calendar = calendar
        self.now = now
        """When they were loaded: commands without a time of their own happen then."""
        self.known: set[str] = set()
        self.whole: set[str] = set()
        """Promises with all who wait for them and listen: only these may be settled."""
        self.valueless: set[str] = set()
        """Those of the known ones that were loaded without their values, some without params."""
        self.promises: dict[str, Promise] = {}
        self.tasks: dict[str, Task] = {}
        self.waits: dict[str, dict[str, Wait]] = {}
        self.more_waits: set[str] = set()
        self.standing: dict[tuple[str, str], Wait] = {}
        """Declared pairs that exist among the waits that were too many to load."""
        self.forgotten: set[str] = set()
        self.listeners: dict[str, set[str]] = {}
        self.more_listeners: set[str] = set()
        """Promises with listeners that were too many to load, or may have such."""
        self.branches: dict[str, list[str]] = {}
        self.schedules: dict[str, Schedule | None] = {}
        self.open_runs: dict[str, set[str]] = {}
        """By schedule: ids among which its newest open runs are, those of this batch included."""
        self.holders: dict[str, dict[str, Holder]] = {}
        self.leases_of: dict[str, list[str]] = {}
        self.leases_end: dict[str, str] = {}
        """By process: the last of its leases that was loaded, if there may be more of them."""
        self.notices: dict[str, list[Message]] = {}
        self.ready: dict[TakeKey, Ready] = {}
        self.to_come: dict[TakeKey, int] = {}
        """Room in those takes of this batch that have not been served yet."""
        self.waiting: Sequence[Offer] = ()
        self.found: Found | None = None
        """What a batch of pruning may prune."""
        self.awaited: set[str] = set()
        """Lean rows that a task waits for, an address listens to, or a message is about; a notice
        to a holder is not: it says no more than that its task is over.
        """
        self.limits: dict[str, Limit] = {}
        self.known_limits: set[str] = set()
        self.patterns: dict[str, Limit] = {}
        """Limits for all names that begin alike."""
        self.lanes: dict[str, dict[str, Lane]] = {}
        """By limit and name: who waits for its permits. All names of a limit, or none."""
        self.watched: Container[str] = ()
        """Promises that requests which wait in the engine are about."""

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

    def waits_on(self, promise_id: str) -> dict[str, Wait]:
        """The waits for a promise that settles, by awaiter."""
        if promise_id not in self.whole:
            raise OutsideFootprint(f"who waits for {promise_id}")
        return self.waits.get(promise_id, {})

    def limit(self, name: str) -> Limit | None:
        row = self.limits.get(name)
        if row is None and name not in self.known_limits:
            raise OutsideFootprint(f"limit {name}")
        return row

    def unknown_limits(self, footprint: Footprint) -> set[str]:
        """Of the loaded tasks, and those that are declared."""
        named = {task.limits for task in self.tasks.values() if task.limits is not None}
        found = {name for text in named for name in names_in(text)}
        found.update(own_limit(task.id) for task in self.tasks.values() if self._is_limited(task))
        declared = footprint.limits | footprint.also_limits
        for schedule in self.schedules.values() if footprint.starts else ():
            declared |= frozenset() if schedule is None else schedule.node_limits
        return (found | declared if found else declared) - self.known_limits

    def _is_limited(self, task: Task) -> bool:
        """Whether it is a join that has a limit of its own."""
        return task.is_join and is_limited(self.promises[task.id])

    def add_limits(self, names: Iterable[str], found: Iterable[Limit]) -> None:
        """Rows that were loaded for these names, and all patterns."""
        self.known_limits.update(names)
        for limit in found:
            if limit.pattern:
                self.patterns[limit.name] = limit
            if limit.name in self.known_limits:
                self.limits[limit.name] = limit

    def lane_length(self, names: Collection[str], footprint: Footprint) -> int:
        """How many of each lane may be let in by this batch; one at least says that some wait."""
        if footprint.defines:
            return MOST_LET_IN
        freed = Counter(
            name for task in self.tasks.values() if task.permits for name in task.permit_names
        )
        room = 0
        for name in names:
            limit = self.limits.get(name)
            rule = rule_for(name, limit, self.patterns.values())
            if rule is not None:
                room = max(room, rule.free(limit or Limit(name), self.now) + freed[name])
        return max(1, min(room, MOST_LET_IN))

    def join_lane(self, task: Task) -> None:
        lanes = self.lanes.get(task.gate or "")
        if lanes is not None:
            lane = lanes.setdefault(task.lane, Lane())
            lane.add((task.gate_at or 0, task.id))

    def is_known(self, promise_id: str) -> bool:
        return promise_id in self.promises or promise_id in self.known

    def unknown_roots(self, footprint: Footprint) -> set[str]:
        """Roots of the runs whose nodes are loaded, or may be born in this batch, as far as claims
        bring their params.
        """
        if footprint.root_params:
            nodes = (each for each in self.known if ":" in each)
        elif footprint.takes:
            nodes = (each.id for each in self.tasks.values() if each.resume and ":" in each.id)
        else:
            return set()
        return self.unread({life_root_of(each) for each in nodes})

    def unknown_triggers(self, footprint: Footprint) -> "tuple[set[str], set[str]]":
        """What belongs to the loaded tasks that have deferred: ids that may be changed with all
        effects, and others that are only read.
        """
        changed, read = set[str](), set[str]()
        for task_id in footprint.exits:
            changed.update(told_exit_ids(task_id, footprint.told.get(task_id, ())))
        for task in self.tasks.values():
            if task.is_trigger and cleans_up(self.promises[task.id].tags):
                read.add(clean_up_id(task.id))
            if task.is_in_line:
                changed.add(task.regain_id)
            if task.id in footprint.exits:
                changed.update(exit_ids(task))
            if task.resume is None or (found := task.resumption) is None:
                continue
            if found.won is None:
                changed.update(found.owned)
                read.add(found.trigger)
            elif footprint.may_claim:
                read.add(found.won)
        return changed - self.whole, self.unread(read - changed)

    def add_leases(self, pid: str, ids: Sequence[str], *, is_cut: bool) -> None:
        """Of those that are renewed, the first ones; all of them, unless it is cut."""
        self.leases_of[pid] = [*ids]
        if is_cut:
            self.leases_end[pid] = ids[-1]

    def leased(self, pids: Iterable[str]) -> set[str]:
        """All that was loaded of what these processes have leased."""
        return {each for pid in pids for each in self.leases_of[pid]}

    def unread(self, ids: set[str]) -> set[str]:
        """Those of which nothing, or no value, is loaded."""
        return ids - (self.known - self.valueless)

    def pids_to_tell(self, footprint: Footprint) -> set[str]:
        """Who has the bodies of tasks whose waits a person ends, where no holder of theirs says
        it: they serve calls.
        """
        found = {pid for task_id, pid in footprint.leasing if task_id in footprint.exits}
        for task_id in footprint.exits:
            task = self.tasks.get(task_id)
            if task is not None and task.state == "acquired" and task.holder is None:
                found.add(task.pid or "")
        return found - {""} - self.holders.keys()

    def standing_pairs(self, footprint: Footprint) -> set[tuple[str, str]]:
        """Waits of which a step must see how they stand: those it may add, and those of deferred
        tasks for what others may wait for as well.
        """
        found = set[tuple[str, str]]()
        if self.more_waits or footprint.beside:
            found |= footprint.pairs
        for task in self.tasks.values():
            waited = None if task.resume is None else task.open_resumption
            if waited is not None and not waited.own:
                found.add((waited.trigger, task.id))
        return found

    def add(self, changes: Changes) -> None:
        """Make the writes of a step visible to the next one of the same batch."""
        for promise_id, promise in changes.deleted.items():
            self.delete(promise_id, promise.branch)
        for pid, incarnation in changes.deleted_holders:
            self.holders[pid].pop(incarnation, None)
        if changes.promises:
            self.add_promises(changes.promises.values())
        if changes.tasks:
            self.add_tasks(changes.tasks)
            for task_id in changes.readied:
                self.add_ready(changes.tasks[task_id])
        if changes.limits:
            self.put_limits(changes.limits)
        if changes.waits:
            self.add_waits(changes.waits.values())
        self.forgotten.update(changes.forgotten)
        for awaited, awaiter in changes.dropped_waits:
            self.waits.get(awaited, {}).pop(awaiter, None)
            self.standing.pop((awaited, awaiter), None)
        if changes.listeners:
            self.add_listeners(changes.listeners)
        for listener in changes.dropped_listeners:
            self.listeners.get(listener.awaited, set()).discard(listener.address)
        if changes.silenced:
            self.silence(changes.silenced)
        if changes.schedules:
            self.schedules.update(changes.schedules)
        for (pid, incarnation), holder in changes.holders.items():
            self.holders.setdefault(pid, {})[incarnation] = holder
        for key, by in changes.held.items():
            self.count_held(key, by)
        for message_key, message in changes.messages.items():
            self.add_notice(message_key, message)

    def add_promises(self, promises: Iterable[Promise]) -> None:
        for promise in promises:
            self.promises[promise.id] = promise
            branch = promise.branch
            if branch is not None and (ids := self.branches.get(branch)) is not None:
                _insort_once(ids, promise.id)
            if self.open_runs:
                self._add_open(promise.id)

    def _add_open(self, promise_id: str) -> None:
        for schedule_id, ids in self.open_runs.items():
            if is_run_of(schedule_id, promise_id):
                ids.add(promise_id)

    def delete(self, promise_id: str, branch: str | None) -> None:
        self.promises.pop(promise_id, None)
        self.tasks.pop(promise_id, None)
        if branch is not None and promise_id in (ids := self.branches.get(branch, [])):
            ids.remove(promise_id)

    def add_tasks(self, tasks: dict[str, Task]) -> None:
        for task in tasks.values() if self.lanes else ():
            self._leave_lane(self.tasks.get(task.id), task)
        self.tasks.update(tasks)
        for task in tasks.values() if self.leases_of else ():
            leased = self.leases_of.get(task.pid or "")
            if leased is not None and task.holder is None and task.id not in leased:
                leased.append(task.id)

    def put_limits(self, limits: dict[str, Limit | None]) -> None:
        for name, limit in limits.items():
            if limit is None:
                self.limits.pop(name, None)
                self.patterns.pop(name, None)
            else:
                self.add_limits((name,), (limit,))

    def _leave_lane(self, before: Task | None, after: Task) -> None:
        if before is None or before.gate is None or before.gate == after.gate:
            return
        lane = self.lanes.get(before.gate, {}).get(before.lane)
        if lane is not None:
            lane.discard((before.gate_at or 0, before.id))

    def add_waits(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            self.waits.setdefault(wait.awaited, {})[wait.awaiter] = wait

    def add_listeners(self, listeners: Iterable[Listener]) -> None:
        for listener in listeners:
            self.listeners.setdefault(listener.awaited, set()).add(listener.address)

    def add_first_listeners(self, ids: Iterable[str], found: Sequence[Listener], most: int) -> None:
        """Those who listen to these: of each `most` at most, and one more if there are others.

        When `MOST_LISTENERS` were found, any of these may have others.
        """
        self.add_listeners(found)
        for awaited in ids:
            listening = self.listeners.get(awaited, set())
            if len(listening) > most or len(found) >= MOST_LISTENERS:
                self.listeners[awaited] = set(sorted(listening)[:most])
                self.more_listeners.add(awaited)

    def silence(self, addresses: Collection[str]) -> None:
        """The listener at that address has gone within this batch, and with it what it was told."""
        for listening in self.listeners.values():
            listening.difference_update(addresses)
        for pid, notices in self.notices.items():
            self.notices[pid] = [each for each in notices if each.address not in addresses]

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
        for key, ready in self.ready.items():
            if is_for(key, task):
                ready.add(task)

    def queued_ids(self) -> set[str]:
        """The tasks in all queues that were loaded."""
        queues = (queue for each in self.ready.values() for queue in each)
        return {task_id for queue in queues for _, _, task_id in queue.entries}

    def come(self, key: TakeKey, free: int) -> None:
        """A take has its turn now, whatever the result: nothing is reserved for it any longer."""
        self.to_come[key] -= max(0, free)

    def spoken_for(self, key: TakeKey, replaced: HeldKey | None) -> int:
        """Free slots for the same tasks: in later takes of this batch, and in takes that wait.

        `replaced`: the holder whose waiting take does not count, because a newer one replaces it.
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
    """Whether there may be a task that suits both."""
    if key == other:
        return True
    return key[0] == other[0] and not set(key[1]).isdisjoint(other[1])


def _insort_once(items: list[Any], item: Any) -> None:
    if item not in items:
        insort(items, item)
