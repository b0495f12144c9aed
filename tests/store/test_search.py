"""Searches: the same pages from either store, on the projected view, and always by an index."""

import random
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.search import has_tags
from layby.core.settings import Settings
from layby.store import by_time, searches
from layby.store.sql import SqlStore
from tests.helpers import requests as r
from tests.helpers.worlds import Timed, World, new_store

TAGS = ("a", "b", "A", "ä", "a\0b", "x" * 600, "", "50%_")
KEYS = ("k", "resonate:branch", "layby:name", "layby:kind", "resonate:timer", "")
TARGETS = (r.OTHER, "poll://any@layby.g", "poll://any@layby.h", "http://example.org/é")
NOW = 1_000


def rows(chance: random.Random, size: int) -> Iterator[Timed]:
    """Promises of all sorts: with tasks and without, of runs, settled, overdue, placeholders."""
    for at in range(size):
        key = chance.choice(("r", "r.1", "r:1", "q", "é", "run/a:b"))
        tags = {chance.choice(KEYS): chance.choice(TAGS) for _ in range(chance.randrange(3))}
        if chance.random() < 0.6:
            tags["resonate:target"] = chance.choice(TARGETS)
        elif "layby:name" in tags:
            continue  # see test_a_name_without_a_target_is_found
        tags = {key: value for key, value in tags.items() if fits(key, value)}
        timeout_at = chance.choice((NOW - 1, NOW, NOW + 1, 10**9))
        promise_id = f"{key}.{at}" if chance.random() < 0.9 else key
        yield c.CreatePromise(id=promise_id, timeout_at=timeout_at, tags=tags), 0
        if chance.random() < 0.3:
            yield r.settle(promise_id, chance.choice(("resolved", "rejected"))), 1
        if chance.random() < 0.2:
            yield c.HaltTask(id=promise_id), 1
    yield c.EnsurePromise(id="placeholder"), 1
    yield r.run(timeout=NOW - 1, a="", b="a"), 1
    yield r.take(1), 1


def fits(key: str, value: str) -> bool:
    """Tags with a column of their own take no NUL: those are refused."""
    return key not in ("resonate:branch", "layby:name") or "\0" not in value


def maybe(options: tuple) -> st.SearchStrategy:
    return st.none() | st.sampled_from(options)


filters = st.fixed_dictionaries(
    {
        "limit": st.sampled_from((1, 2, 7, 1000)),
        "tags": st.dictionaries(
            st.sampled_from((*KEYS, "resonate:target")), st.sampled_from(TAGS + TARGETS), max_size=2
        ),
        "root": maybe(("r", "q", "run/a", "none", "é")),
        "target": maybe(TARGETS),
        "name": maybe(("f", "root", *TAGS)),
        "group": maybe(("g", "h")),
    }
)


@given(
    seed=st.integers(0, 30),
    strict=st.booleans(),
    chosen=filters,
    state=maybe(("pending", "resolved", "rejected", "rejected_timedout", "rejected_canceled")),
    task_state=maybe(("pending", "acquired", "suspended", "halted", "fulfilled")),
)
@settings(max_examples=150)
def test_both_stores_find_the_same(
    seed: int, strict: bool, chosen: dict, state: Any, task_state: Any
) -> None:
    """Page by page, for promises and tasks, exactly the rows that match as they stand now."""
    worlds = prepared(seed, Settings(strict_external=strict))
    for query, items in (
        (q.SearchPromises(state=state, **chosen), "promises"),
        (q.SearchTasks(state=task_state, **chosen), "tasks"),
    ):
        pages = [walk(world, query, items) for world in worlds]
        assert pages[0] == pages[1], query
        assert_right(worlds[0], query, [each.id for page in pages[0] for each in page])


@cache
def prepared(seed: int, profile: Settings) -> tuple[World, World]:
    """Two stores with the same random rows; strict ones have internal promises among them."""
    script = list(rows(random.Random(seed), 40))
    worlds = (
        World("memory", now=NOW, settings=profile),
        World("sqlite", now=NOW, settings=profile),
    )
    for world in worlds:
        world.batch(script)
    return worlds


def walk(world: World, query: q.SearchPromises | q.SearchTasks, items: str) -> list[list]:
    """All pages, following the cursor."""
    pages: list[list] = []
    while True:
        data = world.ok(query)
        pages.append(list(getattr(data, items)))
        if data.cursor is None:
            return pages
        assert len(pages[-1]) == query.limit
        assert data.cursor == pages[-1][-1].id
        query = replace(query, cursor=data.cursor)


def assert_right(world: World, query: q.SearchPromises | q.SearchTasks, found: list[str]) -> None:
    """The naive reading: look at every row."""
    state = world.dump()
    expected: list[str] = []
    for key, stored in sorted(state.promises.items()):
        promise, task = stored.at(NOW), state.tasks.get(key)
        over = not promise.is_pending
        if isinstance(query, q.SearchTasks):
            if task is None or query.state not in (None, "fulfilled" if over else task.state):
                continue
        elif query.state not in (None, promise.state):
            continue
        wanted = (query.target, query.name, query.group)
        has = (None, None, None) if task is None else (task.target, task.name, task.group)
        if any(want not in (None, is_) for want, is_ in zip(wanted, has, strict=True)):
            continue
        if query.root in (None, promise.root) and has_tags(promise.tags, query.tags):
            expected.append(key)
    assert found == expected, query


def test_records_are_projected() -> None:
    """What is found by its state at this moment is also shown so."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            world.ok(r.target("x", 500))
            world.clock.advance(500)
            (found,) = world.ok(q.SearchPromises(state="rejected_timedout")).promises
            assert found.settled_at == 500
            (task,) = world.ok(q.SearchTasks(state="fulfilled")).tasks
            assert task.state == "fulfilled"


def test_a_name_without_a_target_is_found() -> None:
    """The tag alone makes no task, but it is a tag like any other."""
    with World("sqlite") as world:
        world.ok(c.CreatePromise(id="x", timeout_at=9, tags={"layby:name": "f"}))
        found = world.ok(q.SearchPromises(tags={"layby:name": "f"})).promises
        assert [each.id for each in found] == ["x"]


@pytest.mark.parametrize("key", ["resonate:branch", "layby:name"])
def test_tags_with_a_column_must_fit_into_it(key: str) -> None:
    """SQLite would cut them at a NUL, and hand the task to a worker for another name."""
    with World("sqlite") as world:
        tags = {"resonate:target": r.OTHER, key: "f\0g"}
        assert world.send(c.CreatePromise(id="x", timeout_at=9, tags=tags)).status == 400


SCHEDULE_TAGS = {"resonate:target": r.OTHER}


def test_schedules_and_held_tasks_come_in_pages() -> None:
    """By id, with a cursor, on either store."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            for key in "bca":
                tags = SCHEDULE_TAGS | ({"k": "v"} if key != "b" else {})
                world.ok(
                    c.CreateSchedule(
                        id=key,
                        cron="* * * * *",
                        promise_id="x",
                        promise_timeout=1,
                        promise_tags=tags,
                    )
                )
            page = world.ok(q.SearchSchedules(limit=1, tags={"k": "v"}))
            assert ([each.id for each in page.schedules], page.cursor) == (["a"], "a")
            page = world.ok(q.SearchSchedules(limit=1, tags={"k": "v"}, cursor="a"))
            assert ([each.id for each in page.schedules], page.cursor) == (["c"], None)
            world.ok(r.run(a="", b="", d=""))
            world.ok(r.take())
            page = world.ok(q.ListHeld(pid="p", incarnation="1", limit=2))
            assert ([each.id for each in page.tasks], page.cursor) == (
                ["run/a:a", "run/a:b"],
                "run/a:b",
            )
            page = world.ok(q.ListHeld(pid="p", incarnation="1", cursor="run/a:b"))
            assert [each.id for each in page.tasks] == ["run/a:d"]


def test_the_records_of_a_task_come_in_pages() -> None:
    """Itself first, then what is below its id; neighbours with like names are left out."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            world.ok(r.target("t"))
            for key in ("t-1", "t.c.a", "t.c.b", "t.w0.c", "t/x", "t:1", "tt"):
                world.ok(r.promise(key))
            page = world.ok(q.GetRecords(id="t", limit=2))
            assert ([p.id for p, _ in page.rows], page.cursor) == (["t", "t.c.a"], "t.c.a")
            assert [task is not None for _, task in page.rows] == [True, False]
            page = world.ok(q.GetRecords(id="t", cursor="t.c.a"))
            assert ([p.id for p, _ in page.rows], page.cursor) == (["t.c.b", "t.w0.c"], None)
            assert world.ok(q.GetRecords(id="nothing")).rows == []


INDEXED: dict[str, tuple[q.Search | q.ListRuns, str]] = {
    "promise state": (q.SearchPromises(state="resolved"), "promises_state"),
    "open promises": (q.SearchPromises(state="pending"), "promises_state"),
    "task state": (q.SearchTasks(state="suspended"), "promises_task_state"),
    "tasks that are over": (q.SearchTasks(state="fulfilled"), "promises_internal"),
    "root": (q.SearchPromises(root="r"), "promises_root"),
    "target": (q.SearchTasks(target=r.OTHER), "promises_target"),
    "name": (q.SearchTasks(name="f"), "promises_name"),
    "group": (q.SearchTasks(group="g"), "promises_group"),
    "tag": (q.SearchPromises(tags={"k": "v"}), "sqlite_autoindex_tags_1|USING PRIMARY KEY"),
    "branch": (q.SearchPromises(tags={"resonate:branch": "b"}), "promises_branch"),
    "schedule": (q.ListRuns(schedule="s"), "sqlite_autoindex_tags_1|USING PRIMARY KEY"),
    "newest of a schedule": (
        q.ListRuns(schedule="s", newest_first=True),
        "sqlite_autoindex_tags_1|USING PRIMARY KEY",
    ),
}


@pytest.mark.parametrize("name", INDEXED)
def test_every_filter_has_an_index(name: str) -> None:
    """The planner reads a range of it; no filter scans or sorts the table.

    What is overdue is found by time, and sorted: there is little of it.
    """
    query, index = INDEXED[name]
    plans = plans_of(query)
    assert any(part in plan for plan in plans for part in index.split("|")), plans
    for plan in plans:
        assert "SCAN promises" not in plan, plan
        assert "sqlite_autoindex_promises_1 (id>?)" not in plan, plan
        assert "TEMP B-TREE" not in plan or "promises_timeout (timeout_at<?)" in plan, plan


def plans_of(query: q.Search | q.ListRuns) -> list[str]:
    """How SQLite would carry out each statement of a search."""
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        return list(_plans(store, query))


def _plans(store: SqlStore, query: q.Search | q.ListRuns) -> list[str]:
    found: list[str] = []

    def explain(source: str, arguments, limit: int) -> list:
        statement = f"EXPLAIN QUERY PLAN SELECT promises.id FROM {source} LIMIT ?"
        plan = store._connection.execute(statement, (*arguments, limit)).fetchall()
        found.append("\n".join(row[3] for row in plan))
        return []

    if isinstance(query, q.ListRuns) and query.newest_first:
        rows_before = by_time.newest_by_index(explain, query.schedule)
        by_time.newest_runs(rows_before, store._fill, query, NOW)
    elif isinstance(query, q.ListRuns):
        list(searches.roots(explain, query))
    else:
        assert isinstance(query, q.SearchPromises | q.SearchTasks)
        column = "state" if isinstance(query, q.SearchPromises) else "task_state"
        list(searches.searched(explain, query, column, query.state, NOW))
    return found
