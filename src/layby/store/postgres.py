"""Opens a PostgreSQL database as a store that several processes write at once."""

import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from layby.core.changes import Changes
from layby.core.footprint import Footprint
from layby.core.limit import Limit
from layby.core.model import FAR, HeldKey, Message, Millis
from layby.core.queries import OfferMessages
from layby.core.rows import Rows
from layby.core.schedule_row import Schedule
from layby.core.settings import Calendar, Settings
from layby.errors import StoreError
from layby.store.announcement import EVERYTHING, Announcement
from layby.store.api import Heard, LeasedMessage, Wants, leased
from layby.store.locked_rows import Listed, LockedRows, awaiters_in, most_to_lock
from layby.store.message_leases import MessageLeases
from layby.store.postgres_answers import AnswerWatch
from layby.store.postgres_clock import DatabaseClock, Elapsed
from layby.store.postgres_connection import BY_INDEX, Connector
from layby.store.postgres_dialect import PostgresDialect
from layby.store.postgres_migrating import prepare_schema
from layby.store.postgres_session import PostgresSession
from layby.store.postgres_signals import VOUCHED, Signals
from layby.store.postgres_snapshots import PostgresSnapshots
from layby.store.sql import SqlStore, add_pairs, cut_waits

_DIALECT: Final = PostgresDialect()
_KEYS: Final = msgspec.json.Decoder(list[tuple[str, str]])
_FORGET_TIMES: Final = "DELETE FROM server_times WHERE at < ?"
_DAY_MS: Final = 86_400_000
_SAVE_TIME: Final = """
    INSERT INTO server_times (server, at) VALUES (?, ?)
    ON CONFLICT (server) DO UPDATE SET at = greatest(server_times.at, excluded.at)
"""
STORED_TIME: Final = "SELECT COALESCE(max(at), 0) FROM server_times"
NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"


class PostgresStore(SqlStore):
    """What it reads to change it, it locks (see `locked_rows`)."""

    is_shared = True

    def __init__(
        self, url: str, settings: Settings, calendar: Calendar, *, durability: str = "full"
    ) -> None:
        """`durability`: normal does not wait for the disk of the database."""
        is_full = durability == "full"
        prepare_schema(url)
        self._watch = AnswerWatch(url)
        commits = {"synchronous_commit": "on" if is_full else "off"}
        connector = Connector(url, self._watch, {**BY_INDEX, **commits})
        super().__init__(connector, _DIALECT, settings, calendar, connector.name)
        assert isinstance(self._session, PostgresSession)
        self._writer = self._session
        self._locked = LockedRows(self._session, self._sql, _DIALECT)
        self._url = url
        self._server = self._writer.server = uuid.uuid4().hex
        self._leases = MessageLeases(self._session, self._sql, self._server)
        self._signals: Signals | None = None
        self._clock: DatabaseClock | None = None

    @contextmanager
    def transaction(self, *, lazily: bool = False) -> Generator[None]:
        with super().transaction():
            if lazily:
                self._writer.commit_lazily()
            yield

    # --- time ----------------------------------------------------------------------------

    def clock_beside(self, elapsed: Elapsed) -> DatabaseClock:
        """The database's clock: from now on it says when commands happen."""
        with self.transaction():
            (now,) = self._session.row(NOW)
            self._session.execute(_FORGET_TIMES, (now - _DAY_MS,))
        self._clock = DatabaseClock(elapsed, now)
        return self._clock

    def store_time(self) -> Millis:
        return self._session.row(STORED_TIME)[0]

    def _save_time(self, now: Millis) -> None:
        self._session.execute(_SAVE_TIME, (self._server, now))

    def _heard(self, now: Millis, there: Millis) -> Millis:
        if self._clock is None:
            return now
        self._clock.heard(there)
        return max(now, there)

    # --- other processes -----------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        if self._signals is not None and not announcement.is_empty:
            self._signals.tell(announcement)

    def share(self, heard: Heard, wants: Wants) -> None:
        self._leases.wants = wants
        self._signals = Signals(self._url, heard, self._watch)

    def open_reader(self, give_way: Callable[[], None]) -> PostgresSnapshots:
        return PostgresSnapshots(self._url, self._sql, self._name, give_way, self._watch)

    def close(self) -> None:
        if self._signals is not None:
            with suppress(StoreError), self.transaction():
                self._leases.release_all()
            self._signals.tell(EVERYTHING)
            self._signals.stop()
        super().close()
        self._watch.stop()

    # --- who is there --------------------------------------------------------------------

    def vouch(self, holder: HeldKey) -> None:
        if self._signals is not None:
            self._signals.hold(holder)

    def vouched(self) -> list[HeldKey]:
        return self._session.read(VOUCHED, _KEYS)

    # --- messages ------------------------------------------------------------------------

    def offered_here(self, changes: Changes) -> list[Message]:
        return self._leases.written(changes)

    def messages(self, offer: OfferMessages, now: Millis = FAR) -> list[Message]:
        return self._leases.free(offer, now)

    def lease_messages(self, messages: Sequence[Message], now: Millis) -> list[LeasedMessage]:
        taken_over, pairs = self._leases.lease(messages, now)
        promises = [promise for promise, _ in self._with_large_texts(pairs)]
        ours = [each for each in messages if each in taken_over]
        return leased(ours, promises, {each for each in ours if taken_over[each]})

    def renew_messages(self, now: Millis) -> list[Message]:
        return self._leases.renew(now)

    def release_messages(self, messages: Sequence[Message]) -> None:
        self._leases.release(messages)

    def _put_messages(self, messages: list[Message], now: Millis) -> None:
        self._write(self._sql.put_leased, self._leases.write(messages, now))

    # --- load ----------------------------------------------------------------------------

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        self._locked.begin()
        if not footprint.locks:
            rows = super().load(footprint, now)
            rows.now = self._heard(now, self._session.row(NOW)[0])
            if not any(p.is_pending and p.timeout_at <= rows.now for p in rows.promises.values()):
                return rows
        return self._load_locked(footprint, now)

    def _load_locked(self, footprint: Footprint, now: Millis) -> Rows:
        """Like `load`, in the order of the locks."""
        rows = Rows(self._settings, self._calendar, now)
        lists, ids = list[Listed](), set(footprint.ids)
        if footprint.branches_of or footprint.branches:
            found = self._load_branches(rows, footprint)
            lists.append((self._list_branches(footprint), found))
            ids |= self._shorten_branches(rows, found)
        if footprint.leases_of:
            found = self._load_leases(rows, footprint)
            lists.append((self._list_leases(footprint), found))
            ids |= found
        listed = self._load_renewed(rows, footprint)
        renewed = rows.leased(footprint.renewals)
        lists += [(reading, listed) for reading in self._list_renewed(footprint)]
        if footprint.schedules:
            self._lock_schedules(rows, footprint)
            ids |= footprint.started_by(rows.schedules)
        ids |= self._absent(footprint.maybe_new)
        rows.open_runs = {each: self._open_runs(each) for each in footprint.runs_of}
        self._lock_promises(rows, ids, footprint, now, lists, renewed)
        if footprint.takes:
            self._lock_ready(rows, footprint, rows.now)
        self._lock_triggers(rows, footprint)
        self._lock_limits(rows, footprint, rows.unknown_limits(footprint))
        ids, pids = self._find_prunable(rows, footprint, now)
        if ids:
            self._lock_lean(rows, ids)
        self._lock_holders(rows, footprint, pids)
        if roots := rows.unknown_roots(footprint):
            self._load_pairs(rows, roots)
        if pairs := rows.standing_pairs(footprint):
            self._load_standing(rows, pairs)
        if unread := rows.valueless & self._may_be_handed_out(rows):
            self._load_pairs(rows, unread)
        self._load_created(rows, footprint)
        return rows

    def _may_be_handed_out(self, rows: Rows) -> set[str]:
        """In this batch: those that stand in a queue, are let in under a limit, or are resumed."""
        lanes = (lane for by_name in rows.lanes.values() for lane in by_name.values())
        let_in = {task_id for lane in lanes for _, task_id in lane.entries}
        return rows.queued_ids() | let_in | awaiters_in(rows)

    def _lock_schedules(self, rows: Rows, footprint: Footprint) -> None:
        found = self._locked.schedules(footprint.schedules, may_wait=footprint.may_wait)
        rows.schedules = {**dict.fromkeys(footprint.schedules), **{each.id: each for each in found}}

    def _lock_promises(
        self,
        rows: Rows,
        ids: set[str],
        footprint: Footprint,
        now: Millis,
        lists: Sequence[Listed],
        renewed: set[str],
    ) -> None:
        limit = self._settings.hop_limit + len(ids)  # some may be dropped during the batch
        beside = {key for found in rows.open_runs.values() for key in found} | footprint.beside
        whole = ids | beside | footprint.also
        valueless = (footprint.valueless | renewed) - whole
        pairs, waits, listeners, there = self._locked.promises(
            ids,
            beside | valueless,
            footprint,
            limit,
            lists,
            footprint.branches_added_to(),
            valueless,
        )
        rows.now = self._heard(now, there)
        rows.known |= whole | valueless
        rows.valueless |= valueless
        rows.whole |= ids
        add_pairs(rows, pairs)
        rows.add_first_listeners(ids, listeners, limit)
        if waits:
            rows.add_waits(waits)
            cut_waits(rows, ids, limit, self._weigh)
            hop = awaiters_in(rows)
            add_pairs(rows, self._locked.hop(hop, footprint.also))
            rows.known |= hop

    def _lock_triggers(self, rows: Rows, footprint: Footprint) -> None:
        """What deferred tasks wait for is named by their rows, so it is locked after them.

        What they only read decides nothing by itself: the lock on what has settled it did.
        """
        changed, read = rows.unknown_triggers(footprint)
        while changed or read:
            limit = self._settings.hop_limit + len(changed)
            pairs, waits, listeners = self._locked.triggers(changed, limit)
            rows.known |= changed
            rows.whole |= changed
            add_pairs(rows, pairs)
            rows.add_first_listeners(changed, listeners, limit)
            rows.add_waits(waits)
            cut_waits(rows, changed, limit, self._weigh)
            hop = awaiters_in(rows)
            add_pairs(rows, self._locked.hop(hop, footprint.also))
            rows.known |= hop
            if read := rows.unread(read):
                self._load_pairs(rows, read)
            changed, read = rows.unknown_triggers(footprint)

    def _lock_ready(self, rows: Rows, footprint: Footprint, now: Millis) -> None:
        """Look at the queue, then lock as much of it as may be handed out."""
        self._load_ready(rows, footprint, now)
        roots = footprint.roots(self._settings.roots_per_take)
        for key, seen in rows.ready.items():
            group, names, prefix, _ = key
            until = max(now, footprint.until)
            at = {"group": group, "now": until, "since": footprint.since, "prefix": prefix}
            most = most_to_lock(footprint, key, roots)
            rows.ready[key], pairs = self._locked.ready(seen, at, names, most)
            add_pairs(rows, pairs)
            rows.known |= {promise.id for promise, _ in pairs}
        if beside := rows.queued_ids() - rows.known:
            self._load_pairs(rows, beside)

    def _lock_limits(
        self, rows: Rows, footprint: Footprint, names: set[str], *, may_wait: bool = True
    ) -> None:
        """Limits of the locked tasks, then those who may be let in under them, as far as they are
        free: whoever comes after one that is not must not pass it.
        """
        if not names:
            return
        rows.add_limits(names, self._locked.limits(names, may_wait=may_wait))
        waiting = {task_id for *_, task_id in self._in_lanes(rows, names, footprint)}
        if unlocked := self._locked.without_locks(waiting):
            add_pairs(rows, self._locked.in_lanes(unlocked))
            rows.known |= unlocked
            self._lock_triggers(rows, footprint)
        taken = self._locked.without_locks(waiting)
        for lanes in rows.lanes.values() if taken else ():
            lanes |= {each: lane.up_to(taken) for each, lane in lanes.items()}
        self._lock_limits(rows, footprint, rows.unknown_limits(footprint), may_wait=False)

    def _lock_lean(self, rows: Rows, ids: set[str]) -> None:
        """Rows that may be pruned. What others have locked is in use, so it is not pruned now."""
        pairs, existing = self._locked.lean(ids)
        rows.known |= ids
        whole = rows.promises.keys()
        add_pairs(rows, [pair for pair in pairs if pair[0].id not in whole])
        self._load_awaited(rows, ids)
        rows.awaited |= existing - {promise.id for promise, _ in pairs}

    def _lock_holders(self, rows: Rows, footprint: Footprint, pids: set[str]) -> None:
        named = footprint.pids | pids | rows.pids_to_tell(footprint)
        found = self._locked.holders(named, rows.tasks.values(), footprint)
        rows.holders = {pid: {} for pid in named}
        for holder in found:
            if holder.pid in rows.holders:
                rows.holders[holder.pid][holder.incarnation] = holder
        self._load_notices(rows, footprint)

    # --- save ----------------------------------------------------------------------------

    def save(self, changes: Changes, now: Millis = 0) -> None:
        self._locked.check(changes)
        super().save(changes, now)

    def _save_holders(self, changes: Changes) -> None:
        """New ones are added and nothing else: another process may have added them meanwhile."""
        holders = changes.holders.values()
        self._write(self._sql.put_holders, [x for x in holders if self._locked.is_known(x)])
        self._write(self._sql.insert_holders, [x for x in holders if not self._locked.is_known(x)])

    def _save_limits(self, limits: list[Limit]) -> None:
        is_known = self._locked.is_known_limit
        self._write(self._sql.put_limits, [each for each in limits if is_known(each)])
        self._write(self._sql.insert_limits, [each for each in limits if not is_known(each)])

    def _save_schedules(self, schedules: list[Schedule]) -> None:
        is_known = self._locked.is_known_schedule
        self._write(self._sql.put_schedules, [each for each in schedules if is_known(each)])
        self._write(self._sql.insert_schedules, [each for each in schedules if not is_known(each)])
