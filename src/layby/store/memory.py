"""The store in dictionaries: for tests, simulation and throw-away runs. Nothing is on disk."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from heapq import merge
from itertools import islice, takewhile
from threading import Lock
from typing import TypeVar

from msgspec.structs import astuple, replace

from layby.core import endings
from layby.core.address import inbox_of
from layby.core.birth import is_absent
from layby.core.changes import Changes
from layby.core.codes import fits, read_refusals
from layby.core.due import due, due_last, next_pruning
from layby.core.endings import Key, Look, is_past
from layby.core.footprint import Footprint
from layby.core.lane import Lane
from layby.core.limit import PRIVATE, Limit, is_meant
from layby.core.model import (
    EMPTY,
    FAR,
    HeldKey,
    Holder,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Pruning,
    TaskState,
    Wait,
)
from layby.core.queries import (
    OfferMessages,
)
from layby.core.queue import Dated, Queue, Ready, TakeKey, entry_of, queues_of
from layby.core.rows import MOST_LISTENERS, Rows
from layby.core.schedule_row import MOST_OPEN_RUNS, Schedule, is_run_of
from layby.core.settings import Calendar, Settings
from layby.core.state import State
from layby.core.ticks import Tick
from layby.core.waits import is_parked
from layby.store.memory_indexes import Indexes, InOrder, first, until
from layby.store.memory_reads import MemoryReads
from layby.store.page_bounds import LIGHT, light_enough, only_compared, shorten
from layby.store.unshared import Unshared

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore(Unshared):
    """What commands need is indexed; lists are read from copies (`memory_reads`)."""

    def __init__(self, settings: Settings, calendar: Calendar) -> None:
        self._lock = Lock()
        """Between the writer and whoever copies what it writes."""
        self._copy: State | None = None
        self.state = State()
        self._secrets: dict[str, str] = {}
        self._time: Millis = 0
        self._settings = settings
        self._calendar = calendar

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        with self._lock:
            self._copy = None
            self._state = state
            self._indexes = Indexes(state)

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - nothing is on disk
        """`save` is the only write and cannot fail half-way: there is nothing to roll back."""
        return nullcontext()

    # --- load ----------------------------------------------------------------------------

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        rows = Rows(self._settings, self._calendar, now)
        ids = set(footprint.ids)
        for key in footprint.takes:
            rows.ready[key] = found = self._ready(key, footprint, max(now, footprint.until))
            shorten(found, self.weigh)
        ids |= self._load_branches(rows, footprint)
        for pid in footprint.leases_of:
            rows.leases_of[pid] = list(self._indexes.leased.of(pid))
            ids |= set(rows.leases_of[pid])
        self._load_renewed(rows, footprint)
        self._load_holders(rows, footprint.pids)
        for pid in footprint.notices:
            rows.notices[pid] = self._notices(pid)
        rows.schedules = {key: self.state.schedules.get(key) for key in footprint.schedules}
        ids |= footprint.started_by(rows.schedules)
        ids |= {key for key in footprint.maybe_new if is_absent(self.state.promises.get(key))}
        self._load_promises(rows, ids)
        self._load_queued(rows)
        for schedule_id in footprint.runs_of:
            rows.open_runs[schedule_id] = self._open_runs(schedule_id)
            self._load_pairs(rows, rows.open_runs[schedule_id])
        self._load_pairs(rows, footprint.beside)
        self._load_pairs(rows, rows.leased(footprint.renewals))
        self._load_triggers(rows, footprint)
        self._load_holders(rows, rows.pids_to_tell(footprint))
        self._load_limits(rows, footprint, rows.unknown_limits(footprint))
        self._load_pairs(rows, rows.unknown_roots(footprint))
        rows.standing = {
            pair: self.state.waits[pair]
            for pair in footprint.pairs | rows.standing_pairs(footprint)
            if pair in self.state.waits
        }
        self._load_lean(rows, footprint)
        if footprint.look is not None or footprint.lean:
            self._load_prunable(rows, footprint, now)
        return rows

    def _load_lean(self, rows: Rows, footprint: Footprint) -> None:
        """What no other part of the footprint needs whole."""
        valueless = footprint.valueless - rows.known
        self._load_pairs(rows, valueless)
        there = footprint.maybe_new - rows.known
        self._load_pairs(rows, there)
        compared = {each: each for each in footprint.compared}
        for key in valueless & rows.promises.keys():
            rows.promises[key] = only_compared(rows.promises[key], compared)
        for key in there & rows.promises.keys():
            rows.promises[key] = replace(rows.promises[key], param=EMPTY, value=EMPTY)

    def weigh(self, ids: Sequence[str]) -> dict[str, int]:
        stored = filter(None, map(self.state.promises.get, ids))
        weights = ((each.id, len(each.param) + len(each.value)) for each in stored)
        return {each: weight for each, weight in weights if weight > LIGHT}

    def _load_prunable(self, rows: Rows, footprint: Footprint, now: Millis) -> None:
        ids = set(footprint.lean)
        if (look := footprint.look) is not None:
            rows.found = found = endings.find(self, look, max(now, footprint.until))
            ids |= found.ids(look)
            self._load_holders(rows, (pid for _, pid in found.keys if look.stage == "holders"))
        rows.awaited = {key for key in ids if self._is_awaited(key)}
        self._load_pairs(rows, ids - rows.known)

    def _is_awaited(self, promise_id: str) -> bool:
        indexes = self._indexes
        return bool(
            indexes.awaiters.of(promise_id)
            or indexes.readers.of(promise_id)
            or indexes.addresses.of(promise_id)
            or promise_id in indexes.told
        )

    def _load_promises(self, rows: Rows, ids: set[str]) -> None:
        limit = self._settings.hop_limit + len(ids)
        rows.known |= ids
        rows.whole |= ids
        for awaited in ids:
            self._load_waits(rows, awaited, limit)
        self._load_listeners(rows, ids, limit)
        self._load_pairs(rows, rows.known)

    def _load_listeners(self, rows: Rows, ids: set[str], limit: int) -> None:
        found = (
            Listener(awaited, address)
            for awaited in ids
            for address in islice(self._indexes.addresses.of(awaited), limit + 1)
        )
        rows.add_first_listeners(ids, list(islice(found, MOST_LISTENERS)), limit)

    def _load_triggers(self, rows: Rows, footprint: Footprint) -> None:
        """What deferred tasks wait for, and what they are resumed with: their rows name it."""
        changed, read = rows.unknown_triggers(footprint)
        while changed or read:
            self._load_promises(rows, changed)
            self._load_pairs(rows, read)
            changed, read = rows.unknown_triggers(footprint)

    def _load_limits(self, rows: Rows, footprint: Footprint, names: set[str]) -> None:
        """Limits of the loaded tasks, and who may be let in under them. Those may have others."""
        if not names:
            return
        rows.add_limits(names, self._limits_of(names))
        most = rows.lane_length(names, footprint)
        for name in names:
            lanes = self._indexes.lanes.get(name, {})
            rows.lanes[name] = {
                lane: Lane(islice(waiting, most), most)
                for lane, waiting in lanes.items()
                if waiting
            }
            for lane in rows.lanes[name].values():
                self._load_pairs(rows, {task_id for _, task_id in lane.entries})
        self._load_triggers(rows, footprint)
        self._load_limits(rows, footprint, rows.unknown_limits(footprint))

    def _limits_of(self, names: set[str]) -> list[Limit]:
        limits = self.state.limits.values()
        return [each for each in limits if each.pattern or each.name in names]

    def _load_waits(self, rows: Rows, awaited: str, limit: int) -> None:
        """The first waits for a promise, and whether there are more; also loads their awaiters."""
        awaiters = self._indexes.awaiters.of(awaited)
        loaded = list(islice(awaiters, limit))
        if loaded:
            rows.add_waits(self.state.waits[awaited, awaiter] for awaiter in loaded)
            rows.known.update(loaded)
        if len(loaded) < len(awaiters):
            rows.more_waits.add(awaited)

    def _load_queued(self, rows: Rows) -> None:
        """They are only handed out: tasks that wait for them are not touched."""
        for queue in (queue for each in rows.ready.values() for queue in each):
            self._load_pairs(rows, {task_id for _, _, task_id in queue.entries})

    def _load_pairs(self, rows: Rows, ids: set[str]) -> None:
        promises, tasks = self.state.promises, self.state.tasks
        rows.known |= ids
        rows.promises.update({key: promises[key] for key in ids if key in promises})
        rows.tasks.update({key: tasks[key] for key in ids if key in tasks})

    def _load_branches(self, rows: Rows, footprint: Footprint) -> set[str]:
        of = (self.state.promises.get(key) for key in footprint.branches_of)
        branches = footprint.all_branches() | {p.branch for p in of if p is not None and p.branch}
        listed = {each for branch in branches for each in self._indexes.branches.of(branch)}
        shown = {*light_enough(sorted(listed), self.weigh)}
        rows.branches = {
            branch: [each for each in self._indexes.branches.of(branch) if each in shown]
            for branch in branches
        }
        return shown

    def _load_renewed(self, rows: Rows, footprint: Footprint) -> None:
        for pid, after in footprint.renewals.items():
            later = (each for each in self._indexes.leased.of(pid) if each > after)
            ids = [*islice(later, footprint.renewed)]
            rows.add_leases(pid, ids, is_cut=len(ids) >= footprint.renewed)

    def _ready(self, key: TakeKey, footprint: Footprint, now: Millis) -> Ready:
        group, names, prefix, codes = key
        refused = [
            queue
            for text, queue in self._indexes.refused[group].items()
            if read_refusals(text).name in names and fits(text, codes)
        ]
        nodes, roots = (
            [self._indexes.ready[group, name, is_root] for name in set(names)]
            for is_root in (False, True)
        )
        most_nodes = footprint.nodes_of(group)
        most_roots = footprint.roots(self._settings.roots_per_take)
        since = footprint.since

        def first(queues: Sequence[InOrder[Dated]], most: int) -> Sequence[Dated]:
            return list(islice(self._living(queues, prefix, since, now), most))

        in_turn, oldest = queues_of(
            {
                priority: first([each[priority] for each in nodes if priority in each], most_nodes)
                for priority in {priority for each in nodes for priority in each}
            },
            most_nodes,
        )
        first_roots = first([queue for each in roots for queue in each.values()], most_roots)
        tried = first(refused, footprint.refused)
        return Ready.of(
            in_turn,
            Queue(((0, *each) for each in first_roots), most_roots),
            Queue(sorted(entry_of(self.state.tasks[each]) for _, each in tried)),
            oldest,
        )

    def _living(
        self, queues: Sequence[InOrder[Dated]], prefix: str, since: Millis, now: Millis
    ) -> Iterator[Dated]:
        """Ready by now and not over, oldest first."""
        for ready_at, task_id in merge(*queues):
            if ready_at > now:
                return
            if task_id.startswith(prefix) and self.state.promises[task_id].timeout_at > since:
                yield ready_at, task_id

    def _open_runs(self, schedule_id: str) -> set[str]:
        made = self._indexes.scheduled.of(schedule_id)
        return set([each for each in made if is_run_of(schedule_id, each)][-MOST_OPEN_RUNS:])

    def _load_holders(self, rows: Rows, pids: Iterable[str]) -> None:
        for pid in pids:
            rows.holders[pid] = {h.incarnation: h for h in self._holders_of(pid)}

    def _holders_of(self, pid: str) -> Iterator[Holder]:
        return (holder for holder in self.state.holders.values() if holder.pid == pid)

    def _notices(self, pid: str) -> list[Message]:
        inboxes = {inbox_of(holder.group, pid) for holder in self._holders_of(pid)}
        keys = (key for inbox in inboxes for key in self._indexes.outbox.get(inbox, ()))
        return [self.state.messages[key] for key in sorted(keys) if key[1] == "lost"]

    # --- save ----------------------------------------------------------------------------

    def save(self, changes: Changes, now: Millis = 0) -> None:
        self._time = max(self._time, now)
        with self._lock:
            self._copy = None
            self._save(changes)

    def _save(self, changes: Changes) -> None:
        state, indexes = self.state, self._indexes
        for key in changes.deleted:
            self._delete(key)
        for key, promise in changes.promises.items():
            indexes.move_promise(state.promises.get(key), promise)
            task = state.tasks.get(key)
            indexes.move_ending(
                state.promises.get(key), task, promise, changes.tasks.get(key, task)
            )
        for key, task in changes.tasks.items():
            indexes.move_task(state.tasks.get(key), task)
        state.promises.update(changes.promises)
        state.tasks.update(changes.tasks)
        self._save_waits(changes)
        self._silence(changes.silenced)
        state.listeners.update(changes.listeners)
        indexes.add_listeners(changes.listeners)
        self._drop_listeners(changes.dropped_listeners)
        for message in changes.delivered:
            if state.messages.get(message.key) == message:
                self._put_message(message.key, None)
        for key, message in changes.messages.items():
            self._put_message(key, message)
        _apply(state.schedules, changes.schedules)
        state.flows.update(changes.flows)
        _apply(state.pruning, changes.pruning)
        _apply(state.limits, changes.limits)
        self._save_holders(changes)

    def _delete(self, promise_id: str) -> None:
        promise = self.state.promises.pop(promise_id, None)
        task = self.state.tasks.pop(promise_id, None)
        if promise is not None:
            self._indexes.move_promise(promise, None)
            self._indexes.move_ending(promise, task, None, None)
        if task is not None:
            self._indexes.move_task(task, None)

    def _save_waits(self, changes: Changes) -> None:
        self.state.waits.update(changes.waits)
        self._indexes.add_waits(changes.waits.values())
        for awaited, awaiter in changes.dropped_waits:
            self._drop_wait(awaited, awaiter)
        for awaiter in changes.forgotten:
            for awaited in list(self._indexes.awaited.of(awaiter)):
                self._drop_wait(awaited, awaiter)

    def _drop_wait(self, awaited: str, awaiter: str) -> None:
        self.state.waits.pop((awaited, awaiter), None)
        self._indexes.drop_wait(awaited, awaiter)

    def _drop_listeners(self, listeners: Iterable[Listener]) -> None:
        for listener in list(listeners):
            self.state.listeners.discard(listener)
            self._indexes.drop_listener(listener)

    def _put_message(self, key: MessageKey, message: Message | None) -> None:
        self._indexes.move_message(key, self.state.messages.get(key), message)
        _apply(self.state.messages, {key: message})

    def _silence(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            heard = self._indexes.heard.of(address)
            self._drop_listeners(Listener(awaited, address) for awaited in heard)
            for key in list(self._indexes.outbox.get(address, ())):
                self._put_message(key, None)
            self._indexes.outbox.pop(address, None)

    def _save_holders(self, changes: Changes) -> None:
        holders = self.state.holders
        for key, holder in changes.holders.items():
            held = holders[key].held if key in holders else 0
            holders[key] = replace(holder, held=held)
        for key, by in changes.held.items():
            if key in holders:
                holders[key] = replace(holders[key], held=holders[key].held + by)
        for key in changes.deleted_holders:
            holders.pop(key, None)

    # --- time ----------------------------------------------------------------------------

    def store_time(self) -> Millis:
        return self._time

    def kept_secret(self, name: str, fresh: str) -> str:
        return self._secrets.setdefault(name, fresh)

    def due(self, now: Millis, limit: int, wall: Millis | None = None) -> list[Tick]:
        wall = now if wall is None else wall
        found = list(due(self, now, limit, wall, self._calendar))
        return found or list(due_last(self, now, self._settings))

    def overdue_promises(self, now: Millis, limit: int) -> tuple[str, ...]:
        return until(self._indexes.timeouts, now, limit)

    def overdue_tails(self, now: Millis, limit: int) -> tuple[str, ...]:
        return until(self._indexes.tails, now, limit)

    def overdue_limits(self, now: Millis, limit: int) -> list[Limit]:
        armed = ((each.next_at, each) for each in self.state.limits.values())
        due = [(at, each.name, each) for at, each in armed if at is not None and at <= now]
        return [each for _, _, each in sorted(due, key=lambda found: found[:2])[:limit]]

    def used_limits(self, start: str, after: str, limit: int) -> list[str]:
        names = (name for name in sorted(self.state.limits) if name > after)
        return [n for n in names if n.startswith(start) and not n.startswith(PRIVATE)][:limit]

    def parked_under(self, name: str, after: str, limit: int) -> list[str]:
        parked = (t for t in self.state.tasks.values() if t.id > after and is_parked(t))
        named = (t.id for t in parked if any(is_meant(each, name) for each in t.limit_names))
        return sorted(named)[:limit]

    def overdue_remains(self, now: Millis, limit: int) -> tuple[str, ...]:
        return until(self._indexes.remains, now, limit)

    def pruning(self, pruning_id: str) -> Pruning | None:
        return self.state.pruning.get(pruning_id)

    def ended_keys(self, look: Look, until: Millis, limit: int) -> list[Key]:
        keys = self._past_holders() if look.stage == "holders" else self._indexes.ended[look.stage]
        start = (each for each in keys if each > look.after or (look.tree and each == look.after))
        return list(islice(takewhile(lambda each: each[0] <= until, start), limit))

    def _past_holders(self) -> list[Key]:
        return sorted((h.expires_at, h.pid) for h in self.state.holders.values() if is_past(h))

    def ids_below(self, roots: Sequence[str], after: str, limit: int) -> dict[str, list[str]]:
        below = self._indexes.below
        return {
            root: list(islice((each for each in below.of(root) if each > after), limit))
            for root in roots
        }

    def existing(self, ids: Sequence[str]) -> set[str]:
        return {key for key in ids if key in self.state.promises}

    def has_room(self) -> bool:
        return False

    def nodes_of(self, root_id: str, limit: int) -> list[str]:
        awaited = self._indexes.awaited.of(root_id)
        return list(
            islice((key for key in awaited if _ends_with(self.state.waits[key, root_id])), limit)
        )

    def overdue_tasks(self, now: Millis, limit: int) -> list[tuple[TaskState, str]]:
        return [
            (self.state.tasks[key].state, key) for key in until(self._indexes.wakes, now, limit)
        ]

    def overdue_schedules(self, now: Millis, limit: int) -> list[Schedule]:
        found = [each for each in self.state.schedules.values() if each.next_run_at <= now]
        return sorted(found, key=lambda each: (each.next_run_at, each.id))[:limit]

    def overdue_holders(self, now: Millis, limit: int) -> tuple[str, ...]:
        living = [h for h in self.state.holders.values() if h.is_alive and h.expires_at <= now]
        return _first(((h.expires_at, h.pid) for h in living), limit)

    def gone_holders(self) -> list[Holder]:
        return [each for each in self.state.holders.values() if not each.is_alive and each.held > 0]

    def held_ids(self, holder: Holder, limit: int) -> list[str]:
        return self._held_ids((holder.pid, holder.incarnation))[:limit]

    def _held_ids(self, key: HeldKey) -> list[str]:
        return list(self._indexes.held.of(key))

    def earliest(self) -> Millis:
        return min(self._deadlines(), default=FAR)

    def _deadlines(self) -> Iterator[Millis]:
        indexes = self._indexes
        if (pruning_at := next_pruning(self, self._settings)) is not None:
            yield pruning_at
        for index in (indexes.timeouts, indexes.tails, indexes.remains, indexes.wakes):
            if (soonest := first(index)) is not None:
                yield soonest
        for holder in self.state.holders.values():
            if holder.is_alive:
                yield holder.expires_at
            elif holder.held > 0:
                yield 0
        for limit in self.state.limits.values():
            if limit.next_at is not None:
                yield limit.next_at

    def next_occurrence(self) -> Millis:
        return min((each.next_run_at for each in self.state.schedules.values()), default=FAR)

    def living_pids(self) -> tuple[str, ...]:
        return tuple(holder.pid for holder in self.state.holders.values() if holder.is_alive)

    # --- other processes -----------------------------------------------------------------

    def stored_promises(self, ids: Collection[str]) -> list[Promise]:
        return [self.state.promises[key] for key in ids if key in self.state.promises]

    # --- the outbox ----------------------------------------------------------------------

    def messages(self, offer: OfferMessages, now: Millis = FAR) -> list[Message]:
        del now
        wanted = {
            (m.address, m.id, m.kind): m
            for m in self.state.messages.values()
            if offer.start <= m.address < offer.end
        }
        return [m for place, m in sorted(wanted.items()) if place > offer.after][: offer.limit]

    def open_reader(self, _: Callable[[], None]) -> "MemoryReader":
        return MemoryReader(self)

    def dump(self) -> State:
        """A copy that later writes do not reach: rows are frozen, the dictionaries are not.

        May be called from any thread; the same copy is given to all until something is written.
        """
        with self._lock:
            if self._copy is None:
                self._copy = State(*(copy(each) for each in astuple(self._state)))
            return self._copy

    def clear(self) -> None:
        self.state = State()

    def close(self) -> None:
        """Nothing is open."""


class MemoryReader:
    """See `api.StoreReader`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @contextmanager
    def snapshot(self, seconds: float) -> Generator[MemoryReads]:
        """No database keeps anything for it, so it may take its time."""
        del seconds
        yield MemoryReads(self._store.dump())

    def close(self) -> None:
        """Nothing is open."""


def _first(keyed: Iterable[tuple[Millis | None, str]], limit: int) -> tuple[str, ...]:
    ordered = sorted((at or 0, key) for at, key in keyed)
    return tuple(key for _, key in ordered[:limit])


def _ends_with(wait: Wait) -> bool:
    """What a cancelled awaiter may take with it."""
    return wait.counts or wait.is_child


def _apply(rows: dict[K, V], changes: dict[K, V | None]) -> None:
    for key, row in changes.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
