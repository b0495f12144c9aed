"""Counts for overviews: bounded ranges of indexes, so that they stay cheap in a large store."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from layby.core.model import FAR, Millis
from layby.core.resumption import TRIGGER_GROUP
from layby.core.state import State
from layby.core.stats import COUNTED, LIVING, LONGEST, StatsData, oldest_waits
from layby.store.by_time import WAITING, Read, in_order
from layby.store.page_bounds import Pair
from layby.store.searches import open_tasks


def _bounded(source: str) -> str:
    return f"(SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT :most) AS counted)"


_UNTAKEN: Final = (
    f"task_state = 'pending' AND task_kind = 'node' AND task_group = '{TRIGGER_GROUP}'"
)
COUNTS: Final = f"""
    SELECT
        {", ".join(_bounded(f"promises WHERE {open_tasks(state)}") for state in LIVING)},
        {_bounded("messages")},
        (SELECT count(*) FROM holders WHERE standing = 'alive'),
        (SELECT CAST(COALESCE(sum(held), 0) AS BIGINT) FROM holders WHERE standing = 'alive'),
        (SELECT count(*) FROM schedules),
        {_bounded(f"promises WHERE {_UNTAKEN} AND task_refused IS NULL AND task_priority = 0")},
        {_bounded(f"promises WHERE {_UNTAKEN} AND task_refused IS NOT NULL")},
        (SELECT CAST(COALESCE(sum(held), 0) AS BIGINT) FROM limits),
        {_bounded("promises WHERE task_gate IS NOT NULL")}
"""


def by_index(counts: Sequence[int], read: Read, now: Millis) -> StatsData:
    """`counts` is the row of `COUNTS`."""
    return _stats(counts, read(WAITING, (-1, "", FAR), LONGEST), now)


def of_state(state: State, now: Millis) -> StatsData:
    """The same from all rows."""
    tasks = Counter(task.state for task in state.tasks.values())
    living = [holder for holder in state.holders.values() if holder.is_alive]
    untaken = Counter(
        task.refused is not None
        for task in state.tasks.values()
        if task.state == "pending" and task.group == TRIGGER_GROUP and task.kind == "node"
    )
    counts = [
        *(min(tasks[each], COUNTED) for each in LIVING),
        min(len(state.messages), COUNTED),
        len(living),
        sum(holder.held for holder in living),
        len(state.schedules),
        *(min(untaken[each], COUNTED) for each in (False, True)),
        sum(limit.held for limit in state.limits.values()),
        min(sum(task.gate is not None for task in state.tasks.values()), COUNTED),
    ]
    waiting = [task for task in state.tasks.values() if task.waiting_since is not None]
    longest = in_order([(state.promises[task.id], task) for task in waiting])[:LONGEST]
    return _stats(counts, longest, now)


def _stats(counts: Sequence[int], longest: Iterable[Pair], now: Millis) -> StatsData:
    outbox, holders, held, schedules, untaken, refused, permits, gated = counts[len(LIVING) :]
    return StatsData(
        now=now,
        tasks=dict(zip(LIVING, counts, strict=False)),
        oldest_waits=oldest_waits(longest, now),
        outbox=outbox,
        holders=holders,
        held=held,
        schedules=schedules,
        triggers_untaken=untaken + refused,
        permits_held=permits,
        permits_awaited=gated,
    )
