"""Pages of lists in id order, made of whatever rows a store has found for them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from layby.core.flows import FindFlow
from layby.core.model import Holder, Millis, PublishedFlow, Schedule, Task
from layby.core.queries import (
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import FlowData, PromisePage, RowPage, SchedulePage, TaskPage
from layby.core.search import (
    matches_promise,
    matches_run,
    matches_schedule,
    matches_task,
    projected,
)
from layby.store.page_bounds import PARAMS, WHOLE, Fill, Pair, Shown, filled, gathered, id_of

Rows = Iterable[Pair]
"""Lean rows as stored, in id order, after the cursor of the query."""

GROUPS_TOLD = 10


def promises(rows: Rows, fill: Fill, query: SearchPromises, now: Millis) -> PromisePage:
    found = _matching(rows, query.limit, lambda row: matches_promise(query, *row), now)
    shown, cursor = _filled(found, fill, WHOLE)
    return PromisePage([promise for promise, _ in shown], cursor)


def tasks(rows: Rows, query: SearchTasks, now: Millis) -> TaskPage:
    def matches(row: Pair) -> bool:
        promise, task = row
        return task is not None and matches_task(query, promise, task)

    found, cursor = _matching(rows, query.limit, matches, now)
    return TaskPage(_tasks(found), cursor)


def held(rows: Rows, query: ListHeld) -> TaskPage:
    found, cursor = gathered(rows, query.limit, id_of, lambda row: row[1] is not None)
    return TaskPage(_tasks(found), cursor)


def records(rows: Rows, fill: Fill, query: GetRun | GetRecords, now: Millis) -> RowPage:
    """Of a run or a task: whoever reads them goes on with what their values say."""
    found = _matching(rows, query.limit, lambda _: True, now)
    return RowPage(*_filled(found, fill, WHOLE))


def runs(rows: Rows, fill: Fill, query: ListRuns, now: Millis) -> RowPage:
    """With their params, which say how many tasks they have; their results are read one by one."""
    found = _matching(rows, query.limit, lambda row: matches_run(query, *row), now)
    return RowPage(*_filled(found, fill, PARAMS))


def schedules(
    rows: Iterable[Schedule],
    fill: Callable[[Sequence[Schedule]], list[Schedule]],
    query: SearchSchedules,
) -> SchedulePage:
    found = gathered(rows, query.limit, _schedule_id, lambda each: matches_schedule(query, each))
    return SchedulePage(*filled(found, fill, _schedule_id))


def flow(
    query: FindFlow,
    found: Sequence[PublishedFlow],
    groups: Sequence[str],
    names: Sequence[str],
    holders: Iterable[Holder],
) -> FlowData:
    able = (each for each in holders if each.is_alive and each.group == query.group)
    return FlowData(
        layout=found[0].layout if found else None,
        able_workers=sum(query.name in each.names for each in able),
        groups=[each for each in groups if each != query.group],
        names=names,
    )


def _matching(
    rows: Rows, limit: int, matches: Callable[[Pair], bool], now: Millis
) -> tuple[list[Pair], str | None]:
    """As they read at `now`."""
    shown: Iterator[Pair] = (projected(*row, now) for row in rows)
    return gathered(shown, limit, id_of, matches)


def _filled(
    found: tuple[list[Pair], str | None], fill: Fill, shown: Shown
) -> tuple[list[Pair], str | None]:
    return filled(found, partial(fill, shown=shown), id_of)


def _tasks(rows: Sequence[Pair]) -> list[Task]:
    return [task for _, task in rows if task is not None]


def _schedule_id(schedule: Schedule) -> str:
    return schedule.id
