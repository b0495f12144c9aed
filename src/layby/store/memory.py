"""The store in dictionaries: for tests, simulation and throw-away runs. Nothing is on disk."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TypeVar

from msgspec.structs import replace

from layby.core import schedules
from layby.core.address import inbox_of
from layby.core.changes import Changes
from layby.core.model import FAR, NEVER, Holder, Message, Millis, Promise, Task, Wait
from layby.core.queries import (
    ExplainPromise,
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ListWaiting,
    OfferMessages,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.queue import Queue, Ready
from layby.core.replies import (
    Explanation,
    PromisePage,
    RowPage,
    SchedulePage,
    TaskPage,
    WaitingPage,
)
from layby.core.rows import Calendar, Footprint, HeldKey, Rows, Settings, TakeKey
from layby.core.search import matches_promise, matches_run, matches_task, projected
from layby.core.state import State
from layby.core.stats import StatsData
from layby.core.ticks import (
    ExpireHolders,
    ExpireLeases,
    ExpirePromises,
    FinishSettlement,
    FreeTasks,
    RetryTasks,
    Tick,
)
from layby.store import by_time, queries, stats
from layby.store.neighbours import MemoryNeighbours

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore:
    """Whole-state scans where SQL has indexes: simple on purpose, equal in every answer."""

    def __init__(self, settings: Settings, calendar: Calendar) -> None:
        self.state = State()
        self._time: Millis = 0
        self._settings = settings
        self._calendar = calendar

    def transaction(self) -> AbstractContextManager[None]:
        """`save` is the only write and cannot fail half-way: there is nothing to roll back."""
        return nullcontext()

    # --- load ----------------------------------------------------------------------------

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        rows = Rows(self._settings, self._calendar)
        ids = set(footprint.ids)
        for key in footprint.takes:
            rows.ready[key] = self._ready(key, footprint, now)
        ids |= self._load_branches(rows, footprint)
        for pid in footprint.leases_of:
            rows.leases_of[pid] = [task.id for task in self._leased(pid)]
            ids |= set(rows.leases_of[pid])
        for pid in footprint.pids:
            rows.holders[pid] = {h.incarnation: h for h in self._holders_of(pid)}
        for pid in footprint.notices:
            rows.notices[pid] = self._notices(pid)
        rows.schedules = {key: self.state.schedules.get(key) for key in footprint.schedules}
        self._load_promises(rows, ids)
        self._load_queued(rows)
        rows.standing = {
            pair: self.state.waits[pair] for pair in footprint.pairs if pair in self.state.waits
        }
        return rows

    def _load_promises(self, rows: Rows, ids: set[str]) -> None:
        waits: defaultdict[str, dict[str, Wait]] = defaultdict(dict)
        limit = self._settings.hop_limit + len(ids)
        for (awaited, awaiter), wait in sorted(self.state.waits.items()):
            if awaited not in ids:
                continue
            if len(waits[awaited]) < limit:
                waits[awaited][awaiter] = wait
            else:
                rows.more_waits.add(awaited)
        rows.waits = dict(waits)
        rows.known = ids | {awaiter for each in waits.values() for awaiter in each}
        promises, tasks = self.state.promises, self.state.tasks
        rows.promises = {key: promises[key] for key in rows.known if key in promises}
        rows.tasks = {key: tasks[key] for key in rows.known if key in tasks}
        rows.add_listeners(each for each in self.state.listeners if each.awaited in ids)

    def _load_queued(self, rows: Rows) -> None:
        """Only handed out: nobody who waits for them is touched."""
        for queue in (queue for each in rows.ready.values() for queue in each):
            for _, task_id in queue.entries:
                rows.known.add(task_id)
                rows.promises[task_id] = self.state.promises[task_id]
                rows.tasks[task_id] = self.state.tasks[task_id]

    def _load_branches(self, rows: Rows, footprint: Footprint) -> set[str]:
        of = (self.state.promises.get(key) for key in footprint.branches_of)
        branches = footprint.all_branches() | {p.branch for p in of if p is not None and p.branch}
        rows.branches = {branch: [] for branch in branches}
        for promise_id, promise in sorted(self.state.promises.items()):
            if promise.branch in branches:
                rows.branches[promise.branch].append(promise_id)
        return {promise_id for ids in rows.branches.values() for promise_id in ids}

    def _ready(self, key: TakeKey, footprint: Footprint, now: Millis) -> Ready:
        group, names, prefix = key
        ready = sorted(
            (task.ready_at, task.id, task.is_root)
            for task in self.state.tasks.values()
            if task.state == "pending" and task.group == group and task.name in names
            if task.ready_at is not None and task.ready_at <= now and task.id.startswith(prefix)
            if self.state.promises[task.id].timeout_at > footprint.since
        )
        nodes = [(at, key) for at, key, is_root in ready if not is_root]
        roots = [(at, key) for at, key, is_root in ready if is_root]
        most = footprint.nodes_of(group), footprint.roots(self._settings.roots_per_take)
        return Ready(
            Queue(part[:limit], limit) for part, limit in zip((nodes, roots), most, strict=True)
        )

    def _leased(self, pid: str) -> Iterator[Task]:
        for task in self.state.tasks.values():
            if task.state == "acquired" and task.holder is None and task.pid == pid:
                yield task

    def _holders_of(self, pid: str) -> Iterator[Holder]:
        return (holder for holder in self.state.holders.values() if holder.pid == pid)

    def _notices(self, pid: str) -> list[Message]:
        inboxes = {inbox_of(holder.group, pid) for holder in self._holders_of(pid)}
        return [
            message
            for _, message in sorted(self.state.messages.items())
            if message.kind == "lost" and message.address in inboxes
        ]

    # --- save ----------------------------------------------------------------------------

    def save(self, changes: Changes, now: Millis = 0) -> None:
        self._time = max(self._time, now)
        state = self.state
        state.promises.update(changes.promises)
        state.tasks.update(changes.tasks)
        state.waits.update(changes.waits)
        gone = set(changes.dropped_waits)
        forgotten = set(changes.forgotten)
        if gone or forgotten:
            state.waits = {
                key: wait
                for key, wait in state.waits.items()
                if key not in gone and key[1] not in forgotten
            }
        self._silence(set(changes.silenced))
        state.listeners |= set(changes.listeners)
        deaf = set(changes.dropped_listeners)
        state.listeners = {each for each in state.listeners if each.awaited not in deaf}
        _apply(state.messages, changes.messages)
        _apply(state.schedules, changes.schedules)
        self._save_holders(changes)

    def _silence(self, addresses: set[str]) -> None:
        if not addresses:
            return
        state = self.state
        state.listeners = {each for each in state.listeners if each.address not in addresses}
        state.messages = {
            key: each for key, each in state.messages.items() if each.address not in addresses
        }

    def _save_holders(self, changes: Changes) -> None:
        holders = self.state.holders
        for key, holder in changes.holders.items():
            held = holders[key].held if key in holders else 0
            holders[key] = replace(holder, held=held)
        for key, by in changes.held.items():
            if key in holders:
                holders[key] = replace(holders[key], held=holders[key].held + by)

    # --- time ----------------------------------------------------------------------------

    def store_time(self) -> Millis:
        return self._time

    def due(self, now: Millis, limit: int, wall: Millis | None = None) -> list[Tick]:
        return [
            *self._due_promises(now, limit),
            *self._due_tails(now, limit),
            *self._due_tasks(now, limit),
            *self._due_schedules(now if wall is None else min(now, wall), limit),
            *self._due_holders(now, limit),
        ]

    def _due_promises(self, now: Millis, limit: int) -> Iterator[Tick]:
        due = [p for p in self.state.promises.values() if p.is_armed and p.timeout_at <= now]
        due = [p for p in due if p.timeout_at < NEVER]
        if due:
            yield ExpirePromises(ids=_first(((p.timeout_at, p.id) for p in due), limit))

    def _due_tails(self, now: Millis, limit: int) -> Iterator[Tick]:
        for promise in self.state.promises.values():
            if promise.tail_at is not None and promise.tail_at <= now:
                yield FinishSettlement(id=promise.id, nodes=self._nodes_of(promise, limit))

    def _nodes_of(self, promise: Promise, limit: int) -> tuple[str, ...]:
        waits = self.state.waits.values()
        return tuple(sorted(w.awaited for w in waits if w.awaiter == promise.id and w.counts))[
            :limit
        ]

    def _due_tasks(self, now: Millis, limit: int) -> Iterator[Tick]:
        due = [
            task
            for task in self.state.tasks.values()
            if task.wake_at is not None and task.wake_at < NEVER and task.wake_at <= now
        ]
        if pending := [(t.wake_at, t.id) for t in due if t.state == "pending"]:
            yield RetryTasks(ids=_first(pending, limit))
        if acquired := [(t.wake_at, t.id) for t in due if t.state == "acquired"]:
            yield ExpireLeases(ids=_first(acquired, limit))

    def _due_schedules(self, now: Millis, limit: int) -> Iterator[Tick]:
        due = [each for each in self.state.schedules.values() if each.next_run_at <= now]
        due.sort(key=lambda each: (each.next_run_at, each.id))
        return schedules.due(due, now, self._calendar, limit)

    def _due_holders(self, now: Millis, limit: int) -> Iterator[Tick]:
        living = [h for h in self.state.holders.values() if h.is_alive and h.expires_at <= now]
        if living:
            yield ExpireHolders(pids=_first(((h.expires_at, h.pid) for h in living), limit))
        for (pid, incarnation), holder in self.state.holders.items():
            if not holder.is_alive and holder.held > 0:
                ids = self._held_ids((pid, incarnation))[:limit]
                yield FreeTasks(pid=pid, incarnation=incarnation, ids=tuple(ids))

    def _held_ids(self, key: HeldKey) -> list[str]:
        tasks = self.state.tasks.values()
        return sorted(task.id for task in tasks if (task.pid, task.holder) == key)

    def earliest(self) -> Millis:
        return min(self._deadlines(), default=FAR)

    def _deadlines(self) -> Iterator[Millis]:
        for promise in self.state.promises.values():
            if promise.is_armed and promise.timeout_at < NEVER:
                yield promise.timeout_at
            if promise.tail_at is not None:
                yield promise.tail_at
        for task in self.state.tasks.values():
            if task.wake_at is not None and task.wake_at < NEVER:
                yield task.wake_at
        for holder in self.state.holders.values():
            if holder.is_alive:
                yield holder.expires_at
            elif holder.held > 0:
                yield 0

    def next_occurrence(self) -> Millis:
        return min((each.next_run_at for each in self.state.schedules.values()), default=FAR)

    def living_pids(self) -> tuple[str, ...]:
        return tuple(holder.pid for holder in self.state.holders.values() if holder.is_alive)

    # --- reads that are not by id --------------------------------------------------------

    def search_promises(self, query: SearchPromises, now: Millis) -> PromisePage:
        rows = self._projected(query.cursor, now)
        matching = (p for p, task in rows if matches_promise(query, p, task))
        return PromisePage(*queries.page(matching, query.limit))

    def search_tasks(self, query: SearchTasks, now: Millis) -> TaskPage:
        rows = self._projected(query.cursor, now)
        tasks = (t for p, t in rows if t is not None and matches_task(query, p, t))
        return TaskPage(*queries.page(tasks, query.limit))

    def search_schedules(self, query: SearchSchedules) -> SchedulePage:
        return queries.schedules(list(self.state.schedules.values()), query)

    def get_run(self, query: GetRun, now: Millis) -> RowPage:
        rows = (row for row in self._projected(query.cursor, now) if row[0].root == query.id)
        return RowPage(*queries.page_of_rows(rows, query.limit))

    def get_records(self, query: GetRecords, now: Millis) -> RowPage:
        below = f"{query.id}."
        rows = (
            row
            for row in self._projected(query.cursor, now)
            if row[0].id == query.id or row[0].id.startswith(below)
        )
        return RowPage(*queries.page_of_rows(rows, query.limit))

    def list_runs(self, query: ListRuns, now: Millis) -> RowPage:
        if query.newest_first:
            return by_time.newest_runs(by_time.newest_of(self._rows()), query, now)
        rows = (row for row in self._projected(query.cursor, now) if matches_run(query, *row))
        return RowPage(*queries.page_of_rows(rows, query.limit))

    def list_held(self, query: ListHeld) -> TaskPage:
        ids = self._held_ids((query.pid, query.incarnation))
        tasks = (self.state.tasks[key] for key in ids if key > (query.cursor or ""))
        return TaskPage(*queries.page(tasks, query.limit))

    def list_waiting(self, query: ListWaiting, now: Millis) -> WaitingPage:
        rows_after = by_time.waiting_of(self._rows())
        return by_time.waiting(rows_after, MemoryNeighbours(self.state), query, now)

    def explain(self, query: ExplainPromise, now: Millis) -> Explanation | None:
        return by_time.explanation(MemoryNeighbours(self.state), query, now)

    def stats(self, now: Millis) -> StatsData:
        return stats.of_state(self.state, now)

    def messages(self, offer: OfferMessages) -> list[Message]:
        wanted = {
            (m.address, m.id, m.kind): m
            for m in self.state.messages.values()
            if offer.start <= m.address < offer.end
        }
        return [m for place, m in sorted(wanted.items()) if place > offer.after][: offer.limit]

    def dump(self) -> State:
        """A copy that later writes do not reach: rows are frozen, the dictionaries are not."""
        return State(*(copy(getattr(self.state, name)) for name in State.__struct_fields__))

    def clear(self) -> None:
        self.state = State()

    def close(self) -> None:
        """Nothing is open."""

    def _rows(self) -> list[tuple[Promise, Task | None]]:
        tasks = self.state.tasks
        return [(promise, tasks.get(key)) for key, promise in self.state.promises.items()]

    def _projected(self, cursor: str | None, now: Millis) -> Iterator[tuple[Promise, Task | None]]:
        for promise_id, promise in sorted(self.state.promises.items()):
            if promise_id > (cursor or ""):
                yield projected(promise, self.state.tasks.get(promise_id), now)


def _first(keyed: Iterable[tuple[Millis | None, str]], limit: int) -> tuple[str, ...]:
    ordered = sorted((at or 0, key) for at, key in keyed)
    return tuple(key for _, key in ordered[:limit])


def _apply(rows: dict[K, V], changes: dict[K, V | None]) -> None:
    for key, row in changes.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
