"""Lists, searches and counts from PostgreSQL: the same pages as from the memory store."""

import random
import threading
from typing import Any

import pytest

from layby.core import queries as q
from layby.core.stats import GetStats
from layby.errors import ReadRefused, StoreAway
from tests.helpers import requests as r
from tests.helpers.postgres import cluster, own_cluster
from tests.helpers.postgres_stores import postgres_store
from tests.helpers.two_engines import running, sharing, told, until_available
from tests.helpers.worlds import World
from tests.store import test_by_time as by_time
from tests.store import test_search as search

ROUNDS = 60
STATES: tuple[Any, ...] = (None, "pending", "resolved", "rejected_timedout")
TASK_STATES: tuple[Any, ...] = (None, "pending", "halted", "fulfilled")


@pytest.mark.parametrize("seed", range(3))
def test_searches_find_the_same(seed: int) -> None:
    """Promises and tasks, by every filter, page by page."""
    chance = random.Random(seed)
    with World("memory", now=search.NOW) as memory, World("postgres", now=search.NOW) as postgres:
        script = list(search.rows(random.Random(seed), 40))
        for world in (memory, postgres):
            world.batch(script)
        for _ in range(ROUNDS):
            given = filters(chance)
            for query, items in (
                (q.SearchPromises(state=chance.choice(STATES), **given), "promises"),
                (q.SearchTasks(state=chance.choice(TASK_STATES), **given), "tasks"),
            ):
                assert search.walk(postgres, query, items) == search.walk(memory, query, items)
        assert postgres.dump() == memory.dump()


def filters(chance: random.Random) -> dict[str, Any]:
    tags = {chance.choice(search.KEYS): chance.choice(search.TAGS)} if chance.random() < 0.4 else {}

    def maybe(options: tuple[str, ...]) -> str | None:
        return chance.choice(options) if chance.random() < 0.3 else None

    return {
        "limit": chance.choice((1, 2, 7, 1000)),
        "tags": tags,
        "root": maybe(("r", "q", "run/a", "none", "é")),
        "target": maybe(search.TARGETS),
        "name": maybe(("f", "root", "a")),
        "group": maybe(("g", "h")),
        "prefix": maybe(("r", "run/", "é", "50%_")),
    }


@pytest.mark.parametrize("seed", range(3))
def test_lists_by_time_are_the_same(seed: int) -> None:
    """What waits, which runs are newest, why something has not settled, how much there is."""
    chance = random.Random(seed)
    now = by_time.NOW
    with World("memory", now=now) as memory, World("postgres", now=now) as postgres:
        timed = by_time.rows(random.Random(seed), 25)
        script = sorted(timed, key=lambda each: each[1])
        for world in (memory, postgres):
            world.batch(script)
        for _ in range(ROUNDS):
            waiting = q.ListWaiting(
                limit=chance.choice((1, 2, 7, 1000)),
                until=chance.choice((None, now // 2)),
                wait_kind=chance.choice((None, *by_time.KINDS)),
                prefix=chance.choice((None, "a", "run/")),
            )
            assert by_time.walk(postgres, waiting) == by_time.walk(memory, waiting)
        for newest in (True, False):
            runs = q.ListRuns(limit=1000, newest_first=newest)
            assert postgres.ok(runs) == memory.ok(runs)
        for key, promise in memory.dump().promises.items():
            why, below = q.ExplainPromise(id=key), q.GetRun(id=promise.root)
            assert by_time.plainly(postgres.ok(why)) == by_time.plainly(memory.ok(why))
            assert postgres.ok(below) == memory.ok(below)
        assert postgres.ok(GetStats()) == memory.ok(GetStats())


def test_a_read_sees_what_its_caller_has_committed() -> None:
    """Through a connection of its own, beside the writer."""
    with sharing(engines=1) as shared:
        (engine,) = shared.engines
        for number in range(20):
            assert engine.call(r.promise(f"p{number:02}")).is_ok
            found = told(engine, q.SearchPromises(prefix="p")).promises
            assert len(found) == number + 1


def test_a_snapshot_does_not_change() -> None:
    store = postgres_store()
    reader = store.open_reader(lambda: None)
    try:
        with reader.snapshot(10) as seen:
            assert seen.dump().promises == {}
            with running(cluster().url(store.database)) as engine:
                assert engine.call(r.promise("p")).is_ok
            assert seen.dump().promises == {}
        with reader.snapshot(10) as seen:
            assert list(seen.dump().promises) == ["p"]
    finally:
        reader.close()
        store.close()


def test_a_read_that_takes_too_long_is_refused() -> None:
    """Within a statement, and between two."""
    store = postgres_store()
    reader = store.open_reader(lambda: None)
    try:
        with pytest.raises(ReadRefused, match=r"longer than 0\.2 s"), reader.snapshot(0.2):
            reader._session.row("SELECT CAST(pg_sleep(5) AS text)")
        with pytest.raises(ReadRefused), reader.snapshot(0.05) as seen:  # noqa: PT012 - in order
            threading.Event().wait(0.1)
            seen.dump()
        with reader.snapshot(10) as seen:
            assert seen.dump().promises == {}
    finally:
        reader.close()
        store.close()


def test_a_reader_connects_again() -> None:
    with own_cluster() as fragile, running(fragile.url(fragile.new_database())) as engine:
        assert engine.call(r.promise("p")).is_ok
        assert len(told(engine, q.SearchPromises()).promises) == 1
        fragile.stop()
        with pytest.raises(StoreAway):
            engine.call(q.SearchPromises())
        fragile.start()
        assert until_available(engine, r.settle("p")).is_ok
        found = until_available(engine, q.SearchPromises()).data.promises
        assert [each.state for each in found] == ["resolved"]
