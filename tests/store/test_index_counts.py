"""Counts: the same from either store, right, bounded, and always by an index."""

import random
from collections import Counter
from contextlib import closing

import pytest

from layby.core import commands as c
from layby.core.stats import LIVING, GetStats
from layby.store import index_counts
from layby.store.sql import SqlStore
from tests.helpers import requests as r
from tests.helpers.worlds import World, new_store
from tests.store.test_search import NOW, rows


def filled(world: World, seed: int) -> World:
    world.batch(list(rows(random.Random(seed), 60)))
    world.ok(r.take(3, pid="q", incarnation="2"))
    tags = {"resonate:target": r.OTHER}
    schedule = c.CreateSchedule(
        id="s", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=tags
    )
    world.ok(schedule)
    return world


@pytest.mark.parametrize("seed", range(10))
def test_both_stores_count_alike_and_right(seed: int) -> None:
    """Whatever is in them, the numbers are those of a reader who looks at every row."""
    with World("memory", now=NOW) as memory, World("sqlite", now=NOW) as sqlite:
        counted, also = (filled(world, seed).ok(GetStats()) for world in (memory, sqlite))
        assert counted == also
        state = sqlite.dump()
        by_state = Counter(task.state for task in state.tasks.values())
        assert counted.tasks == {each: by_state[each] for each in LIVING}
        assert sum(counted.tasks.values()) > 0
        assert (counted.now, counted.outbox) == (NOW, len(state.messages))
        assert (counted.holders, counted.schedules) == (2, 1)
        assert counted.held == sum(task.holder is not None for task in state.tasks.values())


def test_the_oldest_wait_of_each_kind_is_told(world: World) -> None:
    """Ready, delayed, halted, parked and suspended tasks, each since it waits so."""
    for task_id, now in (("old", 1), ("young", 5), ("stopped", 2), ("waiting", 3)):
        world.send(r.target(task_id), now)
    world.send(r.target("later", delay="99"), 4)
    world.send(c.HaltTask(id="stopped"), 6)
    world.send(r.acquire("waiting", 0), 7)
    world.send(r.promise("outside"), 7)
    world.send(r.suspend("waiting", 1, "outside"), 8)
    world.send(r.run(a=""), 9)
    world.send(r.take(), 10)
    parked = c.AnnotateTask(
        id="run/a:a",
        version=1,
        sub_status="Deferred",
        waiting_on='{"kind":"condition","sentence":""}',
    )
    assert world.send(parked, 11).is_ok
    told = world.send(GetStats(), 20).data.oldest_waits
    assert told == {"worker": 1, "manual": 6, "sleep": 4, "promise": 8, "condition": 11}


def test_what_is_over_waits_no_more(world: World) -> None:
    """A promise past its deadline is settled, swept or not."""
    world.send(r.target("x", timeout_at=5), 1)
    assert world.send(GetStats(), 4).data.oldest_waits == {"worker": 1}
    assert world.send(GetStats(), 5).data.oldest_waits == {}


def test_counting_stops_somewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge store must not hold up the writer: the bound stands for itself and more."""
    monkeypatch.setattr(index_counts, "COUNTED", 3)
    for number in range(5):
        world.ok(r.target(f"x{number}"))
    counted = world.ok(GetStats())
    assert (counted.tasks["pending"], counted.outbox) == (3, 3)


def test_no_count_looks_at_rows() -> None:
    """Each is a range of an index that holds all it needs; triggers are few, or counted by row."""
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        told = store._connection.execute(f"EXPLAIN QUERY PLAN {index_counts.COUNTS}", {"most": 9})
        plans = [row[3] for row in told.fetchall()]
    *states, untaken, refused, gated = [plan for plan in plans if "promises" in plan]
    assert len(states) == len(LIVING)
    for plan in states:
        assert plan.startswith("SEARCH promises USING COVERING INDEX promises_task_state")
    assert untaken.startswith("SEARCH promises USING INDEX promises_ready_names")
    assert refused.startswith("SEARCH promises USING INDEX promises_refused")  # there are few
    assert gated.startswith("SEARCH promises USING COVERING INDEX promises_lanes")


def test_the_wire_shows_counts_in_its_own_spelling(world: World) -> None:
    """Keys as everywhere on the wire."""
    world.ok(r.target("x"))
    status, told = world.ask("layby.stats", {}, 7)
    assert status == 200
    assert told == {
        "now": 7,
        "tasks": {"pending": 1, "acquired": 0, "suspended": 0, "halted": 0},
        "oldestWaits": {"worker": 0},
        "outbox": 1,
        "holders": 0,
        "held": 0,
        "schedules": 0,
        "storeTimeAhead": 0,
        "triggersUntaken": 0,
        "permitsHeld": 0,
        "permitsAwaited": 0,
    }
