"""Pages of lists in id order, made of whatever rows a store has found for them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from layby.core.flows import FindFlow
from layby.core.model import Holder, Millis, PublishedFlow, Task
from layby.core.queries import (
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ReadItems,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import FlowData, PromisePage, RowPage, SchedulePage, TaskPage
from layby.core.schedule_row import Schedule
from layby.core.search import (
    matches_promise,
    matches_run,
    matches_schedule,
    matches_task,
    projected,
)
from layby.store.page_bounds import (
    CHUNK,
    PARAMS,
    VALUES,
    WHOLE,
    Fill,
    Pair,
    Shown,
    filled,
    id_of,
    page,
)

Rows = Iterable[Pair]
"""Lean rows as stored, in id order, after the cursor of the query."""

GROUPS_TOLD = 10


def promises(rows: Rows, fill: Fill, query: SearchPromises, now: Millis) -> PromisePage:
    def matches(row: Pair) -> bool:
        return matches_promise(query, *row)

    found, cursor = _page(rows, query.limit, matches, now, fill, WHOLE)
    return PromisePage([promise for promise, _ in found], cursor)


def tasks(rows: Rows, query: SearchTasks, now: Millis) -> TaskPage:
    def matches(row: Pair) -> bool:
        promise, task = row
        return task is not None and matches_task(query, promise, task)

    found, cursor = _page(rows, query.limit, matches, now)
    return TaskPage(_tasks(found), cursor)


def held(rows: Rows, query: ListHeld) -> TaskPage:
    """As they are stored: whoever holds them must hand them back, whatever has become of them."""
    found, cursor = page(rows, query.limit, list, id_of, id_of)
    return TaskPage(_tasks(found), cursor)


def records(rows: Rows, fill: Fill, query: GetRun | GetRecords, now: Millis) -> RowPage:
    """Of a run or a task: whoever reads them goes on with what their values say."""
    return RowPage(*_page(rows, query.limit, lambda _: True, now, fill, WHOLE))


def runs(rows: Rows, fill: Fill, query: ListRuns, now: Millis) -> RowPage:
    """With their params, which say how many tasks they have; their results are read one by one."""

    def matches(row: Pair) -> bool:
        return matches_run(query, *row)

    return RowPage(*_page(rows, query.limit, matches, now, fill, PARAMS))


def items(
    read: Callable[[Sequence[str]], Rows], fill: Fill, query: ReadItems, now: Millis
) -> PromisePage:
    """`read` finds lean rows by their ids. A number without an item ends the list."""
    rows = _items(read, query)
    found, cursor = _page(rows, query.count, lambda _: True, now, fill, VALUES)
    at = None if cursor is None else str(int(cursor.rpartition(":")[2]) + 1)
    return PromisePage([promise for promise, _ in found], at)


def _items(read: Callable[[Sequence[str]], Rows], query: ReadItems) -> Iterator[Pair]:
    """In order of their numbers. One that is not in the join itself has succeeded in an earlier."""
    end = query.first + query.count + 1
    for first in range(query.first, end, CHUNK):
        numbers = range(first, min(first + CHUNK, end))
        ids = [each for index in numbers for each in query.ids_of(index)]
        found = {row[0].id: row for row in read(ids)}
        for index in numbers:
            own, *earlier = query.ids_of(index)
            same = [found[each] for each in earlier if each in found]
            done = next((row for row in same if row[0].state == "resolved"), None)
            shown = found.get(own, done or next(iter(same), None))
            if shown is None:
                return
            yield shown


def schedules(
    rows: Iterable[Schedule],
    fill: Callable[[Sequence[Schedule]], list[Schedule]],
    query: SearchSchedules,
) -> SchedulePage:
    def show(some: list[Schedule]) -> Iterator[Schedule]:
        left = [each for each in some if matches_schedule(query, each)]
        while left:
            whole = fill(left)
            yield from whole
            left = left[len(whole) :]

    return SchedulePage(*page(rows, query.limit, show, _schedule_id, _schedule_id))


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


def _page(
    rows: Rows,
    limit: int,
    matches: Callable[[Pair], bool],
    now: Millis,
    fill: Fill | None = None,
    shown: Shown = WHOLE,
) -> tuple[list[Pair], str | None]:
    """What matches as it reads at `now`; lean, unless it is to be filled."""

    def show(some: list[Pair]) -> Iterable[Pair]:
        matching = [row for row in (projected(*row, now) for row in some) if matches(row)]
        return matching if fill is None else filled(fill, matching, shown)

    return page(rows, limit, show, id_of, id_of)


def _tasks(rows: Sequence[Pair]) -> list[Task]:
    return [task for _, task in rows if task is not None]


def _schedule_id(schedule: Schedule) -> str:
    return schedule.id
