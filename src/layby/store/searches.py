"""Searches by ranges of an index, in id order. Core decides what of it really matches."""

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Final

from layby.core.address import group_of
from layby.core.commands import Tags
from layby.core.joins import MAP
from layby.core.model import NEVER, Millis, PromiseState
from layby.core.queries import GetRecords, GetRun, ListHeld, ListRuns, Search
from layby.core.tag_names import NAME, SCHEDULE, TARGET
from layby.store import indexed_tags
from layby.store.page_bounds import FIRST, Pair, id_of, next_chunk
from layby.store.statements import LAST

Condition = tuple[str, tuple[object, ...]]
Read = Callable[[str, Sequence[object], int], list[Pair]]
"""Reads lean pairs by a FROM/WHERE text, its arguments and a limit."""

OVERDUE: Final = f"settled_at IS NULL AND internal = 0 AND timeout_at < {NEVER} AND timeout_at <= ?"
OVERDUE_INTERNAL: Final = OVERDUE.replace("internal = 0", "internal = 1")
BELOW_JOINS: Final = f"%:{MAP}%:%"
"""As `joins.is_below_join`."""
SETTLED: tuple[PromiseState, ...] = (
    "rejected",
    "rejected_canceled",
    "rejected_timedout",
    "resolved",
)


def searched(
    read: Read, query: Search, column: str, state: str | None, now: Millis
) -> Iterator[Pair]:
    """What may match; `state` is that of the given column."""
    return _walk(read, _sources(query, column, state, now), query.cursor, query.limit)


def of_run(read: Read, query: GetRun) -> Iterator[Pair]:
    """Items are passed over by the database: there may be very many."""
    shown: list[Condition] = [] if query.items else [("promises.id NOT LIKE ?", (BELOW_JOINS,))]
    return _walk(read, _below(query.id, shown), query.cursor, query.limit)


def of_task(read: Read, query: GetRecords) -> Iterator[Pair]:
    itself: Condition = ("promises.id = ?", (query.id,))
    below: Condition = ("promises.id >= ? AND promises.id < ?", (f"{query.id}.", f"{query.id}/"))
    return _walk(read, [[itself], [below]], query.cursor, query.limit)


def roots(read: Read, query: ListRuns) -> Iterator[Pair]:
    every: Condition = ("task_kind = 'root'", ())
    source = every if query.schedule is None else _tagged(SCHEDULE, query.schedule)
    return _walk(read, [[source]], query.cursor, query.limit)


def held(read: Read, query: ListHeld) -> Iterator[Pair]:
    condition = ("task_holder = ? AND task_pid = ?", (query.incarnation, query.pid))
    return _walk(read, [[condition]], query.cursor, query.limit)


def _walk(
    read: Read, sources: Sequence[Sequence[Condition]], cursor: str | None, limit: int
) -> Iterator[Pair]:
    """Every row of any source, once, in id order; read as it is needed."""
    ranges = [_range(read, each, cursor or "", min(limit + 1, FIRST)) for each in sources]
    last = ""
    for row in merge(*ranges, key=id_of):
        if row[0].id > last:
            yield row
            last = row[0].id


def _range(read: Read, conditions: Sequence[Condition], cursor: str, chunk: int) -> Iterator[Pair]:
    while True:
        rows = _read(read, conditions, cursor, chunk)
        yield from rows
        if len(rows) < chunk:
            return
        cursor, chunk = rows[-1][0].id, next_chunk(rows)


def _read(read: Read, conditions: Sequence[Condition], cursor: str, chunk: int) -> list[Pair]:
    source, key = _source([text for text, _ in conditions])
    after: Condition = (f"{key} > ?", (cursor,))
    where = " AND ".join(text for text, _ in (*conditions, after))
    arguments = [argument for _, given in (*conditions, after) for argument in given]
    return read(f"{source} WHERE {where} ORDER BY {key}", arguments, chunk)


def _source(conditions: Sequence[str]) -> tuple[str, str]:
    """The tables, and the key that orders them."""
    if any(each.startswith("t.") for each in conditions):
        return "tags AS t CROSS JOIN promises", "t.id"
    if OVERDUE in conditions:
        return "promises", "promises.id || ''"  # few, by time: the planner would walk all by id
    return "promises", "promises.id"


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
    if column == "task_state" and state != "fulfilled":
        return [[(open_tasks(state), ())]]
    if column == "state":
        found: Condition = (f"state = '{state}'", ())
        return [[found], *([] if state == "pending" else _overdue(now))]
    over: Condition = ("task_state = 'fulfilled'", ())
    return [*([(f"state = '{each}'", ()), over] for each in SETTLED), *_overdue(now)]


def _overdue(now: Millis) -> list[list[Condition]]:
    """What time has settled, though nobody has written it yet: by two indexes with little in them.

    Of internal promises nobody ever writes it.
    """
    return [[(OVERDUE, (now,))], [(OVERDUE_INTERNAL, (now,))]]


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
