"""Schedules of runs: every occurrence starts a whole run, once."""

from bisect import bisect_right
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import NEVER
from layby.core.overlaps import PLACES
from layby.core.replies import RowPage
from layby.core.schedule_row import Schedule
from layby.core.schedules import MADE_CHARS, FireSchedule, due, occurrences
from layby.core.settings import NoInstant
from tests.helpers import requests as r
from tests.helpers.worlds import World

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
TODAY = 1_800_000_000_000
NODES = (c.Node(id="a", name="f", param=c.Value(data="YQ==")), c.Node("b", "f", ("a",)))


def every_minute(**changed: Any) -> c.CreateRunSchedule:
    given = {
        "id": "s",
        "cron": "* * * * *",
        "name": "root",
        "group": "g",
        "nodes": NODES,
        "param": c.Value(headers={}, data="eA=="),
        "timeout": 10 * MINUTE,
    }
    return c.CreateRunSchedule(**given | changed)


def schedule(**changed: Any) -> Schedule:
    given = {"next_run_at": MINUTE, "flow": "root", "nodes": '[{"id":"a","name":"f"}]'} | changed
    param = given.pop("promise_param", "{}")
    return Schedule("s", "* * * * *", "run/{{.id}}-{{.timestamp}}", 1, param, "{}", 0, **given)


def roots(world: World) -> list[str]:
    return sorted(key for key in world.dump().promises if ":" not in key)


# --- an occurrence -----------------------------------------------------------------------


def test_an_occurrence_starts_the_run_that_a_start_would_have_started(world: World) -> None:
    """Row for row, with its waits; only the root says which schedule it comes from."""
    world.ok(every_minute())
    world.tick(MINUTE)
    fired = world.dump()
    with World() as other:
        other.clock.advance(MINUTE)
        start = c.StartRun(
            id="run/s-60000",
            name="root",
            group="g",
            nodes=NODES,
            timeout=10 * MINUTE,
            param=c.Value(headers={}, data="eA=="),
        )
        other.ok(start)
        started = other.dump()
    tagged = fired.promises["run/s-60000"]
    assert '"resonate:schedule":"s"' in tagged.tags
    assert tagged.param == started.promises["run/s-60000"].param
    assert (tagged.created_at, tagged.timeout_at) == (MINUTE, 11 * MINUTE)
    assert fired.promises == started.promises | {tagged.id: tagged}
    assert (fired.tasks, fired.waits) == (started.tasks, started.waits)
    assert (fired.messages, fired.listeners) == (started.messages, started.listeners)
    world.check()


def test_a_scheduled_run_can_be_worked_on_to_its_end(world: World) -> None:
    """Its nodes are taken in order, then the root."""
    world.ok(every_minute())
    world.tick(MINUTE)
    seen = []
    while claims := world.ok(r.take(1)).claims:
        seen += [claim.task.id for claim in claims]
        world.ok(r.finish(claims[0].task.id))
    assert seen == ["run/s-60000:a", "run/s-60000:b", "run/s-60000"]
    assert world.promise("run/s-60000").state == "resolved"
    world.check()


def test_a_late_run_was_created_at_its_occurrence_and_is_ready_now(world: World) -> None:
    """Its deadline counts from the occurrence."""
    world.ok(every_minute())
    world.tick(MINUTE + 5_000)
    run, node = world.promise("run/s-60000"), world.task("run/s-60000:a")
    assert (run.created_at, run.timeout_at) == (MINUTE, 11 * MINUTE)
    assert node.ready_at == MINUTE + 5_000
    assert world.promise(node.id).created_at == MINUTE


def test_a_run_past_its_deadline_is_born_over(world: World) -> None:
    """Timed out with all its nodes; nothing waits and nothing can be taken."""
    world.ok(every_minute(timeout=10))
    world.tick(MINUTE + 10)
    state = world.dump()
    ended = {key: (p.state, p.created_at, p.settled_at) for key, p in state.promises.items()}
    over = ("rejected_timedout", MINUTE, MINUTE + 10)
    assert ended == dict.fromkeys(("run/s-60000", "run/s-60000:a", "run/s-60000:b"), over)
    assert {task.state for task in state.tasks.values()} == {"fulfilled"}
    assert state.waits == {}
    assert world.ok(r.take(5)).claims == []
    world.check()


def test_without_a_deadline_a_run_may_take_for_ever(world: World) -> None:
    """No more than the largest number that every client can read."""
    world.ok(every_minute(timeout=NEVER))
    world.tick(MINUTE)
    assert world.promise("run/s-60000").timeout_at == NEVER
    assert world.promise("run/s-60000:a").timeout_at == NEVER


@pytest.mark.parametrize("taken", ["run/s-60000", "run/s-60000:b"])
def test_an_id_in_use_is_left_alone_and_the_schedule_goes_on(world: World, taken: str) -> None:
    """Of the root or of a node: nothing of that run is created."""
    world.ok(r.promise(taken))
    world.ok(every_minute(catch_up=True))
    world.tick(2 * MINUTE)
    state = world.dump()
    assert [key for key in state.promises if "60000" in key] == [taken]
    assert len(state.promises) == 4
    assert state.schedules["s"].last_run_at == 2 * MINUTE
    world.check()


# --- which occurrences -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "missed", "expected"),
    [
        (True, 1, [1]),
        (True, 4, [1, 2, 3, 4]),
        (False, 1, [1]),
        (False, 2, [2]),
        (False, 250, [250]),
    ],
)
def test_what_was_missed(world: World, catch_up: bool, missed: int, expected: list[int]) -> None:
    """All of it or only the latest; either way the schedule goes on from there."""
    world.ok(every_minute(catch_up=catch_up, timeout=DAY))
    world.tick(missed * MINUTE + 7)
    assert roots(world) == sorted(f"run/s-{at * MINUTE}" for at in expected)
    row = world.dump().schedules["s"]
    assert (row.last_run_at, row.next_run_at) == (missed * MINUTE, (missed + 1) * MINUTE)
    world.tick(MINUTE)
    assert f"run/s-{(missed + 1) * MINUTE}" in roots(world)
    world.check()


def test_nine_in_berlin_is_nine_on_both_sides_of_the_change(world: World) -> None:
    """Summer time begins on 29 March 2026: the runs before and after are 23 hours apart."""
    world.tick(_at("2026-03-28T00:00+01:00"))
    world.ok(every_minute(cron="0 9 * * *", timezone="Europe/Berlin", catch_up=True))
    world.tick(2 * DAY)
    nine = ("2026-03-28T09:00+01:00", "2026-03-29T09:00+02:00")
    assert roots(world) == [f"run/s-{_at(each)}" for each in nine]


def test_a_rule_that_has_ended_fires_no_more(world: World) -> None:
    """The last occurrence has its run; the schedule stays, without a next one."""
    world.ok(every_minute(cron="0 0 0 2 1 * 1970", catch_up=True))
    world.tick(30 * DAY)
    assert roots(world) == [f"run/s-{DAY}"]
    assert world.dump().schedules["s"].next_run_at == NEVER
    world.tick(DAY)
    assert roots(world) == [f"run/s-{DAY}"]
    world.check()


instants = st.lists(st.integers(1, 10_000), min_size=1, max_size=40, unique=True).map(sorted)


@given(instants, st.integers(0, 20_000))
def test_the_latest_missed_one_is_found_among_all(seconds: list[int], beyond: int) -> None:
    """As looking at each would find it, however they are spread."""
    times = [each * 1000 for each in seconds]
    now = times[0] + beyond * 500
    asked = []

    def calendar(_cron: str, after: int, _zone: str) -> int | NoInstant:
        asked.append(after)
        place = bisect_right(times, after // 1000 * 1000)
        return times[place] if place < len(times) else NoInstant("over")

    row = schedule(next_run_at=times[0], catch_up=False)
    (found,) = occurrences(row, now, calendar, limit=9)
    assert found[0] == max(at for at in times if at <= now)
    assert len(asked) < 64


# --- portions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "limit", "portions"),
    [
        (1, 500, [250]),  # a root and a node each
        (4, 500, [100]),
        (1000, 500, [1]),
    ],
)
def test_missed_runs_come_in_portions_of_so_many_rows(
    count: int, limit: int, portions: list[int]
) -> None:
    """Large runs fewer at a time, but always one."""
    nodes = "[" + ",".join(f'{{"id":"n{at}","name":"f"}}' for at in range(count)) + "]"
    ticks = due([schedule(nodes=nodes)], 10_000 * MINUTE, _each_minute, limit)
    assert [len(tick.occurrences) for tick in ticks] == portions


@pytest.mark.parametrize("sort", [{"flow": None}, {}])
def test_missed_occurrences_come_in_portions_of_so_many_bytes(sort: dict[str, Any]) -> None:
    """Each of them is written with the param of its schedule. All schedules share one portion."""
    heavy = schedule(promise_param="x" * (MADE_CHARS // 4), **sort)
    ticks = list(due([heavy] * 9, 10_000 * MINUTE, _each_minute, 500))
    assert [len(tick.occurrences) for tick in ticks] == [4]


def test_the_last_place_of_a_large_run_is_given_away_once() -> None:
    heavy = schedule(promise_param="x" * 2 * MADE_CHARS, overlap="queue_one")
    (tick,) = due([heavy], 10_000 * MINUTE, _each_minute, 500)
    assert len(tick.occurrences) == PLACES["queue_one"]


def test_many_schedules_share_one_portion() -> None:
    """The oldest first; who finds no room left waits for the next."""
    rows = [schedule(next_run_at=at * MINUTE) for at in (1, 2, 3)]
    ticks = list(due(rows, 3 * MINUTE, _each_minute, 8))
    assert [len(tick.occurrences) for tick in ticks] == [3, 1]


def test_all_portions_together_are_everything(world: World) -> None:
    """More than one tick makes, and none twice."""
    world.ok(every_minute(catch_up=True, timeout=DAY))
    world.ok(every_minute(catch_up=True, timeout=DAY, id="z"))
    world.tick(400 * MINUTE)
    assert len(roots(world)) == 800
    world.check()


# --- create, show, delete ----------------------------------------------------------------


def test_the_same_again_is_the_same_schedule(world: World) -> None:
    """Also later: it keeps what it has fired."""
    first = world.ok(every_minute()).schedule
    assert world.ok(every_minute()).schedule == first
    world.tick(MINUTE)
    assert world.ok(every_minute()).schedule.last_run_at == MINUTE


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"cron": "0 9 * * *"}, "cron ('* * * * *', not '0 9 * * *')"),
        ({"timezone": "Asia/Tokyo"}, "time zone ('UTC', not 'Asia/Tokyo')"),
        ({"catch_up": True}, "catch_up (False, not True)"),
        ({"name": "other"}, "workflow ('root', not 'other')"),
        ({"group": "other"}, "group ('g', not 'other')"),
        ({"overlap": "skip"}, "overlap ('allow', not 'skip')"),
        ({"nodes": NODES[:1]}, "tasks (removed 'b')"),
        ({"param": c.Value(data="eQ==")}, "context"),
        ({"timeout": 7}, "deadline (600 s, not 0.007 s)"),
        ({"timeout": NEVER, "nodes": NODES[:1]}, "tasks (removed 'b'), deadline (600 s, not none)"),
    ],
)
def test_another_one_of_the_same_id_is_refused(
    world: World, changed: dict[str, Any], what: str
) -> None:
    """It says what differs and what to do, and changes nothing."""
    world.ok(every_minute())
    before = world.dump()
    reply = world.send(every_minute(**changed))
    remedy = ": use replace to change it, or another id"
    assert (reply.status, reply.data) == (
        409,
        f"Schedule 's' already exists and differs in {what}{remedy}",
    )
    assert world.dump() == before


def test_schedules_of_promises_and_of_runs_share_their_ids(world: World) -> None:
    """The protocol's create answers what exists, as ever; ours does not take it for its own."""
    tags = {"resonate:target": r.OTHER}
    plain = c.CreateSchedule(
        id="s", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=tags
    )
    ours = world.ok(every_minute()).schedule
    assert world.ok(plain).schedule == ours
    world.ok(c.DeleteSchedule(id="s"))
    world.ok(plain)
    refused = world.send(every_minute())
    assert refused.status == 409
    assert "differs in kind (it creates promises)" in refused.data


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"cron": "61 * * * *"},
            "Schedule 's': cron '61 * * * *' is not a valid rule (Bad minute)",
        ),
        (
            {"cron": "0 0 0 1 1 * 1969"},
            "Schedule 's': cron '0 0 0 1 1 * 1969' has no more occurrences",
        ),
        (
            {"timezone": "Europe/Berln"},
            "Schedule 's': time zone 'Europe/Berln' is not known: did you mean 'Europe/Berlin'?",
        ),
    ],
)
def test_a_rule_or_zone_that_is_none_is_refused(
    world: World, changed: dict[str, Any], why: str
) -> None:
    """With a 400 that names it; nothing is written."""
    reply = world.send(every_minute(**changed))
    assert reply.status == 400
    assert reply.data.startswith(why)
    assert world.dump().schedules == {}


def test_it_is_shown_and_found_with_the_others(world: World) -> None:
    """By the protocol's get and search; its tags are those of the roots it makes."""
    made = world.ok(every_minute()).schedule
    assert world.ok(c.GetSchedule(id="s")).schedule == made
    found = world.ok(q.SearchSchedules(tags={"layby:name": "root"}))
    assert found.schedules == [replace(made, nodes="[]")]  # which no list shows
    assert world.ok(q.SearchSchedules(tags={"layby:name": "other"})).schedules == []


def test_once_deleted_it_fires_no_more(world: World) -> None:
    """Runs it has started go on; a new one of the same id begins afresh."""
    world.ok(every_minute())
    world.tick(MINUTE)
    world.ok(c.DeleteSchedule(id="s"))
    world.tick(MINUTE)
    assert roots(world) == ["run/s-60000"]
    assert world.promise("run/s-60000").is_pending
    assert world.ok(every_minute(nodes=NODES[:1])).schedule.last_run_at is None


def test_a_firing_that_was_meant_for_another_of_that_id_is_harmless(world: World) -> None:
    """It was found due with other nodes: the new one has its turn later."""
    found = world.ok(every_minute()).schedule
    late = FireSchedule(found=found, occurrences=((MINUTE, "run/s-60000"),), by=MINUTE)
    changed = every_minute(nodes=NODES[:1], replace=True)
    replies = world.batch([(changed, MINUTE), (late, MINUTE)])
    assert [reply.status for reply in replies] == [200, 200]
    assert world.dump().promises == {}
    world.tick(MINUTE)
    assert sorted(world.dump().promises) == ["run/s-60000", "run/s-60000:a"]


# --- the runs of a schedule --------------------------------------------------------------


def test_runs_of_a_schedule_are_listed_newest_first(world: World) -> None:
    """Not those of a schedule whose id only begins alike, nor the nodes; in pages."""
    world.tick(TODAY)
    world.ok(every_minute(catch_up=True))
    world.ok(every_minute(id="s-1", catch_up=True))
    world.ok(r.run("run/s-7", a=""))
    world.tick(3 * MINUTE)
    one, two, three = (TODAY + minute * MINUTE for minute in (1, 2, 3))
    page = world.ok(q.ListRuns(schedule="s", newest_first=True, limit=2))
    assert ids(page) == [f"run/s-{three}", f"run/s-{two}"]
    rest = world.ok(q.ListRuns(schedule="s", newest_first=True, limit=2, cursor=page.cursor))
    assert (ids(rest), rest.cursor) == ([f"run/s-{one}"], None)
    assert ids(world.ok(q.ListRuns(schedule="s-1"))) == [
        f"run/s-1-{at}" for at in (one, two, three)
    ]


def ids(page: RowPage) -> list[str]:
    return [promise.id for promise, _ in page.rows]


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def _each_minute(_cron: str, after: int, _zone: str) -> int:
    return (after // MINUTE + 1) * MINUTE
