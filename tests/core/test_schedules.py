"""Schedules: every occurrence that has come makes its promise, once."""

import pytest

from layby.core import commands as c
from layby.core.schedule_row import Schedule
from layby.core.schedules import STRAY_MS, FireSchedule, occurrences
from layby.core.settings import NoInstant
from tests.helpers import requests as r
from tests.helpers.worlds import World

MINUTE = 60_000


def every_minute(
    timeout: int = 90_000, template: str = "{{.id}}.{{.timestamp}}"
) -> c.CreateSchedule:
    tags = {"resonate:target": r.OTHER, "mine": "1"}
    return c.CreateSchedule(
        id="s",
        cron="* * * * *",
        promise_id=template,
        promise_timeout=timeout,
        promise_param=c.Value(data="eA=="),
        promise_tags=tags,
    )


def test_all_missed_occurrences_are_made_up_for(world: World) -> None:
    """Each with its own time; the schedule goes on after the last."""
    world.ok(every_minute(timeout=600_000))
    world.tick(3 * MINUTE + 5)
    state = world.dump()
    assert sorted(state.promises) == ["s.120000", "s.180000", "s.60000"]
    born = state.promises["s.120000"]
    assert (born.created_at, born.timeout_at) == (2 * MINUTE, 12 * MINUTE)
    assert born.param == '{"data":"eA=="}'
    assert state.tasks["s.120000"].state == "pending"
    assert state.tasks["s.120000"].wake_at == world.now + 30_000
    schedule = state.schedules["s"]
    assert (schedule.last_run_at, schedule.next_run_at) == (3 * MINUTE, 4 * MINUTE)
    world.check()


def test_its_promises_say_where_they_come_from(world: World) -> None:
    """Own tags, the schedule's id, and themselves as their tree."""
    world.ok(every_minute())
    world.tick(MINUTE)
    _, data = world.ask("promise.get", {"id": "s.60000"}, MINUTE)
    own = ("origin", "branch", "parent", "prefix")
    assert data["promise"]["tags"] == {
        "resonate:target": r.OTHER,
        "mine": "1",
        "resonate:schedule": "s",
        **{f"resonate:{name}": "s.60000" for name in own},
    }


def test_more_missed_occurrences_than_one_step_makes(world: World) -> None:
    """They come in chunks, and all of them come."""
    world.ok(every_minute(timeout=10**9))
    world.tick(250 * MINUTE)
    assert len(world.dump().promises) == 250


def test_an_occurrence_past_its_deadline_is_born_settled(world: World) -> None:
    """Settled at its deadline, with a fulfilled task and without a message."""
    world.ok(every_minute(timeout=10))
    world.tick(MINUTE + 10)
    state = world.dump()
    born = state.promises["s.60000"]
    assert (born.state, born.created_at, born.settled_at) == (
        "rejected_timedout",
        MINUTE,
        MINUTE + 10,
    )
    assert state.tasks["s.60000"].state == "fulfilled"
    assert state.messages == {}


def test_an_id_that_exists_is_left_alone(world: World) -> None:
    """Nothing is created, but the schedule goes on."""
    world.ok(r.promise("taken"))
    world.ok(every_minute(template="taken"))
    world.tick(2 * MINUTE)
    state = world.dump()
    assert "taken" not in state.tasks
    assert state.schedules["s"].last_run_at == 2 * MINUTE


def test_a_deleted_schedule_fires_no_more(world: World) -> None:
    """What it has created stays; also a firing that was found due before comes to nothing."""
    world.ok(every_minute())
    world.tick(MINUTE)
    found = world.dump().schedules["s"]
    world.ok(c.DeleteSchedule(id="s"))
    firing = FireSchedule(found=found, occurrences=((2 * MINUTE, "s.120000"),), by=2 * MINUTE)
    world.send(firing, 2 * MINUTE)
    assert sorted(world.dump().promises) == ["s.60000"]
    assert world.send(c.DeleteSchedule(id="s")).status == 404
    assert world.send(c.GetSchedule(id="s")).status == 404


def test_a_firing_that_comes_twice_or_early_is_harmless(world: World) -> None:
    """Each occurrence is made once, and not before its time."""
    found = world.ok(every_minute()).schedule
    firing = FireSchedule(found=found, occurrences=((MINUTE, "s.60000"),), by=MINUTE)
    world.send(firing, MINUTE - 1)
    assert world.dump().promises == {}
    world.send(firing, MINUTE)
    before = world.dump()
    world.send(firing, MINUTE)
    assert world.dump() == before


def test_create_answers_what_exists(world: World) -> None:
    """Idempotent by id only."""
    first = world.ok(every_minute()).schedule
    assert world.ok(every_minute(timeout=1)).schedule == first
    assert world.ok(c.GetSchedule(id="s")).schedule == first


def test_create_and_delete_in_one_batch(world: World) -> None:
    """Each step sees the one before it."""
    replies = world.batch(
        [
            (every_minute(), 0),
            (c.GetSchedule(id="s"), 0),
            (c.DeleteSchedule(id="s"), 0),
            (c.GetSchedule(id="s"), 0),
        ]
    )
    assert [reply.status for reply in replies] == [200, 200, 200, 404]


@pytest.mark.parametrize("cron", ["x", "* * * *", "61 * * * *", "0 0 30 2 *"])
def test_a_rule_that_never_comes_is_refused(world: World, cron: str) -> None:
    """Also one that is well formed."""
    tags = {"resonate:target": r.OTHER}
    request = c.CreateSchedule(
        id="s", cron=cron, promise_id="x", promise_timeout=1, promise_tags=tags
    )
    reply = world.send(request)
    assert (reply.status, reply.data) == (400, "Invalid cron expression")


def test_a_rule_that_comes_no_more_is_looked_at_again() -> None:
    """When the next occurrence cannot be told, after a minute."""
    last = Schedule("s", "rule", "x", 1, "{}", "{}", 0, next_run_at=5)
    found = occurrences(last, 5 + STRAY_MS, lambda *_: NoInstant("over"), limit=9)
    assert found == ((5, "x"), (5 + STRAY_MS, "x"))
