"""The locked load: how a batch keeps other processes from changing what it has read.

Always in this order: schedules by id, branches, promises by id, the hop, the queue, limits by name,
their lanes, holders by pid. Only schedules, branches, promises, limits and holders may wait for
another process, so nobody waits in a circle; the hop, the queue and the lanes take what is free
(SKIP LOCKED).

- One statement locks; what belongs to the locked rows (waits, listeners) is read by a *later* one,
  because a statement that has waited sees only the locked rows themselves as they are now.
- An id that exists but was not locked has just been born: the batch is replayed, also if that is
  found out by a later statement (it stands in the queue, or waits). So it is when
  what was listed before the locks (a branch, the leases of a pid) has more in it after them.
- What is not born yet cannot be locked. So whoever adds to a branch locks the branch itself, by its
  name, even if it does not read it: two batches that read the branch would not see each other's
  promises, and whoever claims one of them would be shown a branch that no order of the batches
  explains.
- If a row of the hop is not free, the batch is replayed with the whole hop locked from the start.
- What a batch writes it must have locked. If it has not, it is replayed with those rows locked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from layby.core.changes import Changes
from layby.core.footprint import Footprint
from layby.core.limit import Limit
from layby.core.model import HeldKey, Holder, Listener, Millis, Promise, Task, Wait
from layby.core.queue import Queue, Ready, TakeKey, entry_of
from layby.core.rows import Rows
from layby.core.schedule_row import Schedule
from layby.store.api import StoreConflict
from layby.store.page_bounds import size_of
from layby.store.postgres_dialect import PostgresDialect
from layby.store.postgres_session import PostgresSession
from layby.store.session import TEXTS, Reading, packed
from layby.store.statements import Statements

Pair = tuple[Promise, Task | None]
Listed = tuple[Reading, Collection[str]]
"""How a list is read, and what was in it before anything was locked."""

PAIRS: Final = msgspec.json.Decoder(list[Pair])
WAITS_READ: Final = msgspec.json.Decoder(list[Wait])
LISTENERS_READ: Final = msgspec.json.Decoder(list[Listener])
HOLDERS_READ: Final = msgspec.json.Decoder(list[Holder])
LIMITS_READ: Final = msgspec.json.Decoder(list[Limit])
SCHEDULES_READ: Final = msgspec.json.Decoder(list[Schedule])

WAITING: Final = "FOR UPDATE"
FREE: Final = "FOR UPDATE SKIP LOCKED"
_BRANCHES: Final = """
    SELECT CAST(pg_advisory_xact_lock(1818327395, key) AS text) FROM (
        SELECT DISTINCT hashtext(value) AS key
        FROM json_array_elements_text(CAST(? AS json)) AS i(value) ORDER BY key) AS keys
"""
"""Until the end of the transaction. The first number stands for these locks among all of ours."""


def _compared_by(compared: Collection[str], valueless: Collection[str]) -> tuple[str, ...]:
    """What a statement with `partly_valueless` needs."""
    ids, lengths = packed(sorted(valueless)), packed(sorted({size_of(each) for each in compared}))
    return (ids, lengths, ids)


def _compared(
    pairs: list[Pair], compared: Collection[str], valueless: Collection[str]
) -> list[Pair]:
    """With the params of which the database has told the digests, as far as they are the same."""
    by_digest = {sha256(each.encode()).hexdigest(): each for each in compared}
    return [
        (replace(promise, param=by_digest.get(promise.param, "")), task)
        if promise.id in valueless
        else (promise, task)
        for promise, task in pairs
    ]


class LockedRows:
    """What the transaction under way has locked."""

    def __init__(self, session: PostgresSession, sql: Statements, dialect: PostgresDialect) -> None:
        self._session = session
        self._sql = sql
        self._existing = f"SELECT id FROM promises WHERE {dialect.among('id')}"
        kinds = ("node", "prior", "root")
        self._partly_valueless = dialect.all_of(
            dialect.partly_valueless(sql.pair), f"promises WHERE {dialect.among('id')}"
        )
        self._oldest = {kind: dialect.oldest_ready(kind, sql.pair) for kind in kinds}
        self.begin()

    def begin(self) -> None:
        self._ids: set[str] = set()
        self._absent: set[str] = set()
        """What was asked for and is not there: whatever is decided counts on that."""
        self._pids: set[str] = set()
        self._holders: set[HeldKey] = set()
        self._schedules: set[str] = set()
        self._limits: set[str] = set()
        """Those that exist."""

    # --- load ----------------------------------------------------------------------------

    def schedules(self, ids: Collection[str], *, may_wait: bool) -> list[Schedule]:
        text = f"{self._sql.schedules} ORDER BY id {WAITING if may_wait else FREE}"
        found = self._session.read(text, SCHEDULES_READ, packed(sorted(ids)))
        self._schedules = {each.id for each in found}
        return found

    def promises(
        self,
        ids: Collection[str],
        beside: Collection[str],
        footprint: Footprint,
        limit: int,
        lists: Sequence[Listed] = (),
        branches: Collection[str] = (),
        valueless: Collection[str] = (),
    ) -> tuple[list[Pair], list[Wait], list[Listener], Millis]:
        """Lock and read them; and, later, what belongs to `ids`, and what time it is.

        If nobody may wait, those of `ids` that others have locked are left out; none of `beside`.
        `lists` are those that `ids` were taken from; `branches` are added to. Of what is
        `valueless` among `beside` the values are not read, and params are only compared.
        """
        also = footprint.also.union(beside)
        may_wait = footprint.may_wait or bool(footprint.also)
        every, own = packed(sorted({*ids, *also})), packed(sorted(ids))
        text = self._partly_valueless if valueless else self._sql.pairs
        lock = f"{text} ORDER BY id {WAITING if may_wait else FREE}"
        without = _compared_by(footprint.compared, valueless) if valueless else ()
        first: list[Reading] = [(_BRANCHES, TEXTS, (packed(sorted(branches)),))] if branches else []
        readings: list[Reading] = [
            *first,
            (lock, PAIRS, (*without, every)),
            (self._existing, TEXTS, (every,)),
            (self._sql.waits, WAITS_READ, (own, limit)),
            (self._sql.listeners, LISTENERS_READ, (own, limit)),
            self._session.read_stamp(),
            *(reading for reading, _ in lists),
        ]
        found = self._session.read_together(readings)[len(first) :]
        pairs, existing, waits, listeners, stamp, *listed = found
        self._ids |= {promise.id for promise, _ in pairs}
        if may_wait and not self._ids.issuperset(existing):
            raise StoreConflict("a promise was born meanwhile")
        self._absent = {*ids, *also} - self._ids if may_wait else set()
        if any(_has_more(now, then) for now, (_, then) in zip(listed, lists, strict=True)):
            raise StoreConflict("a list has grown meanwhile")
        if not self._ids.issuperset({*existing}.intersection(beside)):
            raise StoreConflict("a row that decides was locked", ids=beside)
        free = [wait for wait in waits if wait.awaited in self._ids]
        if valueless:
            pairs = _compared(pairs, footprint.compared, valueless)
        return pairs, free, listeners, self._session.stamped(stamp)

    def hop(self, awaiters: Collection[str], also: Collection[str]) -> list[Pair]:
        """The tasks that wait; never waits itself."""
        hop = {*awaiters} - self._ids - {*also}
        if not hop:
            return []
        text = f"{self._sql.pairs} ORDER BY id {FREE}"
        pairs: list[Pair] = self._session.read(text, PAIRS, packed(sorted(hop)))
        if len(pairs) < len(hop):
            raise StoreConflict("a task that waits was locked", ids={*awaiters, *also})
        self._add(pairs)
        return pairs

    def triggers(
        self, ids: Collection[str], limit: int
    ) -> tuple[list[Pair], list[Wait], list[Listener]]:
        """What deferred tasks have of their own, with what belongs to it; never waits itself."""
        texts = packed(sorted(ids))
        readings: list[Reading] = [
            (f"{self._sql.pairs} ORDER BY id {FREE}", PAIRS, (texts,)),
            (self._existing, TEXTS, (texts,)),
            (self._sql.waits, WAITS_READ, (texts, limit)),
            (self._sql.listeners, LISTENERS_READ, (texts, limit)),
        ]
        pairs, existing, waits, listeners = self._session.read_together(readings)
        found = {promise.id for promise, _ in pairs}
        if not found.issuperset(existing):
            raise StoreConflict("a trigger was locked", ids=ids)
        self._add(pairs)
        return pairs, waits, listeners

    def limits(self, names: Collection[str], *, may_wait: bool = True) -> list[Limit]:
        """Lock those that exist, and read all patterns, which nobody has to lock to go by them."""
        text, texts = self._sql.own_limits, packed(sorted(names))
        readings: list[Reading] = [
            (f"{text} ORDER BY name {WAITING if may_wait else FREE}", LIMITS_READ, (texts,)),
            (text, LIMITS_READ, (texts,)),
            (self._sql.patterns, LIMITS_READ, ()),
        ]
        locked, existing, patterns = self._session.read_together(readings)
        found = {each.name for each in locked}
        if found != {each.name for each in existing}:
            raise StoreConflict("a limit was locked, or born meanwhile", limits=names)
        self._limits |= found
        return [*patterns, *locked]

    def in_lanes(self, ids: Collection[str]) -> list[Pair]:
        """Those of the tasks that are free; never waits itself."""
        text = f"{self._sql.pairs} ORDER BY id {FREE}"
        pairs: list[Pair] = self._session.read(text, PAIRS, packed(sorted(ids)))
        self._add(pairs)
        return pairs

    def without_locks(self, ids: Collection[str]) -> set[str]:
        return {*ids} - self._ids

    def lean(self, ids: Collection[str]) -> tuple[list[Pair], set[str]]:
        """Lock those that are free, without their params and values; and which of them exist."""
        texts = packed(sorted(ids))
        readings: list[Reading] = [
            (f"{self._sql.bare_pairs} ORDER BY id {FREE}", PAIRS, (texts,)),
            (self._existing, TEXTS, (texts,)),
        ]
        pairs, existing = self._session.read_together(readings)
        self._add(pairs)
        return pairs, set(existing)

    def ready(
        self, seen: Ready, at: Mapping[str, Any], names: Collection[str], most: Mapping[str, int]
    ) -> tuple[Ready, list[Pair]]:
        """Lock as many as may be handed out, and show one more if there is one.

        `seen` is the front of the queue without locks. If less is free than was seen, others are
        about to change the rest: whoever needs more looks again soon.
        """
        look = {**at, "names": packed(sorted(names))}
        nodes, node_pairs = self._first_ready("node", seen.nodes, look, most["node"])
        roots, root_pairs = self._first_ready("root", seen.roots, look, most["root"])
        oldest, oldest_pairs = self._oldest_of_all(seen.oldest, most["oldest"])
        pairs = [*node_pairs, *root_pairs, *oldest_pairs]
        return Ready.of(nodes, roots, seen.refused, oldest), pairs

    def _oldest_of_all(self, seen: Queue, wanted: int) -> tuple[Queue, list[Pair]]:
        """What nobody may be handed is not locked; what others have locked is passed over."""
        if not wanted or not seen.entries:
            return seen, []
        text = f"{self._sql.pairs} ORDER BY id {FREE}"
        ids = packed(sorted(task_id for _, _, task_id in seen.entries))
        pairs: list[Pair] = self._session.read(text, PAIRS, ids)
        locked = {promise.id for promise, _ in pairs}
        self._ids |= locked
        seen.replace((each for each in seen.entries if each[2] in locked), seen.end)
        return seen, pairs

    def _lock_in_turn(
        self, kind: str, seen: Queue, look: Mapping[str, Any], wanted: int
    ) -> Iterator[Pair]:
        """From one priority that was seen to the next."""
        for priority in dict.fromkeys(-negative for negative, _, _ in seen.entries):
            text = self._oldest["prior" if priority else kind]
            most = {"most": wanted, "priority": priority} if priority else {"most": wanted}
            pairs: list[Pair] = self._session.read_named(text, PAIRS, {**look, **most})
            yield from pairs
            wanted -= len(pairs)
            if wanted <= 0:
                return

    def _first_ready(
        self, kind: str, seen: Queue, look: Mapping[str, Any], wanted: int
    ) -> tuple[Queue, list[Pair]]:
        wanted = min(wanted, len(seen.entries))  # more may be too heavy together
        if not wanted:
            has_more = seen.is_cut or len(seen.entries) > 1
            return Queue(seen.entries[:1], 1 if has_more else None), []
        pairs = list(self._lock_in_turn(kind, seen, look, wanted))
        self._add(pairs)
        locked = sorted(entry_of(task) for _, task in pairs if task is not None and task.is_ready)
        if len(locked) < wanted:
            is_contended = len(locked) < len(seen.entries)
            return Queue(locked, is_contended=is_contended), pairs
        left = [entry for entry in seen.entries if entry > locked[-1]][:1]
        entries = [*locked, *left]
        return Queue(entries, len(entries) if left or seen.is_cut else None), pairs

    def holders(self, named: Iterable[str], tasks: Iterable[Task], footprint: Footprint) -> Any:
        """Those that are named, and those of the tasks: what they hold may change."""
        pids = {*named, *footprint.also_pids}
        pids |= {task.pid for task in tasks if task.holder is not None and task.pid is not None}
        if not pids:
            return []
        may_wait = footprint.may_wait or bool(footprint.also_pids)
        text = f"{self._sql.holders} ORDER BY pid, incarnation {WAITING if may_wait else FREE}"
        found: list[Holder] = self._session.read(text, HOLDERS_READ, packed(sorted(pids)))
        self._pids |= pids if may_wait else {each.pid for each in found}
        self._holders |= {(each.pid, each.incarnation) for each in found}
        return found

    def _add(self, pairs: Sequence[Pair]) -> None:
        """They are locked as well."""
        ids = {promise.id for promise, _ in pairs}
        if not ids.isdisjoint(self._absent):
            raise StoreConflict("a promise was born meanwhile")
        self._ids |= ids

    # --- save ----------------------------------------------------------------------------

    def check(self, changes: Changes) -> None:
        """What is written is locked, or new."""
        ids = (changes.promises.keys() | changes.tasks.keys()) - changes.born
        ids = (ids | changes.deleted.keys()) - self._ids
        touched = {pid for (pid, _), by in changes.held.items() if by}
        touched |= {pid for pid, _ in changes.holders} | {pid for pid, _ in changes.deleted_holders}
        pids = touched - self._pids
        if ids or pids:
            raise StoreConflict("a row is changed that was not locked", ids=ids, pids=pids)

    def is_known(self, holder: Holder) -> bool:
        return (holder.pid, holder.incarnation) in self._holders

    def is_known_limit(self, limit: Limit) -> bool:
        return limit.name in self._limits

    def is_known_schedule(self, schedule: Schedule) -> bool:
        return schedule.id in self._schedules


def _has_more(now: Iterable[tuple[str, str]], then: Collection[str]) -> bool:
    return not {key for _, key in now}.issubset(then)


def most_to_lock(footprint: Footprint, key: TakeKey, roots: int) -> dict[str, int]:
    """How many tasks takes of this key may be handed: no more than that are locked."""
    nodes = footprint.nodes_of(key[0]) - footprint.leaving - 1
    return {"node": nodes, "root": roots, "oldest": footprint.oldest}


def awaiters_in(rows: Rows) -> set[str]:
    return {awaiter for waits in rows.waits.values() for awaiter in waits}
