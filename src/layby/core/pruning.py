"""Pruning: what has ended long enough ago is deleted, a bounded batch at a time.

Whole trees go, never a part: a run with all its lives, its tasks and what they recorded. Nothing
goes that somebody waits for or was not told of yet, and nothing of a run that is being cleaned up.
Of a tree its root's id stays, with how it ended and without a value, so that starting it again
still finds it; the id goes later. A tree that is larger than a batch is looked at part by part;
then its root expires, and the rest is an armed tail like that of a large settlement.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta, Struct

from layby.core import birth
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.endings import OF_RUNS, OF_TREES, RUNS, STAGES, Found, Key, Look, Stage, is_past
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.ids import life_id
from layby.core.kinds import Command, Problems, Sender, declare, handles
from layby.core.model import NEVER, Millis, Promise, Pruning, Task, later
from layby.core.replies import OK, Empty, PruneData, Reply, ok
from layby.core.settings import LONGEST_RETENTION_MS, PRUNE_ROWS, RetentionPolicy
from layby.core.ticks import IdsTick, Tick

AUTOMATIC: Final = ":retention"
"""The row that says how far automatic pruning has come; others are of trees, by their roots, and no
root begins with a colon.
"""
OF_HOLDERS: Final = f"{AUTOMATIC}:holders"
"""The same where every run is kept. Other processes on the database may prune runs meanwhile, in a
pass that goes on where it stands.
"""
HOLDERS_KEPT_MS: Final[Millis] = 24 * 3_600_000
"""How long a dead holder is remembered: until then it is told what became of it."""
PACE_MS: Final[Millis] = 20
"""The pause between two batches: everybody else has more time than pruning."""
MOST_ROWS: Final = 5_000
SHORTEST_PASS_MS: Final[Millis] = 1_000
LONGEST_PASS_MS: Final[Millis] = 3_600_000


class Cursor(Struct, frozen=True, array_like=True):
    """Where a pass goes on."""

    stage: Annotated[int, Meta(ge=0, le=len(STAGES))] = 0
    """The one behind the last means that the pass is over."""
    at: Int64 = -1
    id: str = ""
    tree: str | None = None
    seen: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Rows of that tree that were looked at."""

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def is_sound(self) -> bool:
        has_trees = any(stage in OF_TREES for stage in STAGES[self.stage :][:1])
        return (self.tree is None or has_trees) and "\0" not in f"{self.id}{self.tree}"


_cursor = msgspec.json.Decoder(Cursor).decode


def read_cursor(text: str) -> Cursor | None:
    """None when it is not one: people may send anything."""
    try:
        cursor = _cursor(text) if text else Cursor()
    except msgspec.DecodeError:
        return None
    return cursor if cursor.is_sound else None


class PruneBatch(Command, frozen=True):
    """One batch of a pass: what time itself submits, and what a person asks for."""

    is_alone: ClassVar[bool] = True

    cursor: str = ""

    @property
    def policy(self) -> RetentionPolicy:
        raise NotImplementedError

    @property
    def is_foreign(self) -> bool:
        return False

    @property
    def rows(self) -> int:
        raise NotImplementedError

    @property
    def look(self) -> Look | None:
        """None when the pass is over."""
        start = read_cursor(self.cursor) or Cursor()
        for number, stage in enumerate(STAGES[start.stage :], start.stage):
            age = _age(self.policy, stage, foreign=self.is_foreign)
            if age is None:
                continue
            at = start if number == start.stage else Cursor()
            return Look(stage, age, self.rows, (at.at, at.id), at.tree)
        return None

    def footprint(self, into: Footprint) -> None:
        into.look = self.look


@declare("layby.prune", sender=Sender.ADMIN, answer=PruneData)
class Prune(PruneBatch, frozen=True):
    """Delete the next of what has ended long enough ago; the answer says where to go on.

    `completed`, `failed`: how long runs are kept after they have ended so; `ids`: how long the ids
    of pruned ones answer. What is absent is kept for ever. `foreign`: also promises that are not
    part of a run. `dry_run`: only count. `limit`: how many rows one batch may delete.
    """

    completed: Int64 | None = None
    failed: Int64 | None = None
    ids: Int64 | None = None
    foreign: bool = False
    dry_run: bool = False
    limit: Int64 = PRUNE_ROWS

    @property
    def policy(self) -> RetentionPolicy:
        return RetentionPolicy(self.completed, self.failed, self.ids)

    @property
    def is_foreign(self) -> bool:
        return self.foreign

    @property
    def rows(self) -> int:
        return self.limit

    def problems(self) -> Problems:
        for name in ("completed", "failed", "ids"):
            if not 0 <= (getattr(self, name) or 0) <= LONGEST_RETENTION_MS:
                yield f"{name} must be between 0 and {LONGEST_RETENTION_MS} milliseconds"
        if not 1 <= self.limit <= MOST_ROWS:
            yield f"limit must be between 1 and {MOST_ROWS}"
        if read_cursor(self.cursor) is None:
            yield "cursor must be one that an answer gave"


@handles(Prune)
def prune(d: Draft, c: Prune) -> Reply:
    return ok(_batch(d, c, dry_run=c.dry_run))


@declare("tick.prune", sender=Sender.INTERNAL, answer=Empty)
class PruneTick(PruneBatch, Tick, frozen=True, kw_only=True):
    """The next batch of automatic pruning is due."""

    retention: RetentionPolicy
    at_once: int

    @property
    def policy(self) -> RetentionPolicy:
        return self.retention

    @property
    def rows(self) -> int:
        return self.at_once


@handles(PruneTick)
def prune_by_time(d: Draft, c: PruneTick) -> Reply:
    done = _batch(d, c)
    pause = PACE_MS if done.cursor else _between_passes(c.retention)
    d.put_pruning(Pruning(pass_of(c.retention), later(d.now, pause), done.cursor or ""))
    return OK


def pass_of(retention: RetentionPolicy) -> str:
    """The row that says how far it has come."""
    return OF_HOLDERS if retention == RetentionPolicy() else AUTOMATIC


@declare("tick.finish_pruning", sender=Sender.INTERNAL, answer=Empty)
class FinishPruning(IdsTick, frozen=True):
    """Go on with a tree that was too large for one batch. `has_more`: it has other rows, too;
    `after`: what is up to there has come to life, and was passed over.
    """

    is_alone: ClassVar[bool] = True

    id: str
    has_more: bool
    after: str = ""

    def footprint(self, into: Footprint) -> None:
        into.lean.update((self.id, *self.ids))


@handles(FinishPruning)
def finish_pruning(d: Draft, c: FinishPruning) -> Reply:
    """What has come to life in the meantime, by whatever means, stays."""
    root = d.promise(c.id)
    if root is None or not root.is_expired or root.tail_at is None:
        return OK
    rows = (row for row in _rows(d, c.ids) if not _is_born_later(row[0], root))
    over = [row for row in rows if _is_over(d, *row)]
    for promise, _ in over:
        d.delete(promise)
    alive = sorted({*c.ids} - {promise.id for promise, _ in over})
    if c.has_more and alive:
        d.put_pruning(Pruning(c.id, NEVER, alive[-1]))
    elif c.after and not c.has_more:
        d.drop_pruning(c.id)
    is_locked = any(each not in d.rows.promises for each in c.ids)  # by another process
    d.put(root.with_tail(later(d.now, PACE_MS) if c.has_more or is_locked else None))
    return OK


def _is_born_later(promise: Promise, root: Promise) -> bool:
    """Somebody made it below the id of a tree that was pruned: only runs leave promises open."""
    if not promise.is_pending:
        return False
    return not root.id.startswith(RUNS) or promise.created_at > (root.expired_at or 0)


# --- batches -----------------------------------------------------------------------------


def _batch(d: Draft, c: PruneBatch, *, dry_run: bool = False) -> PruneData:
    look, found = c.look, d.rows.found
    if look is None or found is None:
        return PruneData()
    if look.stage in OF_TREES:
        seen = (read_cursor(c.cursor) or Cursor()).seen if look.tree is not None else 0
        done, is_blocked = _prune_trees(d, look, found, seen, dry_run=dry_run)
    else:
        done, is_blocked = _PRUNES[look.stage](d, look, found, dry_run=dry_run), False
    # Of few large rows there is more than the batch that has deleted them could give back.
    d.gives_room_back = has_room = found.has_room and not dry_run
    cursor = _next(c, look, found, is_blocked=is_blocked, has_room=has_room)
    return msgspec.structs.replace(done, cursor=cursor)


def _next(
    c: PruneBatch, look: Look, found: Found, *, is_blocked: bool, has_room: bool
) -> str | None:
    stage = STAGES.index(look.stage)
    if found.cut is not None and not is_blocked:
        at, key = found.keys[-1]
        seen = (read_cursor(c.cursor) or Cursor()).seen if look.tree is not None else 0
        return Cursor(stage, at, key, found.cut, seen + look.rows).text
    if found.is_last and not has_room:
        after = msgspec.structs.replace(c, cursor=Cursor(stage + 1).text)
        return None if after.look is None else after.cursor
    return Cursor(stage, *(found.keys[-1] if found.keys else look.after)).text


def _age(policy: RetentionPolicy, stage: Stage, *, foreign: bool) -> Millis | None:
    """How long something must have been in a stage; None: nothing in it is pruned."""
    if stage.startswith("foreign") and not foreign:
        return None
    if stage in ("completed", "foreign_completed"):
        return policy.completed_ms
    if stage in ("failed", "foreign_failed"):
        return policy.failed_ms
    return HOLDERS_KEPT_MS if stage == "holders" else policy.ids_ms


def _between_passes(policy: RetentionPolicy) -> Millis:
    """A tenth of the shortest time that anything is kept, and at most an hour."""
    lengths = (policy.completed_ms, policy.failed_ms, policy.ids_ms)
    shortest = min((each for each in lengths if each is not None), default=LONGEST_PASS_MS)
    return min(max(shortest // 10, SHORTEST_PASS_MS), LONGEST_PASS_MS)


# --- trees -------------------------------------------------------------------------------


def _prune_trees(
    d: Draft, look: Look, found: Found, seen: int, *, dry_run: bool
) -> tuple[PruneData, bool]:
    """What was pruned; and whether nothing is left to do about a tree larger than a batch.

    `seen`: rows of that tree that were looked at before.
    """
    roots = rows = kept = 0
    for key in found.keys:
        tree = _Tree(d, look, found, key)
        if not tree.is_meant:
            if found.cut is not None:
                return PruneData(), True
        elif not tree.is_over:
            kept += 1
            if found.cut is not None:
                return PruneData(kept=1), True
        elif found.cut is None:
            roots, rows = roots + 1, rows + seen + tree.size
            if not dry_run:
                tree.prune()
    return PruneData(roots=roots, rows=rows, kept=kept), False


class _Tree:
    """The tree of a candidate, as far as the batch has loaded it."""

    def __init__(self, d: Draft, look: Look, found: Found, key: Key) -> None:
        self._d, self._look, self._id = d, look, key[1]
        self._root_id = key[1] if key[1] in found.alone else look.root_of(key[1])
        self._root = d.rows.promises.get(self._root_id)
        below = [each for each in found.trees.get(self._root_id, ()) if each != self._root_id]
        above = found.alone.get(key[1], ())
        self._ids = (self._root_id, *below, *above)
        self._below, self._above = _rows(d, below), _rows(d, above)
        self._is_rest = look.tree is not None

    @property
    def size(self) -> int:
        """Rows that go."""
        return len(self._below)

    @property
    def is_meant(self) -> bool:
        """A tree is pruned once, by the candidate that speaks for it: the root of a run's latest
        life, or the root of a foreign tree. Where that has none, each promise is pruned alone.
        """
        ended = self._d.rows.promises.get(self._id)
        if ended is None or ended.is_expired or self._root is None:
            return False
        if self._look.stage in OF_RUNS:
            return self._id == self._latest_life
        if any(task is not None and task.is_root for _, task in self._all):
            return False
        return self._id == self._root_id

    @property
    def is_over(self) -> bool:
        """Nothing of it is open, nobody waits for any of it, and it is not part of open work."""
        # Of what another process is changing, nothing but the id is known here.
        if any(each in self._d.rows.awaited for each in self._ids):
            return False
        if any(promise.is_pending for promise, _ in self._above):
            return False
        return all(self._is_past(promise, task) for promise, task in self._all)

    def prune(self) -> None:
        d, root = self._d, self._root
        assert root is not None  # it is meant
        for promise, _ in () if self._is_rest else self._below:
            d.delete(promise)
        left = birth.expired(root.ended_as(d.rows.promises[self._id]), d.now)
        # The parts of a large tree that were looked at before are still there.
        d.expire(root, left.with_tail(d.now if self._is_rest else None))

    def _is_past(self, promise: Promise, task: Task | None) -> bool:
        """A promise that a run left open is abandoned with it; a foreign one may be settled yet,
        and what settled late is kept for as long as what settled in time.
        """
        if not _is_over(self._d, promise, task):
            return False
        if self._look.stage in OF_RUNS:
            return True
        settled_at = promise.at(self._d.now).settled_at
        return settled_at is not None and settled_at + self._look.age_ms <= self._d.now

    @property
    def _all(self) -> Iterator[tuple[Promise, Task | None]]:
        if self._root is not None:
            yield self._root, self._d.rows.tasks.get(self._root_id)
        yield from self._below

    @property
    def _latest_life(self) -> str | None:
        first = self._d.rows.tasks.get(self._root_id)
        return None if first is None or not first.is_root else life_id(first.id, first.lives or 1)


def _rows(d: Draft, ids: Sequence[str]) -> list[tuple[Promise, Task | None]]:
    """As they are stored: what is only due to settle has not been told to those who wait."""
    found = ((d.rows.promises.get(key), d.rows.tasks.get(key)) for key in ids)
    return [(promise, task) for promise, task in found if promise is not None]


def _is_over(d: Draft, promise: Promise, task: Task | None) -> bool:
    if promise.id in d.rows.awaited or promise.id in d.rows.watched:
        return False
    if promise.tail_at is not None:
        return False
    return task is None or (task.state == "fulfilled" and not task.is_kept)


# --- what else goes ----------------------------------------------------------------------


def _prune_placeholders(d: Draft, look: Look, found: Found, *, dry_run: bool) -> PruneData:
    over = [row for row in _old(d, look, found) if row.placeholder and row.is_pending]
    over = [row for row in over if _is_over(d, row, None)]
    for row in () if dry_run else over:
        d.delete(row)
    return PruneData(placeholders=len(over))


def _prune_ids(d: Draft, look: Look, found: Found, *, dry_run: bool) -> PruneData:
    over = [row for row in _old(d, look, found) if row.is_expired and _is_over(d, row, None)]
    for row in () if dry_run else over:
        d.delete(row)
    return PruneData(ids=len(over))


def _old(d: Draft, look: Look, found: Found) -> list[Promise]:
    known = (d.rows.promises.get(key) for at, key in found.keys if at + look.age_ms <= d.now)
    return [promise for promise in known if promise is not None]


def _prune_holders(d: Draft, look: Look, found: Found, *, dry_run: bool) -> PruneData:
    """With everything that was to be told to them, unless a later incarnation reads it."""
    count = 0
    for pid in dict.fromkeys(pid for _, pid in found.keys):
        every = d.holders_of(pid)
        past = [each for each in every if is_past(each) and each.expires_at + look.age_ms <= d.now]
        count += len(past)
        for holder in () if dry_run else past:
            d.delete_holder(holder)
            if not any(each.is_alive for each in every):
                d.silence(inbox_of(holder.group, holder.pid))
    return PruneData(holders=count)


_PRUNES: Final = {
    "placeholders": _prune_placeholders,
    "ids": _prune_ids,
    "holders": _prune_holders,
}
