"""What is due by now: which ticks the overdue rows of a store call for, in which order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from layby.core import schedules
from layby.core.endings import Endings, Look
from layby.core.limit import ANY, Limit
from layby.core.limits import SPREAD, OpenGates, RecountParked, SpreadPattern
from layby.core.model import FAR, Holder, Millis, Pruning, TaskState, later
from layby.core.pruning import HOLDERS_KEPT_MS, FinishPruning, PruneTick, pass_of
from layby.core.schedule_row import Schedule
from layby.core.settings import Calendar, RetentionPolicy, Settings
from layby.core.ticks import (
    ExpireHolders,
    ExpireLeases,
    ExpirePromises,
    FinishSettlement,
    FreeTasks,
    RetryTasks,
    Tick,
)

TAILS_AT_ONCE: Final = 4
"""Each may resume `hop_limit` tasks: a few thousand rows in one transaction at most."""
SCHEDULES_AT_ONCE: Final = 100
RECOUNTS_AT_ONCE: Final = 4
"""Each looks through the tasks that are claimed."""


class OverdueRows(Endings, Protocol):
    """How a store finds them: by index, the earliest first, at most `limit` of each sort."""

    def overdue_promises(self, now: Millis, limit: int) -> Sequence[str]: ...

    def overdue_tails(self, now: Millis, limit: int) -> Sequence[str]: ...

    def nodes_of(self, root_id: str, limit: int) -> Sequence[str]: ...

    def overdue_tasks(self, now: Millis, limit: int) -> Sequence[tuple[TaskState, str]]: ...

    def overdue_schedules(self, now: Millis, limit: int) -> Sequence[Schedule]: ...

    def overdue_holders(self, now: Millis, limit: int) -> Sequence[str]:
        """Pids of holders that count as alive."""
        ...

    def gone_holders(self) -> Iterable[Holder]:
        """Holders that are gone and still hold tasks."""
        ...

    def held_ids(self, holder: Holder, limit: int) -> Sequence[str]: ...

    def overdue_limits(self, now: Millis, limit: int) -> Sequence[Limit]: ...

    def used_limits(self, start: str, after: str, limit: int) -> Sequence[str]:
        """Names of limits that begin so, after another one, in order."""
        ...

    def parked_under(self, name: str, after: str, limit: int) -> Sequence[str]:
        """Tasks whose bodies are parked, and that name this limit or one under this pattern, after
        another one by id. Some may be among them that do not.
        """
        ...

    def overdue_remains(self, now: Millis, limit: int) -> Sequence[str]:
        """Roots that were pruned, of trees that were too large for one batch."""
        ...

    def pruning(self, pruning_id: str) -> Pruning | None:
        """How far automatic pruning has come; None when it has not begun."""
        ...


def due(
    store: OverdueRows, now: Millis, limit: int, wall: Millis, calendar: Calendar
) -> Iterator[Tick]:
    """Occurrences of schedules also wait for the `wall` clock, if that is behind."""
    if ids := store.overdue_promises(now, limit):
        yield ExpirePromises(ids=tuple(ids))
    for promise_id in store.overdue_tails(now, min(limit, TAILS_AT_ONCE)):
        yield FinishSettlement(id=promise_id, nodes=tuple(store.nodes_of(promise_id, limit)))
    yield from _due_tasks(store.overdue_tasks(now, limit))
    occurring = min(now, wall)
    at_once = store.overdue_schedules(occurring, min(limit, SCHEDULES_AT_ONCE))
    yield from schedules.due(at_once, occurring, calendar, limit)
    if pids := store.overdue_holders(now, limit):
        yield ExpireHolders(pids=tuple(pids))
    for gone in store.gone_holders():
        ids = store.held_ids(gone, limit)
        yield FreeTasks(pid=gone.pid, incarnation=gone.incarnation, ids=tuple(ids))

    yield from _due_limits(store, store.overdue_limits(now, limit))


def _due_limits(store: OverdueRows, overdue: Sequence[Limit]) -> Iterator[Tick]:
    recounting = [each for each in overdue if each.is_recounting]
    rest = [each for each in overdue if not each.is_recounting]
    if names := tuple(each.name for each in rest if not each.pattern):
        yield OpenGates(names=names)
    for each in recounting[:RECOUNTS_AT_ONCE]:
        after = each.parked_after or ""
        ids = store.parked_under(each.name, after, SPREAD)
        yield RecountParked(name=each.name, after=after, ids=tuple(ids))
    for each in (limit for limit in rest if limit.pattern):
        start = each.name.removesuffix(ANY)
        names = store.used_limits(start, each.cursor or "", SPREAD)
        yield SpreadPattern(pattern=each.name, names=tuple(names))


def due_last(store: OverdueRows, now: Millis, settings: Settings) -> Iterator[Tick]:
    """When nothing else is due: pruning has time, and does it in transactions of its own."""
    yield from _due_pruning(store, now, settings)


def next_pruning(store: OverdueRows, settings: Settings) -> Millis | None:
    """When the next batch is due. Who keeps all runs has dead holders to prune, or nothing."""
    retention = settings.retention or RetentionPolicy()
    begun = store.pruning(pass_of(retention))
    due_at = 0 if begun is None else begun.due_at
    if retention != RetentionPolicy():
        return due_at
    dead = store.ended_keys(Look("holders", HOLDERS_KEPT_MS, 1), FAR, 1)
    return max(due_at, later(dead[0][0], HOLDERS_KEPT_MS)) if dead else None


def _due_pruning(store: OverdueRows, now: Millis, settings: Settings) -> Iterator[Tick]:
    rows = settings.prune_rows
    for root in store.overdue_remains(now, 1):
        begun = store.pruning(root)
        after = "" if begun is None else begun.cursor
        ids = store.ids_below([root], after, rows + 1).get(root, [])
        yield FinishPruning(id=root, ids=tuple(ids[:rows]), has_more=len(ids) > rows, after=after)
    due_at = next_pruning(store, settings)
    if due_at is not None and due_at <= now:
        retention = settings.retention or RetentionPolicy()
        begun = store.pruning(pass_of(retention))
        cursor = "" if begun is None else begun.cursor
        yield PruneTick(retention=retention, at_once=rows, cursor=cursor)


def _due_tasks(overdue: Sequence[tuple[TaskState, str]]) -> Iterator[Tick]:
    if pending := tuple(key for state, key in overdue if state == "pending"):
        yield RetryTasks(ids=pending)
    if acquired := tuple(key for state, key in overdue if state == "acquired"):
        yield ExpireLeases(ids=acquired)
