"""Searches as keyset pages. SQL narrows through an index; core decides what really matches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from layby.core.address import group_of
from layby.core.birth import NAME, SCHEDULE, TARGET
from layby.core.commands import Tags
from layby.core.flows import FindFlow
from layby.core.model import (
    NEVER,
    Holder,
    Millis,
    Promise,
    PromiseState,
    PublishedFlow,
    Schedule,
    Task,
)
from layby.core.queries import (
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    Search,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import (
    FlowData,
    PromisePage,
    RowPage,
    SchedulePage,
    TaskPage,
)
from layby.core.search import (
    matches_promise,
    matches_run,
    matches_schedule,
    matches_task,
    projected,
)
from layby.store import indexed_tags
from layby.store.statements import LAST

Pair = tuple[Promise, Task | None]
Condition = tuple[str, tuple[object, ...]]
Read = Callable[[str, Sequence[object], int], list[Pair]]
"""Reads pairs by a FROM/WHERE text, its arguments and a limit."""

T = TypeVar("T", Promise, Task, Schedule)

GROUPS_TOLD = 10
SETTLED: tuple[PromiseState, ...] = (
    "rejected",
    "rejected_canceled",
    "rejected_timedout",
    "resolved",
)


def promises(read: Read, query: SearchPromises, now: Millis) -> PromisePage:
    matching = (
        promise
        for promise, task in _projected(read, query, "state", query.state, now)
        if matches_promise(query, promise, task)
    )
    return PromisePage(*page(matching, query.limit))


def tasks(read: Read, query: SearchTasks, now: Millis) -> TaskPage:
    matching = (
        task
        for promise, task in _projected(read, query, "task_state", query.state, now)
        if task is not None and matches_task(query, promise, task)
    )
    return TaskPage(*page(matching, query.limit))


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


def schedules(everything: Sequence[Schedule], query: SearchSchedules) -> SchedulePage:
    matching = (
        schedule
        for schedule in sorted(everything, key=lambda each: each.id)
        if schedule.id > (query.cursor or "") and matches_schedule(query, schedule)
    )
    return SchedulePage(*page(matching, query.limit))


def run(read: Read, query: GetRun, now: Millis) -> RowPage:
    rows = _walk(read, _below(query.id, []), query.cursor or "", query.limit + 1)
    return RowPage(*page_of_rows((projected(*row, now) for row in rows), query.limit))


def records(read: Read, query: GetRecords, now: Millis) -> RowPage:
    itself: Condition = ("promises.id = ?", (query.id,))
    below: Condition = ("promises.id >= ? AND promises.id < ?", (f"{query.id}.", f"{query.id}/"))
    rows = _walk(read, [[itself], [below]], query.cursor or "", query.limit + 1)
    return RowPage(*page_of_rows((projected(*row, now) for row in rows), query.limit))


def runs(read: Read, query: ListRuns, now: Millis) -> RowPage:
    roots: Condition = ("task_kind = 'root'", ())
    source = roots if query.schedule is None else _tagged(SCHEDULE, query.schedule)
    rows = _walk(read, [[source]], query.cursor or "", query.limit + 1)
    matching = (row for row in (projected(*row, now) for row in rows) if matches_run(query, *row))
    return RowPage(*page_of_rows(matching, query.limit))


def held(read: Read, query: ListHeld) -> TaskPage:
    condition = ("task_holder = ? AND task_pid = ?", (query.incarnation, query.pid))
    pairs = _walk(read, [[condition]], query.cursor or "", query.limit + 1)
    return TaskPage(*page((task for _, task in pairs if task is not None), query.limit))


def page(matching: Iterator[T], limit: int) -> tuple[list[T], str | None]:
    """The first `limit` rows, and the last one's id when there are more."""
    found = list(islice(matching, limit + 1))
    more = len(found) > limit
    return found[:limit], found[limit - 1].id if more else None


def page_of_rows(matching: Iterator[Pair], limit: int) -> tuple[list[Pair], str | None]:
    found = list(islice(matching, limit + 1))
    more = len(found) > limit
    return found[:limit], found[limit - 1][0].id if more else None


def _projected(
    read: Read, query: Search, column: str, state: str | None, now: Millis
) -> Iterator[Pair]:
    """Candidates in id order, as they read at `now`."""
    sources = _sources(query, column, state, now)
    for promise, task in _walk(read, sources, query.cursor or "", query.limit + 1):
        yield projected(promise, task, now)


def _walk(
    read: Read, sources: Sequence[Sequence[Condition]], cursor: str, chunk: int
) -> Iterator[Pair]:
    """Every row of any source, once, in id order, a chunk at a time."""
    while True:
        merged: dict[str, Pair] = {}
        for conditions in sources:
            merged |= {pair[0].id: pair for pair in _read(read, conditions, cursor, chunk)}
        ids = sorted(merged)[:chunk]
        yield from (merged[key] for key in ids)
        if len(ids) < chunk:
            return
        cursor = ids[-1]


def _read(read: Read, conditions: Sequence[Condition], cursor: str, chunk: int) -> list[Pair]:
    tagged = any(text.startswith("t.") for text, _ in conditions)
    source, key = (
        ("tags AS t CROSS JOIN promises", "t.id") if tagged else ("promises", "promises.id")
    )
    after: Condition = (f"{key} > ?", (cursor,))
    where = " AND ".join(text for text, _ in (*conditions, after))
    arguments = [argument for _, given in (*conditions, after) for argument in given]
    return read(f"{source} WHERE {where} ORDER BY {key}", arguments, chunk)


def _sources(query: Search, column: str, state: str | None, now: Millis) -> list[list[Condition]]:
    """Index ranges that together hold every match; the first filter given drives."""
    name = query.tags.get(NAME)
    if name is not None:
        return _named(query, name)
    filters = [*_tag_filters(query.tags), *_column_filters(query), *_prefix_filter(query)]
    if query.root is not None:
        return _below(query.root, filters)
    if filters or state is None:
        return [filters]
    overdue: Condition = (
        f"settled_at IS NULL AND timeout_at < {NEVER} AND timeout_at <= ?",
        (now,),
    )
    if (column, state) == ("task_state", "fulfilled"):
        over: Condition = ("task_state = 'fulfilled'", ())
        return [*([(f"state = '{each}'", ()), over] for each in SETTLED), [overdue]]
    found = open_tasks(state) if column == "task_state" else f"state = '{state}'"
    return [[(found, ())], [overdue]]


def open_tasks(state: str) -> str:
    """By an index without fulfilled ones, which only a condition that says the same can use."""
    return f"task_state = '{state}' AND task_state <> 'fulfilled'"


def _named(query: Search, name: str) -> list[list[Condition]]:
    """A task's name is in its column; on a promise without a task it is a tag like any other."""
    rest = [each for each in _column_filters(query) if not each[0].startswith("task_name")]
    rest += _prefix_filter(query)
    return [[("task_name = ?", (name,)), *rest], [_tagged(NAME, name), *rest]]


def _below(root: str, filters: list[Condition]) -> list[list[Condition]]:
    below: Condition = ("root = ? AND root <> promises.id", (root,))
    return [[below, *filters], [("promises.id = ?", (root,)), *filters]]


def _tag_filters(wanted: Tags) -> Iterator[Condition]:
    """The first tag drives through its index, the others are looked up for each row."""
    tags = sorted(item for item in wanted.items() if indexed_tags.is_indexed(item[0]))
    for key, value in tags[:1]:
        yield _tagged(key, value)
    for key, value in tags[1:]:
        found = (indexed_tags.stored(key), indexed_tags.stored(value))
        exists = "SELECT 1 FROM tags AS u WHERE u.key = ? AND u.value = ? AND u.id = promises.id"
        yield f"EXISTS ({exists})", found


def _tagged(key: str, value: str) -> Condition:
    found = (indexed_tags.stored(key), indexed_tags.stored(value))
    return "t.key = ? AND t.value = ? AND promises.id = t.id", found


def _prefix_filter(query: Search) -> Iterator[Condition]:
    if query.prefix is not None:
        yield "promises.id >= ? AND promises.id < ?", (query.prefix, query.prefix + LAST)


def _column_filters(query: Search) -> Iterator[Condition]:
    for key, column in indexed_tags.COLUMN_OF.items():
        if key in query.tags and key != TARGET:
            yield f"{column} = ?", (query.tags[key],)
    for target in dict.fromkeys((query.tags.get(TARGET), query.target)):
        if target is not None:
            yield _targeted(target)
    for column, value in {"task_name": query.name, "task_group": query.group}.items():
        if value is not None:
            yield f"{column} = ?", (value,)


def _targeted(target: str) -> Condition:
    """The target of our own tasks follows from their group, which has an index anyway."""
    group = group_of(target)
    if group is None:
        return "task_target = ? AND task_group IS NULL", (target,)
    return "task_group = ? AND task_target = ?", (group, target)
