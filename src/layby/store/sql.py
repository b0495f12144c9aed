"""The store on SQL: rows in, rows out, a constant number of statements per batch."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec

from layby.core import endings
from layby.core.address import inbox_of
from layby.core.changes import Changes
from layby.core.due import due, due_last, next_pruning
from layby.core.endings import Key, Look
from layby.core.footprint import Footprint
from layby.core.lane import Lane, Waiter
from layby.core.limit import Limit
from layby.core.model import (
    FAR,
    Holder,
    Listener,
    Message,
    Millis,
    Promise,
    Pruning,
    TaskState,
    Wait,
    lane_name,
)
from layby.core.queries import (
    OfferMessages,
)
from layby.core.rows import Rows
from layby.core.schedule_row import MOST_OPEN_RUNS, Schedule, run_ids_between
from layby.core.settings import Calendar, Settings
from layby.core.ticks import Tick
from layby.store import indexed_tags
from layby.store.bulk import Bulk, Wide
from layby.store.dialect import Dialect
from layby.store.page_bounds import (
    CHUNK,
    PARAMS,
    UNWEIGHED,
    WHOLE,
    Pair,
    Shown,
    Weigh,
    filled,
    fitting,
    light_enough,
    only_compared,
    shorten,
)
from layby.store.ready_queue import ReadyQueue
from layby.store.session import InLane, Reading, packed
from layby.store.sql_reads import SqlReads
from layby.store.statements import LAST, Statements, naming
from layby.store.tables import (
    FLOWS,
    HOLDERS,
    LIMITS,
    LISTENERS,
    MESSAGES,
    PROMISE_MOVES,
    PROMISES,
    PRUNING,
    SCHEDULES,
    TASK_MOVES,
    TASKS,
    WAITS,
    getter,
)
from layby.store.unshared import Unshared

K = TypeVar("K")

_pairs = msgspec.json.Decoder(list[Pair])
_waits = msgspec.json.Decoder(list[Wait])
_listeners = msgspec.json.Decoder(list[Listener])
_messages = msgspec.json.Decoder(list[Message])
_holders = msgspec.json.Decoder(list[Holder])
_schedules = msgspec.json.Decoder(list[Schedule])
_pruning = msgspec.json.Decoder(list[Pruning])
_keys = msgspec.json.Decoder(list[Key])
_limits = msgspec.json.Decoder(list[Limit])
_texts = msgspec.json.Decoder(list[str])
_keyed = msgspec.json.Decoder(list[tuple[str, str]])
_weights = msgspec.json.Decoder(list[tuple[str, int]])
_states = msgspec.json.Decoder(list[tuple[TaskState, str]])

_promise_cells = getter(PROMISES.columns)
_task_cells = getter(TASKS.columns[1:])
_promise_move = getter((PROMISES.columns[0], *PROMISE_MOVES))
_task_move = getter((TASKS.columns[0], *TASK_MOVES))


class SqlStore(Unshared, SqlReads):
    """What the writer asks of a database; who only looks at a file reads lists by it too."""

    def __init__(
        self,
        connection: Any,
        dialect: Dialect,
        settings: Settings,
        calendar: Calendar,
        name: str = "",
    ) -> None:
        """`name` is what failures call this store: its path, or its address."""
        super().__init__(dialect.session(connection), Statements(dialect), name)
        self._connection = connection
        self._settings = settings
        self._calendar = calendar
        self._queue = ReadyQueue(self._session, dialect, settings.roots_per_take)

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - a file's
        return self._within()

    # --- load ----------------------------------------------------------------------------

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        rows = Rows(self._settings, self._calendar, now)
        ids = set(footprint.ids)
        queued = self._load_ready(rows, footprint, now) if footprint.takes else set[str]()
        if footprint.branches_of or footprint.branches:
            ids |= self._shorten_branches(rows, self._load_branches(rows, footprint))
        if footprint.leases_of:
            ids |= self._load_leases(rows, footprint)
        if footprint.pids:
            self._load_holders(rows, footprint)
        if footprint.schedules:
            self._load_schedules(rows, footprint)
            ids |= footprint.started_by(rows.schedules)
        ids |= self._absent(footprint.maybe_new)
        if ids:
            self._load_promises(rows, ids)
        for schedule_id in footprint.runs_of:
            rows.open_runs[schedule_id] = self._open_runs(schedule_id)
            queued |= rows.open_runs[schedule_id]
        queued |= footprint.beside
        self._load_renewed(rows, footprint)
        renewed = rows.leased(footprint.renewals)
        queued |= renewed & footprint.valueless
        if beside := queued - rows.known:  # only handed out: their awaiters are not touched
            self._load_pairs(rows, beside)
        if renewed := renewed - rows.known:
            self._load_lean(rows, renewed)
        self._load_triggers(rows, footprint)
        if footprint.exits:
            self._add_holders(rows, rows.pids_to_tell(footprint))
        if names := rows.unknown_limits(footprint):
            self._load_limits(rows, footprint, names)
        if roots := rows.unknown_roots(footprint):
            self._load_pairs(rows, roots)
        if pairs := rows.standing_pairs(footprint):
            self._load_standing(rows, pairs)
        if valueless := footprint.valueless - rows.known:
            self._load_valueless(rows, valueless, footprint.compared)
        self._load_created(rows, footprint)
        if footprint.look is not None or footprint.lean:
            self._load_prunable(rows, footprint, now)
        return rows

    def weigh(self, ids: Sequence[str]) -> dict[str, int]:
        try:
            return dict(self._session.read_alone(self._sql.dialect.weights, _weights, packed(ids)))
        except self._session.errors as error:
            raise self._session.explained(error, self._name) from error

    def _load_prunable(self, rows: Rows, footprint: Footprint, now: Millis) -> None:
        """Last, so that rows which others need whole are not overwritten with lean ones."""
        ids, pids = self._find_prunable(rows, footprint, now)
        self._add_holders(rows, pids - rows.holders.keys())
        self._load_awaited(rows, ids)
        beside = packed(sorted(ids - rows.known))
        rows.known |= ids
        add_pairs(rows, self._one(self._sql.bare_pairs, _pairs, beside))

    def _find_prunable(
        self, rows: Rows, footprint: Footprint, now: Millis
    ) -> tuple[set[str], set[str]]:
        """Ids of promises, and pids of holders."""
        look = footprint.look
        if look is None:
            return set(footprint.lean), set()
        rows.found = found = endings.find(self, look, max(now, footprint.until))
        pids = {pid for _, pid in found.keys if look.stage == "holders"}
        return footprint.lean | found.ids(look), pids

    def _load_awaited(self, rows: Rows, ids: set[str]) -> None:
        texts = packed(sorted(ids))
        rows.awaited = set(self._one(self._sql.awaited_ids, _texts, texts, texts, texts))

    def _load_promises(self, rows: Rows, ids: set[str]) -> None:
        texts = packed(sorted(ids))
        limit = self._settings.hop_limit + len(ids)  # some may be dropped during the batch
        pairs, waits, listeners = self._session.read_together(
            [
                (self._sql.pairs, _pairs, (texts,)),
                (self._sql.waits, _waits, (texts, limit)),
                (self._sql.listeners, _listeners, (texts, limit)),
            ]
        )
        rows.known |= ids
        rows.whole |= ids
        add_pairs(rows, self._with_large_texts(pairs))
        rows.add_first_listeners(ids, listeners, limit)
        if waits:
            rows.add_waits(waits)
            cut_waits(rows, ids, limit, self._weigh)
            self._load_hop(rows)

    def _load_triggers(self, rows: Rows, footprint: Footprint) -> None:
        """What deferred tasks wait for, and what they are resumed with: their rows name it."""
        changed, read = rows.unknown_triggers(footprint)
        while changed or read:
            if changed:
                self._load_promises(rows, changed)
            if read := rows.unread(read):
                self._load_pairs(rows, read)
            changed, read = rows.unknown_triggers(footprint)

    def _load_limits(self, rows: Rows, footprint: Footprint, names: set[str]) -> None:
        """Limits of the loaded tasks, and who may be let in under them. Those may have others."""
        while names:
            rows.add_limits(names, self._one(self._sql.limits, _limits, packed(sorted(names))))
            waiting = self._in_lanes(rows, names, footprint)
            if unknown := {task_id for *_, task_id in waiting} - rows.known:
                self._load_pairs(rows, unknown)
                self._load_triggers(rows, footprint)
            names = rows.unknown_limits(footprint)

    def _in_lanes(self, rows: Rows, names: set[str], footprint: Footprint) -> list[InLane]:
        """The first ones in each lane of these limits."""
        most = rows.lane_length(names, footprint)
        at = {"gates": packed(sorted(names)), "most": most}
        found = self._session.in_lanes(self._sql.dialect.lanes, at)
        rows.lanes |= lanes_of(names, found, most)
        return found

    def _load_standing(self, rows: Rows, pairs: set[tuple[str, str]]) -> None:
        """Those of these waits that exist, where not all waits were loaded."""
        bulk = self._sql.standing_waits
        standing = self._one(bulk.text, _waits, self._session.packed(bulk, sorted(pairs)))
        rows.standing = {(wait.awaited, wait.awaiter): wait for wait in standing}

    def _load_hop(self, rows: Rows) -> None:
        """The tasks that wait for the loaded promises: a settlement may resume them."""
        hop = {awaiter for waits in rows.waits.values() for awaiter in waits} - rows.known
        if hop:
            self._load_pairs(rows, hop)

    def _load_pairs(self, rows: Rows, ids: set[str]) -> None:
        """Without the tasks that wait for them."""
        rows.known |= ids
        rows.valueless -= ids
        add_pairs(rows, self._pairs_of(ids))

    def _load_lean(self, rows: Rows, ids: set[str]) -> None:
        """Without params and values: whatever needs these loads the rows again."""
        rows.known |= ids
        rows.valueless |= ids
        add_pairs(rows, self._one(self._sql.lean_pairs, _pairs, packed(sorted(ids))))

    def _load_valueless(self, rows: Rows, ids: set[str], compared: Collection[str]) -> None:
        """Nearly last, like what is pruned, and for the same reason; a few at a time."""
        rows.known |= ids
        left, same = sorted(ids), {each: each for each in compared}
        while left:
            some, left = left[:CHUNK], left[CHUNK:]
            pairs = self._one(self._sql.valueless_pairs, _pairs, packed(some))
            heavy = [pair for pair in pairs if not pair[0].param]
            add_pairs(rows, _only_compared(pairs, same))
            for pair in filled(self._fill, self._as_long_as(compared, heavy), PARAMS):
                add_pairs(rows, _only_compared([pair], same))

    def _as_long_as(self, compared: Collection[str], heavy: list[Pair]) -> list[Pair]:
        """Those whose params may be among these."""
        del compared
        return heavy

    def _absent(self, ids: set[str]) -> set[str]:
        """Those that a step may create."""
        if not ids:
            return ids
        return ids.difference(self._one(self._sql.created, _texts, packed(sorted(ids))))

    def _load_created(self, rows: Rows, footprint: Footprint) -> None:
        """That they exist is all that is read of them: what others need is loaded by now."""
        if there := footprint.maybe_new - rows.known:
            rows.known |= there
            add_pairs(rows, self._one(self._sql.bare_pairs, _pairs, packed(sorted(there))))

    def _pairs_of(self, ids: Collection[str]) -> list[Pair]:
        return self._with_large_texts(self._one(self._sql.pairs, _pairs, packed(sorted(ids))))

    def _with_large_texts(self, pairs: list[Pair], shown: Shown = WHOLE) -> list[Pair]:
        """As part of a JSON they would be escaped and copied again and again."""
        heavy = [pair for pair in pairs if not pair[0].param]
        if not heavy:
            return pairs
        return [pair for pair in pairs if pair[0].param] + self._fill(heavy, shown, FAR)

    def _load_ready(self, rows: Rows, footprint: Footprint, now: Millis) -> set[str]:
        """Look at the queue once for all takes that ask for the same, as far as they can be served.

        Rows may leave the queue during the batch, by other commands or by takes that ask for
        some of the same names, so that number of rows is fetched in addition.
        """
        until = max(now, footprint.until)
        for key in footprint.takes:
            rows.ready[key] = found = self._queue.find(key, footprint, until)
            shorten(found, self._weigh)
        return rows.queued_ids()

    def _list_branches(self, footprint: Footprint) -> Reading:
        """Each promise of a branch, with the branch."""
        branches = footprint.all_branches()
        named, of = packed(sorted(branches)), packed(sorted(footprint.branches_of))
        return self._sql.ids_of_branches, _keyed, (named, of, self._settings.preload_limit)

    def _load_branches(self, rows: Rows, footprint: Footprint) -> set[str]:
        statement, decoder, arguments = self._list_branches(footprint)
        rows.branches = {branch: [] for branch in footprint.all_branches()}
        for branch, promise_id in self._one(statement, decoder, *arguments):
            rows.branches.setdefault(branch, []).append(promise_id)
        return {promise_id for ids in rows.branches.values() for promise_id in ids}

    def _shorten_branches(self, rows: Rows, listed: set[str]) -> set[str]:
        """Those of the listed promises that are preloaded: nobody relies on all of them."""
        shown = set(self._light_enough(sorted(listed)))
        for branch, ids in rows.branches.items():
            rows.branches[branch] = [each for each in ids if each in shown]
        return shown

    def _light_enough(self, ids: Sequence[str]) -> Sequence[str]:
        return light_enough(ids, self._weigh)

    def _weigh(self, ids: Sequence[str]) -> dict[str, int]:
        """Within a transaction."""
        return dict(self._one(self._sql.dialect.weights, _weights, packed(ids)))

    def _list_leases(self, footprint: Footprint) -> Reading:
        """Each task that a pid has leased, with the pid."""
        return self._sql.leased, _keyed, (packed(sorted(footprint.leases_of)),)

    def _load_leases(self, rows: Rows, footprint: Footprint) -> set[str]:
        statement, decoder, arguments = self._list_leases(footprint)
        rows.leases_of = {pid: [] for pid in footprint.leases_of}
        for pid, task_id in self._one(statement, decoder, *arguments):
            rows.leases_of[pid].append(task_id)
        return {task_id for ids in rows.leases_of.values() for task_id in ids}

    def _list_renewed(self, footprint: Footprint) -> list[Reading]:
        """Each task whose lease is renewed, with the pid; of each pid by itself."""
        text, most = self._sql.leased_after, footprint.renewed
        return [(text, _keyed, (pid, after, most)) for pid, after in footprint.renewals.items()]

    def _load_renewed(self, rows: Rows, footprint: Footprint) -> set[str]:
        """What was listed, of which fewer may be renewed now."""
        if not footprint.renewals:
            return set()
        listed = self._session.read_together(self._list_renewed(footprint))
        every = [task_id for found in listed for _, task_id in found]
        heavy = self._weigh(every) if len(every) > UNWEIGHED else {}
        for pid, found in zip(footprint.renewals, listed, strict=True):
            ids = [task_id for _, task_id in found]
            light = fitting(heavy.get(each, 0) for each in ids)  # rows are written as a whole
            is_cut = light < len(ids) or len(ids) >= footprint.renewed
            rows.add_leases(pid, ids[:light], is_cut=is_cut)
        return set(every)

    def _load_holders(self, rows: Rows, footprint: Footprint) -> None:
        self._add_holders(rows, footprint.pids)
        self._load_notices(rows, footprint)

    def _load_notices(self, rows: Rows, footprint: Footprint) -> None:
        rows.notices = {pid: [] for pid in footprint.notices}
        inboxes = {
            inbox_of(holder.group, pid): pid
            for pid in footprint.notices
            for holder in rows.holders[pid].values()
        }
        if inboxes:
            found = self._one(self._sql.notices, _messages, packed(sorted(inboxes)))
            for notice in sorted(found, key=lambda each: each.key):
                rows.notices[inboxes[notice.address]].append(notice)

    def _add_holders(self, rows: Rows, pids: set[str]) -> None:
        rows.holders |= {pid: {} for pid in pids}
        for holder in self._one(self._sql.holders, _holders, packed(sorted(pids))):
            rows.holders[holder.pid][holder.incarnation] = holder

    def _load_schedules(self, rows: Rows, footprint: Footprint) -> None:
        rows.schedules = dict.fromkeys(footprint.schedules)
        ids = packed(sorted(footprint.schedules))
        for schedule in self._one(self._sql.schedules, _schedules, ids):
            rows.schedules[schedule.id] = schedule

    def _open_runs(self, schedule_id: str) -> set[str]:
        tag = indexed_tags.stored(schedule_id)
        between = run_ids_between(schedule_id)
        return set(self._one(self._sql.open_runs, _texts, *between, tag, MOST_OPEN_RUNS))

    # --- save ----------------------------------------------------------------------------

    def save(self, changes: Changes, now: Millis = 0) -> None:
        sql = self._sql
        self._save_time(now)
        if changes.deleted:
            self._delete_promises(changes)
        self._save_promises(changes)
        self._write(sql.put_waits, changes.waits.values())
        self._write(sql.drop_waits, changes.dropped_waits)
        self._write(sql.forget_waits, changes.forgotten)
        self._save_listeners(changes)
        if changes.messages:
            self._put_messages([m for m in changes.messages.values() if m is not None], now)
            self._write(sql.drop_messages, _gone(changes.messages))
        self._save_holders(changes)
        if changes.held:
            self._write(sql.count_held, [(*key, by) for key, by in changes.held.items() if by])
        self._write(sql.drop_holders, changes.deleted_holders)
        if changes.pruning:
            there = [each for each in changes.pruning.values() if each is not None]
            self._write(sql.put_pruning, there)
            self._write(sql.drop_pruning, _gone(changes.pruning))
        if changes.limits:
            self._save_limits([each for each in changes.limits.values() if each is not None])
            self._write(sql.drop_limits, _gone(changes.limits))
        self._write(sql.put_flows, changes.flows.values())
        if changes.schedules:
            self._save_schedules([each for each in changes.schedules.values() if each is not None])
            self._write(sql.drop_schedules, _gone(changes.schedules))

    def _delete_promises(self, changes: Changes) -> None:
        self._write(self._sql.delete_promises, sorted(changes.deleted))
        pruned = changes.deleted.values()
        self._write(self._sql.drop_tags, [tag for row in pruned for tag in indexed_tags.of(row)])

    def _save_listeners(self, changes: Changes) -> None:
        sql = self._sql
        self._write(sql.silence_listeners, changes.silenced)
        self._write(sql.silence_messages, changes.silenced)
        self._write(sql.put_listeners, changes.listeners)
        self._write(sql.drop_listeners, changes.dropped_listeners)
        self._write(sql.drop_delivered, changes.delivered)

    def _save_time(self, now: Millis) -> None:
        self._session.execute(self._sql.put_store_time, (now, now))

    def _put_messages(self, messages: list[Message], now: Millis) -> None:
        del now
        self._write(self._sql.put_messages, messages)

    def _save_holders(self, changes: Changes) -> None:
        self._write(self._sql.put_holders, changes.holders.values())

    def _save_limits(self, limits: list[Limit]) -> None:
        self._write(self._sql.put_limits, limits)

    def _save_schedules(self, schedules: list[Schedule]) -> None:
        self._write(self._sql.put_schedules, schedules)

    def _save_promises(self, changes: Changes) -> None:
        """Those that are new in the order of their ids, as everybody else would insert them.

        Of what was pruned the row is gone, so what stays of it is inserted, not adopted.
        """
        sql, new = self._sql, changes.born | changes.adopted
        if new:
            adopted = changes.adopted - changes.deleted.keys()
            self._write_wide(sql.insert_promises, _whole(changes, sorted(new - adopted)))
            self._write_wide(sql.adopt_promises, _whole(changes, sorted(adopted)))
            born = [changes.promises[key] for key in sorted(new)]
            self._write(sql.insert_tags, [tag for p in born for tag in indexed_tags.of(p)])
        promises = [_promise_move(row) for key, row in changes.promises.items() if key not in new]
        self._write_wide(sql.move_promises, promises)
        moved = [changes.promises[key] for key in sorted(changes.moved - new)]
        self._write_wide(sql.date_promises, [(each.id, each.timeout_at) for each in moved])
        tasks = [_task_move(row) for key, row in changes.tasks.items() if key not in new]
        self._write_wide(sql.move_tasks, tasks)

    def _write_wide(self, wide: Wide, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._session.write_wide(wide, rows)

    def _write(self, bulk: Bulk, rows: Collection[Any]) -> None:
        if rows:
            self._session.write(bulk, rows if isinstance(rows, list) else list(rows))

    # --- time ----------------------------------------------------------------------------

    def store_time(self) -> Millis:
        return self._session.row(self._sql.store_time)[0]

    def kept_secret(self, name: str, fresh: str) -> str:
        with self.transaction():
            self._session.execute(self._sql.keep, (name, fresh))
            return self._session.row(self._sql.kept, (name,))[0]

    def due(self, now: Millis, limit: int, wall: Millis | None = None) -> list[Tick]:
        wall = now if wall is None else wall
        found = list(due(self, now, limit, wall, self._calendar))
        return found or list(due_last(self, now, self._settings))

    def overdue_promises(self, now: Millis, limit: int) -> list[str]:
        return [*self._light_enough(self._one(self._sql.due_promises, _texts, now, limit))]

    def overdue_tails(self, now: Millis, limit: int) -> list[str]:
        return self._one(self._sql.due_tails, _texts, now, limit)

    def nodes_of(self, root_id: str, limit: int) -> list[str]:
        return [*self._light_enough(self._one(self._sql.nodes_of, _texts, root_id, limit))]

    def overdue_tasks(self, now: Millis, limit: int) -> list[tuple[TaskState, str]]:
        found = self._one(self._sql.due_tasks, _states, now, limit)
        return found[: len(self._light_enough([task_id for _, task_id in found]))]

    def overdue_schedules(self, now: Millis, limit: int) -> list[Schedule]:
        return self._fill_schedules(self._one(self._sql.due_schedules, _schedules, now, limit))

    def overdue_holders(self, now: Millis, limit: int) -> list[str]:
        return self._one(self._sql.due_holders, _texts, now, limit)

    def gone_holders(self) -> list[Holder]:
        return self._one(self._sql.gone_holders, _holders)

    def held_ids(self, holder: Holder, limit: int) -> list[str]:
        held = self._one(self._sql.held_ids, _texts, holder.incarnation, holder.pid, limit)
        return [*self._light_enough(held)]

    def overdue_limits(self, now: Millis, limit: int) -> list[Limit]:
        return self._one(self._sql.due_limits, _limits, now, limit)

    def used_limits(self, start: str, after: str, limit: int) -> list[str]:
        return self._one(self._sql.limit_names, _texts, after, start, start + LAST, limit)

    def parked_under(self, name: str, after: str, limit: int) -> list[str]:
        return self._one(self._sql.parked_under, _texts, after, naming(name), limit)

    def overdue_remains(self, now: Millis, limit: int) -> list[str]:
        return self._one(self._sql.due_remains, _texts, now, limit)

    def pruning(self, pruning_id: str) -> Pruning | None:
        return next(iter(self._one(self._sql.pruning, _pruning, pruning_id)), None)

    def ended_keys(self, look: Look, until: Millis, limit: int) -> list[Key]:
        stages = self._sql.stages_after if look.tree is None else self._sql.stages_from
        return self._one(stages[look.stage], _keys, *look.after, until, limit)

    def ids_below(self, roots: Sequence[str], after: str, limit: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        wanted = (packed(roots), after, after, limit - 1)
        for root, promise_id in sorted(self._one(self._sql.ids_below, _keyed, *wanted)):
            found.setdefault(root, []).append(promise_id)
        return found

    def existing(self, ids: Sequence[str]) -> set[str]:
        return set(self._one(self._sql.existing, _texts, packed(ids)))

    def has_room(self) -> bool:
        return False  # PostgreSQL sees to that by itself

    def earliest(self) -> Millis:
        found: Sequence[int | None] = self._session.row(self._sql.earliest)
        deadlines = (*found, next_pruning(self, self._settings))
        return min((each for each in deadlines if each is not None), default=FAR)

    def next_occurrence(self) -> Millis:
        found: Millis | None = self._session.row(self._sql.next_occurrence)[0]
        return FAR if found is None else found

    def living_pids(self) -> tuple[str, ...]:
        return tuple(self._one(self._sql.living_pids, _texts))

    # --- other processes -----------------------------------------------------------------

    def stored_promises(self, ids: Collection[str]) -> list[Promise]:
        found = self._pairs_of(ids)
        return [promise for promise, _ in found]

    # --- the rest ------------------------------------------------------------------------

    def messages(self, offer: OfferMessages, now: Millis = FAR) -> list[Message]:
        del now
        after = max(offer.after, (offer.start, "", ""))  # with two bounds it reads all between
        return self._one(self._sql.outbox, _messages, *after, offer.end, offer.limit)

    def clear(self) -> None:
        with self.transaction():
            for table in ("promises", "tags", *(t.name for t in _SIDE_TABLES)):
                self._session.execute(f"DELETE FROM {table}")


_SIDE_TABLES = (WAITS, LISTENERS, MESSAGES, HOLDERS, SCHEDULES, FLOWS, PRUNING, LIMITS)


def _whole(changes: Changes, ids: Iterable[str]) -> list[tuple[Any, ...]]:
    """Promises with all their cells, and those of their tasks if they have one."""
    promises, tasks = changes.promises, changes.tasks
    return [
        (*_promise_cells(promises[key]), *_task_cells(tasks[key]))
        if key in tasks
        else _promise_cells(promises[key])
        for key in ids
    ]


def _gone(rows: Mapping[K, object]) -> list[K]:
    """Keys of what is to be deleted."""
    return [key for key, row in rows.items() if row is None]


def _only_compared(pairs: Iterable[Pair], compared: Mapping[str, str]) -> Iterator[Pair]:
    return ((only_compared(promise, compared), task) for promise, task in pairs)


def add_pairs(rows: Rows, pairs: Iterable[Pair]) -> None:
    for promise, task in pairs:
        rows.promises[promise.id] = promise
        if task is not None:
            rows.tasks[task.id] = task


def lanes_of(
    names: Iterable[str], found: Iterable[InLane], most: int
) -> dict[str, dict[str, Lane]]:
    """By limit and lane; each lane has at most so many."""
    entries: dict[str, dict[str, list[Waiter]]] = {name: {} for name in names}
    for gate, group, name, place, task_id in found:
        entries[gate].setdefault(lane_name(group, name), []).append((place, task_id))
    return {
        gate: {lane: Lane(sorted(waiting), most) for lane, waiting in by_lane.items()}
        for gate, by_lane in entries.items()
    }


def cut_waits(rows: Rows, ids: Iterable[str], limit: int, weigh: Weigh) -> None:
    """Keep the first `limit` waits for each of these, and those of tasks that may be loaded
    together, and remember where there are more.
    """
    waiting = {awaited: waits for awaited in ids if (waits := rows.waits.get(awaited))}
    heavy = _too_heavy(rows, waiting, weigh)
    for awaited, waits in waiting.items():
        kept = [key for key in sorted(waits)[:limit] if key not in heavy]
        if len(kept) < len(waits):
            rows.waits[awaited] = {key: waits[key] for key in kept}
            rows.more_waits.add(awaited)


def _too_heavy(rows: Rows, waiting: Mapping[str, Mapping[str, Wait]], weigh: Weigh) -> set[str]:
    """Of the tasks that wait for these. Those of the first promise come first, so it gets on.

    Who waits for the end of a body may stay for long, and must not be in the way of others.
    """
    hop = [
        key
        for awaited in sorted(waiting)
        for key, wait in sorted(waiting[awaited].items())
        if key not in rows.known and not wait.is_for_end
    ]
    unknown = list(dict.fromkeys(hop))
    return set(unknown[len(light_enough(unknown, weigh)) :])
