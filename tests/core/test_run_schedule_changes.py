"""Schedules of runs that people change: replaced, paused and unpaused, a run started by hand."""

from datetime import datetime
from typing import Any

import pytest

from layby.core import commands as c
from layby.core.model import NEVER
from tests.helpers import requests as r
from tests.helpers.worlds import World

MINUTE = 60_000
HOUR = 60 * MINUTE
NODES = (c.Node("a", "f"), c.Node("b", "f", ("a",)))
OTHERS = (c.Node("x", "f"), c.Node("y", "f"), c.Node("z", "f"))


def hourly(**changed: Any) -> c.CreateRunSchedule:
    given = {"id": "s", "cron": "0 * * * *", "name": "root", "group": "g", "nodes": NODES}
    return c.CreateRunSchedule(**given | changed)


def ids(world: World) -> list[str]:
    return sorted(world.dump().promises)


def roots(world: World) -> list[int]:
    """The hours whose runs exist."""
    made = [each for each in world.dump().promises if ":" not in each and "now" not in each]
    return sorted(int(each.removeprefix("run/s-")) // HOUR for each in made)


# --- replace -------------------------------------------------------------------------------


def test_replace_creates_what_is_not_there(world: World) -> None:
    assert world.ok(hourly(replace=True)).schedule == world.ok(hourly()).schedule


def test_replace_changes_nothing_if_nothing_differs(world: World) -> None:
    first = world.ok(hourly()).schedule
    world.tick(HOUR)
    again = world.ok(hourly(replace=True)).schedule
    assert again.last_run_at == HOUR
    assert again.created_at == first.created_at


@pytest.mark.parametrize(
    ("changed", "next_run_at"),
    [
        ({"nodes": OTHERS}, 2 * HOUR),
        ({"param": c.Value(data="eA==")}, 2 * HOUR),
        ({"overlap": "skip", "catch_up": True, "timeout": 5}, 2 * HOUR),
        ({"cron": "30 * * * *"}, HOUR + 30 * MINUTE),
        ({"cron": "0 */4 * * *"}, 4 * HOUR),
        ({"timezone": "Asia/Kolkata"}, HOUR + 30 * MINUTE),
    ],
)
def test_a_replaced_schedule_keeps_what_it_has_done(
    world: World, changed: dict[str, Any], next_run_at: int
) -> None:
    """Its next occurrence too, unless the rule or its zone is another."""
    world.ok(hourly())
    world.tick(HOUR + MINUTE)
    row = world.ok(hourly(**changed, replace=True)).schedule
    assert (row.created_at, row.last_run_at, row.next_run_at) == (0, HOUR, next_run_at)
    assert world.dump().schedules == {"s": row}
    assert world.ok(hourly(**changed)).schedule == row
    world.check()


def test_a_due_occurrence_runs_with_the_new_definition(world: World) -> None:
    """It was due before the change, and not started."""
    world.ok(hourly())
    world.clock.advance(HOUR + MINUTE)
    world.ok(hourly(nodes=OTHERS, replace=True))
    world.tick()
    run = f"run/s-{HOUR}"
    assert ids(world) == [run, f"{run}:x", f"{run}:y", f"{run}:z"]


def test_a_due_occurrence_of_a_rule_that_was_replaced_is_none(world: World) -> None:
    """The new rule begins after now."""
    world.ok(hourly())
    world.clock.advance(HOUR + MINUTE)
    world.ok(hourly(cron="5 * * * *", replace=True))
    world.tick()
    assert ids(world) == []
    assert world.dump().schedules["s"].next_run_at == HOUR + 5 * MINUTE


def test_started_runs_stay_as_they_were(world: World) -> None:
    """Their tasks are those they began with."""
    world.ok(hourly())
    world.tick(HOUR)
    before = world.dump().promises
    world.ok(hourly(nodes=OTHERS, replace=True))
    world.tick(1)
    assert world.dump().promises == before


def test_a_schedule_of_promises_is_not_replaced(world: World) -> None:
    """It belongs to somebody who speaks the protocol."""
    tags = {"resonate:target": r.OTHER}
    world.ok(
        c.CreateSchedule(
            id="s", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=tags
        )
    )
    before = world.dump()
    reply = world.send(hourly(replace=True))
    assert reply.status == 409
    assert reply.data == (
        "Schedule 's' already exists and differs in kind (it creates promises): "
        "delete it, or use another id"
    )
    for command in (
        c.PauseSchedule(id="s"),
        c.UnpauseSchedule(id="s"),
        c.StartScheduled(id="s", at=1, key="k"),
    ):
        refused = world.send(command)
        assert refused.status == 409
        assert "Schedule 's' creates promises" in refused.data
    assert world.dump() == before


# --- pause and unpause ---------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", [True, False])
def test_what_passes_while_it_is_paused_is_never_caught_up(world: World, catch_up: bool) -> None:
    """It goes on with the first occurrence after it was unpaused."""
    world.ok(hourly(catch_up=catch_up))
    world.tick(HOUR)
    world.tick(MINUTE)
    paused = world.ok(c.PauseSchedule(id="s")).schedule
    assert (paused.paused_at, paused.next_run_at) == (HOUR + MINUTE, NEVER)
    world.tick(5 * HOUR)
    assert world.ok(c.PauseSchedule(id="s")).schedule == paused
    unpaused = world.ok(c.UnpauseSchedule(id="s")).schedule
    assert (unpaused.paused_at, unpaused.next_run_at) == (None, 7 * HOUR)
    assert world.ok(c.UnpauseSchedule(id="s")).schedule == unpaused
    world.tick(2 * HOUR)
    assert roots(world) == ([1, 7, 8] if catch_up else [1, 8])
    assert unpaused.skipped == 0
    world.check()


def test_what_is_due_and_has_not_started_is_paused_as_well(world: World) -> None:
    """Nothing starts from now on."""
    world.ok(hourly(catch_up=True))
    world.clock.advance(3 * HOUR)
    world.ok(c.PauseSchedule(id="s"))
    world.tick()
    world.ok(c.UnpauseSchedule(id="s"))
    world.tick(HOUR)
    assert roots(world) == [4]


def test_a_paused_schedule_stays_paused_when_it_is_replaced(world: World) -> None:
    """By any definition; the rule that counts is the one it has when it is unpaused."""
    world.ok(hourly())
    world.ok(c.PauseSchedule(id="s"))
    world.tick(HOUR)
    for changed in ({"nodes": OTHERS}, {"cron": "30 * * * *"}):
        row = world.ok(hourly(**changed, replace=True)).schedule
        assert (row.paused_at, row.next_run_at) == (0, NEVER)
    world.tick(HOUR)
    assert world.ok(hourly(cron="30 * * * *")).schedule.paused_at == 0
    row = world.ok(c.UnpauseSchedule(id="s")).schedule
    assert row.next_run_at == 2 * HOUR + 30 * MINUTE
    assert ids(world) == []
    world.check()


def test_an_unpaused_rule_without_further_occurrences_is_over(world: World) -> None:
    world.ok(hourly(cron="0 0 1 1 1 * 1970"))
    world.ok(c.PauseSchedule(id="s"))
    world.tick(2 * HOUR)
    row = world.ok(c.UnpauseSchedule(id="s")).schedule
    assert (row.paused_at, row.next_run_at) == (None, NEVER)


@pytest.mark.parametrize("kind", [c.PauseSchedule, c.UnpauseSchedule])
def test_what_is_not_there_cannot_be_paused(world: World, kind: Any) -> None:
    reply = world.send(kind(id="no"))
    assert (reply.status, reply.data) == (404, "Schedule not found")


# --- start now -----------------------------------------------------------------------------


def test_a_run_started_by_hand_is_like_that_of_an_occurrence(world: World) -> None:
    """Its deadline counts from now; the schedule itself does not change."""
    world.ok(hourly(timeout=10 * MINUTE, param=c.Value(data="eA==")))
    before = world.dump().schedules
    world.clock.advance(5 * MINUTE)
    data = world.ok(c.StartScheduled(id="s", at=5 * MINUTE - 7, key="k1"))
    run = data.promise
    assert (data.created, run.id) == (True, f"run/s-{5 * MINUTE - 7}-now-k1")
    assert (run.created_at, run.timeout_at) == (5 * MINUTE, 15 * MINUTE)
    assert '"resonate:schedule":"s"' in run.tags
    assert run.param == '{"data":"eA=="}'
    assert ids(world) == [run.id, f"{run.id}:a", f"{run.id}:b"]
    assert [claim.task.id for claim in world.ok(r.take()).claims] == [f"{run.id}:a"]
    assert world.dump().schedules == before
    world.check()


def test_a_copy_of_the_request_finds_the_run_of_the_first(world: World) -> None:
    """Also after its schedule is gone; another key is another run."""
    world.ok(hourly())
    start = c.StartScheduled(id="s", at=7, key="k")
    first = world.ok(start).promise
    assert world.ok(c.StartScheduled(id="s", at=7, key="other")).created
    world.ok(c.DeleteSchedule(id="s"))
    again = world.ok(start)
    assert (again.created, again.promise) == (False, first)
    assert world.send(c.StartScheduled(id="s", at=8, key="k")).status == 404


def test_a_paused_schedule_can_be_started_by_hand(world: World) -> None:
    world.ok(hourly())
    world.ok(c.PauseSchedule(id="s"))
    assert world.ok(c.StartScheduled(id="s", at=0, key="k")).created
    assert world.dump().schedules["s"].paused_at == 0


def test_started_by_hand_in_the_batch_that_replaces_it(world: World) -> None:
    """The definition counts that stands at its turn."""
    world.ok(hourly())
    start = c.StartScheduled(id="s", at=0, key="k")
    replies = world.batch([(hourly(nodes=OTHERS, replace=True), 0), (start, 0)])
    assert [reply.status for reply in replies] == [200, 200]
    assert len([each for each in ids(world) if ":" in each]) == len(OTHERS)
    with World() as new:
        replies = new.batch([(hourly(), 0), (start, 0)])
        assert replies[1].data.created


def test_ids_in_use_are_left_alone(world: World) -> None:
    world.ok(hourly())
    world.ok(r.promise("run/s-7-now-k:b"))
    reply = world.send(c.StartScheduled(id="s", at=7, key="k"))
    assert (reply.status, reply.data) == (409, "Run 'run/s-7-now-k': ids of its nodes are in use")
    assert ids(world) == ["run/s-7-now-k:b"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"key": ""}, "key must be 1 to 20 letters and digits"),
        ({"key": "a:b"}, "key must be 1 to 20 letters and digits"),
        ({"key": "x" * 21}, "key must be 1 to 20 letters and digits"),
        ({"at": -1}, "at must be non-negative"),
        ({"id": ""}, "Schedule ID"),
    ],
)
def test_a_request_that_makes_no_id_is_refused(changed: dict[str, Any], why: str) -> None:
    problems = c.StartScheduled(**{"id": "s", "at": 1, "key": "k"} | changed).problems()
    assert any(each.startswith(why) for each in problems)


def test_an_unknown_policy_is_refused() -> None:
    assert list(hourly(overlap="later").problems()) == [
        "overlap 'later' is not known: use allow, skip, queue_one"
    ]


# --- clocks --------------------------------------------------------------------------------


def test_paused_over_the_change_of_the_clocks(world: World) -> None:
    """Nine in Berlin is nine when it is unpaused, and after a change of the zone alone."""
    world.tick(_at("2026-03-28T10:00+01:00"))
    nine = {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}
    assert world.ok(hourly(**nine)).schedule.next_run_at == _at("2026-03-29T09:00+02:00")
    world.ok(c.PauseSchedule(id="s"))
    world.tick(24 * HOUR)
    unpaused = world.ok(c.UnpauseSchedule(id="s")).schedule
    assert unpaused.next_run_at == _at("2026-03-30T09:00+02:00")
    moved = hourly(**nine | {"timezone": "Europe/London"}, replace=True)
    assert world.ok(moved).schedule.next_run_at == _at("2026-03-30T09:00+01:00")


def test_an_hour_that_is_skipped_or_repeated(world: World) -> None:
    """Unpaused in the hour that comes twice, an occurrence of it does not come again."""
    half_past_two = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    world.tick(_at("2026-10-24T12:00+02:00"))
    world.ok(hourly(**half_past_two))
    world.tick(_at("2026-10-25T02:30+02:00") - world.now)
    assert len(world.dump().promises) == 3
    world.ok(c.PauseSchedule(id="s"))
    world.tick(45 * MINUTE)  # the clock shows a quarter past two for the second time
    unpaused = world.ok(c.UnpauseSchedule(id="s")).schedule
    assert unpaused.next_run_at == _at("2026-10-26T02:30+01:00")


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000
