"""Lists ordered by time, as keyset pages: what has waited longest, which runs are newest.

The store reads ranges of an index; core decides what really matches. A page looks at a bounded
number of rows: with a rare match in a large store it may come back short, with a cursor to
continue from.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from layby.core.model import FAR, Millis, Promise, Task
from layby.core.queries import (
    ExplainPromise,
    ListRuns,
    ListWaiting,
    TimedKey,
    timed_cursor,
    timed_key,
)
from layby.core.replies import Explanation, RowPage, WaitingPage
from layby.core.search import (
    matches_run,
    matches_waiting,
    projected,
)
from layby.core.tag_names import SCHEDULE
from layby.core.waits import waits_since
from layby.store import indexed_tags
from layby.store.neighbours import Neighbours, explained
from layby.store.page_bounds import FIRST, PARAMS, WHOLE, Fill, Pair, filled, next_chunk, page
from layby.store.statements import LAST

T = TypeVar("T")
Read = Callable[[str, Sequence[object], int], list[Pair]]
"""Reads lean pairs by a FROM/WHERE text, its arguments and a limit."""
Next = Callable[[TimedKey, Millis, int], list[Pair]]
"""The next rows after a key, up to an instant (from it, in descending lists) and a limit."""

LISTED: Final = 3
"""How many awaited and awaiting ids an entry of a list carries."""
EXPLAINED: Final = 100

WAITING: Final = """
    promises WHERE task_waiting_since IS NOT NULL
        AND (task_waiting_since, id) > (?, ?) AND task_waiting_since <= ?
    ORDER BY task_waiting_since, id
"""
OUTSIDE: Final = """
    promises WHERE settled_at IS NULL AND task_target IS NULL AND timer = 0 AND internal = 0
        AND (created_at, id) > (?, ?) AND created_at <= ?
    ORDER BY created_at, id
"""
NEWEST: Final = """
    promises WHERE task_kind = 'root' AND (created_at, id) < (?, ?)
    ORDER BY created_at DESC, id DESC
"""
NEWEST_OF_SCHEDULE: Final = f"""
    tags AS t CROSS JOIN promises
    WHERE t.key = '{SCHEDULE}' AND t.value = ? AND promises.id = t.id AND t.id < ?
    ORDER BY t.id DESC
"""
"""Ids of its runs end with their instant, so ordering by id is ordering by time."""


# --- what waits --------------------------------------------------------------------------


def waiting(rows_after: Next, look: Neighbours, query: ListWaiting, now: Millis) -> WaitingPage:
    until = FAR if query.until is None else query.until

    def show(rows: list[Pair]) -> Iterable[Explanation]:
        shown = [row for row in _projected(rows, now) if matches_waiting(query, *row, now)]
        return (each for each in explained(look, shown, LISTED, now) if _is_awaited(each))

    rows = _rows(query, (-1, ""), lambda key, limit: rows_after(key, until, limit), _key)
    return WaitingPage(*page(rows, query.limit, show, _cursor(_key), _cursor(_entry_key)))


def explanation(
    look: Neighbours, fill: Fill, query: ExplainPromise, now: Millis
) -> Explanation | None:
    """With its own param and value; of what is around it, only what is short."""
    rows = _projected(fill(look.pairs([query.id]), WHOLE), now)
    return explained(look, rows, EXPLAINED, now)[0] if rows else None


def waiting_by_index(read: Read) -> Next:
    """The next rows of both indexes, merged in order."""

    def rows_after(key: TimedKey, until: Millis, limit: int) -> list[Pair]:
        tasks, promises = (read(text, (*key, until), limit) for text in (WAITING, OUTSIDE))
        return in_order([*tasks, *promises])[:limit]

    return rows_after


def waiting_of(rows: Sequence[Pair]) -> Next:
    """The same from all rows."""

    def rows_after(key: TimedKey, until: Millis, limit: int) -> list[Pair]:
        listed = in_order([row for row in rows if _can_wait(*row)])
        return [row for row in listed if key < _key(row) and _key(row)[0] <= until][:limit]

    return rows_after


def in_order(rows: Sequence[Pair]) -> list[Pair]:
    return sorted(rows, key=_key)


def _can_wait(promise: Promise, task: Task | None) -> bool:
    """What the indexes hold: rows as stored, not as they read now."""
    if task is not None:
        return task.waiting_since is not None
    return promise.settled_at is None and not promise.timer and not promise.internal


def _is_awaited(entry: Explanation) -> bool:
    """A promise without a task is listed for those who listen from outside.

    Every task that waits for it, in the store or in memory, is listed itself and says for what:
    the same wait must not be there twice. If nobody waits for it, it just exists.
    """
    return entry.task is not None or entry.listeners > 0


def _key(row: Pair) -> TimedKey:
    return waits_since(*row), row[0].id


def _entry_key(entry: Explanation) -> TimedKey:
    return _key((entry.promise, entry.task))


# --- runs --------------------------------------------------------------------------------


def newest_runs(rows_before: Next, fill: Fill, query: ListRuns, now: Millis) -> RowPage:
    def show(rows: list[Pair]) -> Iterable[Pair]:
        matching = [row for row in _projected(rows, now) if matches_run(query, *row)]
        return filled(fill, matching, PARAMS)

    rows = _rows(query, (FAR, LAST), lambda key, limit: rows_before(key, 0, limit), _birth)
    return RowPage(*page(rows, query.limit, show, _cursor(_birth), _cursor(_birth)))


def newest_by_index(read: Read, schedule: str | None) -> Next:
    if schedule is None:
        return lambda key, _, limit: read(NEWEST, key, limit)
    tag = indexed_tags.stored(schedule)
    return lambda key, _, limit: read(NEWEST_OF_SCHEDULE, (tag, key[1]), limit)


def newest_of(rows: Sequence[Pair]) -> Next:
    roots = [row for row in rows if row[1] is not None and row[1].is_root]

    def rows_before(key: TimedKey, _: Millis, limit: int) -> list[Pair]:
        listed = sorted((row for row in roots if _birth(row) < key), key=_birth, reverse=True)
        return listed[:limit]

    return rows_before


def _birth(row: Pair) -> TimedKey:
    return row[0].created_at, row[0].id


# --- both --------------------------------------------------------------------------------


def _rows(
    query: ListWaiting | ListRuns,
    start: TimedKey,
    read: Callable[[TimedKey, int], list[Pair]],
    key_of: Callable[[Pair], TimedKey],
) -> Iterator[Pair]:
    """Those after the cursor, read as they are needed."""
    key = timed_key(query.cursor or "") or start
    chunk = min(query.limit + 1, FIRST)
    while rows := read(key, chunk):
        yield from rows
        if len(rows) < chunk:
            return
        key, chunk = key_of(rows[-1]), next_chunk(rows)


def _cursor(key_of: Callable[[T], TimedKey]) -> Callable[[T], str]:
    return lambda row: timed_cursor(key_of(row))


def _projected(rows: Sequence[Pair], now: Millis) -> list[Pair]:
    return [projected(*row, now) for row in rows]
