"""Pages are bounded in bytes and in rows looked at, before anything large is read."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import EMPTY
from layby.core.values import Value
from layby.store import page_bounds, sqlite_session, sqlite_snapshots
from layby.store.page_bounds import fitting, next_chunk, size_of
from layby.store.sql import SqlStore
from layby.store.sqlite_snapshots import SqliteSnapshots
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

NOW = 1_000


@pytest.fixture
def small(monkeypatch) -> int:
    monkeypatch.setattr(page_bounds, "PAGE_BYTES", 3_000)
    return 3_000


def fill(world: World, chance: random.Random, count: int) -> None:
    """Runs and promises with params, values, tags and errors of all sizes; some wait."""

    def text() -> str:
        return chance.choice(("", "x", "é")) * chance.choice((0, 10, 500, 2_000, 9_000))

    for at in range(count):
        key = f"p{at:03}"
        tags = {"k": "v", "note": text()[:600]}
        if at % 3 == 0:
            tags["resonate:target"] = r.OTHER
        world.ok(c.CreatePromise(id=key, timeout_at=9**9, param=Value(data=text()), tags=tags))
        if at % 4 == 0:
            world.ok(c.RegisterListener(awaited=key, address="http://example.org"))
        if at % 4 == 1:
            world.ok(c.ResolvePromise(id=key, state="resolved", value=Value(data=text())))
        if at % 5 == 0:
            run = r.run(f"run/{at:03}", a="", b="a")
            world.ok(replace(run, param=Value(data=text())))


QUERIES: dict[str, tuple[Any, str]] = {
    "promises": (q.SearchPromises(limit=50), "promises"),
    "promises by tag": (q.SearchPromises(limit=7, tags={"k": "v"}), "promises"),
    "promises by state": (q.SearchPromises(limit=50, state="resolved"), "promises"),
    "tasks": (q.SearchTasks(limit=50), "tasks"),
    "runs": (q.ListRuns(limit=50), "rows"),
    "newest runs": (q.ListRuns(limit=50, newest_first=True), "rows"),
    "a run": (q.GetRun(id="run/005"), "rows"),
    "records": (q.GetRecords(id="p006"), "rows"),
    "waiting": (q.ListWaiting(limit=50), "entries"),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("seed", range(3))
def test_pages_are_the_same_in_both_stores(name: str, seed: int, small: int) -> None:
    """None holds more than the bound and one row; together they hold what one page would."""
    query, items = QUERIES[name]
    told: list[Any] = []
    for backend in BACKENDS:
        with World(backend, now=NOW) as world:
            fill(world, random.Random(seed), 40)
            told.append(pages(world, query, items))
    assert told[0] == told[1]
    for page in told[0][:-1]:
        assert page
        assert sum(map(heavy, page[:-1])) < small
    rows = [row for page in told[0] for row in page]
    with World("memory", now=NOW) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_bounds, "PAGE_BYTES", 2**40)
        fill(world, random.Random(seed), 40)
        assert rows == list(getattr(world.ok(replace(query, limit=1000)), items))


def pages(world: World, query: Any, items: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    while True:
        data = world.ok(query)
        found.append(list(getattr(data, items)))
        assert len(found[-1]) <= query.limit
        if data.cursor is None:
            return found
        query = replace(query, cursor=data.cursor)


def heavy(row: Any) -> int:
    promise = row[0] if isinstance(row, tuple) else getattr(row, "promise", row)
    texts = (getattr(promise, "param", ""), getattr(promise, "value", ""))
    return sum(map(size_of, texts))


def test_large_rows_make_short_pages(small: int) -> None:
    """As many as fit, and always one, whatever its size."""
    for backend in BACKENDS:
        with World(backend) as world:
            for at, size in enumerate((10, 2_000, 2_000, 2_000, 50_000, 10)):
                data = Value(data="x" * size)
                world.ok(c.CreatePromise(id=f"p{at}", timeout_at=9**9, param=data, tags={}))
            found = pages(world, q.SearchPromises(), "promises")
            assert [len(page) for page in found] == [3, 2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_schedules_come_in_pages_of_bounded_size(backend, small: int) -> None:
    """Their params are read only for those that are shown."""
    with World(backend) as world:
        for key in "abcd":
            world.ok(
                c.CreateSchedule(
                    id=key,
                    cron="* * * * *",
                    promise_id="x",
                    promise_timeout=1,
                    promise_param=Value(data="x" * 2_000),
                    promise_tags={"resonate:target": r.OTHER},
                )
            )
        found = pages(world, q.SearchSchedules(), "schedules")
        assert [[each.id for each in page] for page in found] == [["a", "b"], ["c", "d"], []]
        assert "xxx" in found[0][0].promise_param


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_search_looks_at_so_many_rows(backend, monkeypatch) -> None:
    """A page may be empty and have a cursor; following it, everything is found."""
    monkeypatch.setattr(page_bounds, "LOOKED_AT", 10)
    with World(backend) as world:
        for at in range(35):
            world.ok(c.CreatePromise(id=f"p{at:02}", timeout_at=9**9, tags={"k": "v"}))
        world.ok(r.settle("p25"))
        query = q.SearchPromises(tags={"k": "v"}, state="resolved")
        found = pages(world, query, "promises")
        assert [[each.id for each in page] for page in found] == [[], [], ["p25"], []]


UNSHOWN: dict[str, Any] = {
    "tasks": q.SearchTasks(),
    "waiting": q.ListWaiting(),
    "held": q.ListHeld(pid="p", incarnation="1"),
}


@pytest.mark.parametrize("name", UNSHOWN)
def test_what_is_not_shown_is_not_read(name: str) -> None:
    """No statement of these lists names a column of params or values."""
    statements: list[str] = []
    with World("sqlite") as world:
        fill(world, random.Random(1), 12)
        world.ok(r.take())
        assert isinstance(world.store, SqlStore)
        with world.store.transaction():
            world.store._connection.set_trace_callback(statements.append)
            reply = UNSHOWN[name].read(world.store, NOW)
            world.store._connection.set_trace_callback(None)
    assert reply.is_ok
    assert statements
    for statement in statements:
        assert '"param"' not in statement
        assert '"value"' not in statement


@pytest.mark.parametrize(
    ("sizes", "read"),
    [
        pytest.param((10, 10_000, 10_000, 10_000, 10), 5, id="none is large"),
        pytest.param((10, 20_000, 20_000, 20_000, 10), 3, id="until the bound is reached"),
        pytest.param((90_000, 20_000), 1, id="the first is larger than the bound"),
        pytest.param((10, 20_000, 10, 10), 4, id="all of them fit"),
    ],
)
def test_texts_beyond_the_bound_are_not_read(sizes: tuple[int, ...], read: int) -> None:
    with World("sqlite") as world:
        for at, size in enumerate(sizes):
            data = Value(data="x" * size)
            world.ok(c.CreatePromise(id=f"p{at}", timeout_at=9**9, param=data, tags={}))
        assert isinstance(world.store, SqlStore)
        ids = [f"p{at}" for at in range(len(sizes))]
        with world.store.transaction():
            texts = world.store._texts_of("promises", ("param",), ids, most=30_000)
    assert [text.count("x") for (text,) in texts] == [*sizes[:read]]


@pytest.mark.parametrize("letter", ["x", "é", "𝄞"])
def test_a_text_that_is_read_in_pieces_is_whole(letter: str, monkeypatch) -> None:
    """By the writer and by readers, wherever the pieces are cut, beside others that are small; and
    readers let the writer go first after each piece, and pause for whoever else waits.
    """
    monkeypatch.setattr(sqlite_session, "PIECE", 1_001)
    pauses = list[float]()
    monkeypatch.setattr(sqlite_snapshots, "sleep", pauses.append)
    with World("sqlite") as world:
        large, small = Value(data=letter * 300_000), Value(data="small")
        for key, param in (("a", small), ("b", large)):
            world.ok(c.CreatePromise(id=key, timeout_at=9**9, param=param, tags={}))
        settle = c.SettlePromise(id="b", state="resolved", value=large)
        assert letter * 300_000 in world.ok(settle).promise.param
        ways = list[int]()
        reader = world.store.open_reader(lambda: ways.append(1))
        with reader.snapshot(60) as seen:
            assert isinstance(seen, SqliteSnapshots)
            texts = seen._texts_of("promises", ("param", "value"), ["a", "b"])
        reader.close()
    assert "small" in texts[0][0]
    assert texts[0][1] == EMPTY
    assert all(letter * 300_000 in text for text in texts[1])
    pieces = 2 * 300_000 * len(letter.encode()) // 1_001
    assert len(ways) > pieces
    assert len(pauses) > pieces
    assert set(pauses) == {sqlite_snapshots.PAUSE_S}


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_promise_that_is_explained_is_whole(backend) -> None:
    """What it waits for is told without params and values, and so is every list of waits."""
    with World(backend) as world:
        world.ok(c.CreatePromise(id="x", timeout_at=9**9, param=Value(data="large"), tags={}))
        tags = {"resonate:target": r.OTHER}
        world.ok(c.CreatePromise(id="t", timeout_at=9**9, param=Value(data="own"), tags=tags))
        world.ok(r.acquire("t", 0))
        world.ok(r.suspend("t", 1, "x"))
        about = world.ok(q.ExplainPromise(id="t"))
        assert "own" in about.promise.param
        assert [promise.param for promise, _ in about.awaited] == [EMPTY]
        (entry,) = world.ok(q.ListWaiting()).entries
        assert (entry.promise.id, entry.promise.param) == ("t", EMPTY)


@given(st.lists(st.integers(0, 9_000_000), max_size=30))
def test_a_page_ends_with_the_row_that_reaches_the_bound(sizes: list[int]) -> None:
    """Neither before it nor after it."""
    count = fitting(sizes)
    assert sum(sizes[: count - 1]) < page_bounds.PAGE_BYTES or count == 0
    assert count == len(sizes) or sum(sizes[:count]) >= page_bounds.PAGE_BYTES


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
@settings(max_examples=30)
def test_large_rows_are_read_a_few_at_a_time(sizes: Sequence[int]) -> None:
    """So that a chunk of rows like the last ones is no larger than a page, unless it is one row."""
    rows = ["x" * size for size in sizes]
    average = sum(len(row) + 2 for row in rows) // len(rows)
    chunk = next_chunk(rows)
    assert 1 <= chunk <= page_bounds.CHUNK
    assert chunk == 1 or chunk * average <= page_bounds.PAGE_BYTES
