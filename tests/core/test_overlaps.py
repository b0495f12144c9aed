"""What an occurrence does while earlier runs of its schedule are open, on both stores."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core import commands as c
from layby.core.model import NEVER, Promise
from layby.core.schedule_row import MOST_OPEN_RUNS
from layby.core.schedules import due
from layby.core.tag_names import AFTER
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

MINUTE = 60_000
NODES = (c.Node("a", "f"), c.Node("b", "f"), c.Node("z", "f", ("a", "b")))


def every_minute(overlap: str, **changed: Any) -> c.CreateRunSchedule:
    given: dict[str, Any] = {
        "id": "s",
        "cron": "* * * * *",
        "name": "root",
        "group": "g",
        "nodes": NODES,
    }
    given |= {"overlap": overlap} | changed
    return c.CreateRunSchedule(**given)


def root(minute: int, life: int = 1) -> str:
    return f"run/s-{minute * MINUTE}" + (f":life/{life}" if life > 1 else "")


def made(world: World) -> list[int]:
    """The minutes whose runs exist."""
    ids = [each for each in world.dump().promises if ":" not in each and "now" not in each]
    return sorted(int(each.removeprefix("run/s-")) // MINUTE for each in ids)


def skipped(world: World) -> int:
    return world.dump().schedules["s"].skipped


def work(world: World, *, at_most: int = 100) -> list[str]:
    """Everything that can be taken is done, until nothing is left."""
    done: list[str] = []
    while len(done) < at_most and (claims := world.ok(r.take(1, ttl=NEVER)).claims):
        for claim in claims:  # a root is handed out beside what the slots are for
            world.ok(r.finish(claim.task.id, claim.task.version))
            done.append(claim.task.id)
    return done


def ready(world: World) -> list[str]:
    tasks = world.dump().tasks.values()
    return sorted(task.id for task in tasks if task.state == "pending")


def cancel(world: World, promise_id: str) -> None:
    world.ok(c.CancelPromise(id=promise_id))
    world.tick()


def rerun(world: World, minute: int, life: int = 2) -> None:
    """All of its tasks run again."""
    again = tuple(c.NodeAgain(node.id, life - 1, node.after, succeeded=True) for node in NODES)
    world.ok(c.RerunRun(id=root(minute), life=life, nodes=again))


# --- each policy ---------------------------------------------------------------------------


def test_allow_does_not_look(world: World) -> None:
    """The default: the next one starts whether or not the last one is done."""
    world.ok(every_minute("allow"))
    for _ in range(3):
        world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2, 3], 0)
    assert len(ready(world)) == 6


def test_skip_starts_nothing_while_a_run_is_open(world: World) -> None:
    """And counts what it leaves out; as soon as the run has ended, the next one starts."""
    world.ok(every_minute("skip"))
    for _ in range(3):
        world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1], 2)
    row = world.dump().schedules["s"]
    assert (row.last_run_at, row.next_run_at) == (MINUTE, 4 * MINUTE)
    assert len(work(world)) == 4
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 4], 2)
    world.check()


def test_queue_one_lets_one_wait_and_skips_the_rest(world: World) -> None:
    """Its first tasks wait for the previous root; what comes after them waits for them alone."""
    world.ok(every_minute("queue_one"))
    for _ in range(4):
        world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2], 2)
    state = world.dump()
    waits = {awaiter for awaited, awaiter in state.waits if awaited == root(1)}
    assert waits == {f"{root(2)}:a", f"{root(2)}:b"}
    assert [state.tasks[f"{root(2)}:{node}"].waits_left for node in "abz"] == [1, 1, 2]
    assert ready(world) == [f"{root(1)}:a", f"{root(1)}:b"]
    world.check()
    done = work(world)
    assert done[-4:] == [f"{root(2)}:{node}" for node in "abz"] + [root(2)]
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2, 5], 2)
    world.check()


def test_a_queued_run_moves_up_and_leaves_its_place(world: World) -> None:
    """When the previous run has ended, the queued one runs, and the next is queued behind it."""
    world.ok(every_minute("queue_one"))
    world.tick(MINUTE)
    world.tick(MINUTE)
    work(world, at_most=4)
    assert ready(world) == [f"{root(2)}:a", f"{root(2)}:b"]
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2, 3], 0)
    assert _after(world.promise(root(3))) == [root(2)]
    world.check()


def test_the_deadline_of_a_queued_run_counts_from_its_occurrence(world: World) -> None:
    """It may be over before it has begun; then its place is free again."""
    world.ok(every_minute("queue_one", timeout=2 * MINUTE + 1))
    world.tick(MINUTE)
    world.tick(MINUTE)
    held = [claim.task.id for claim in world.ok(r.take(5, ttl=NEVER)).claims]
    assert held == [f"{root(1)}:a", f"{root(1)}:b"]
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2], 1)
    world.tick(2)
    assert world.promise(root(1)).state == "rejected_timedout"
    assert ready(world) == [f"{root(2)}:a", f"{root(2)}:b"]
    world.tick(MINUTE)
    assert world.promise(root(2)).state == "rejected_timedout"
    assert (made(world), skipped(world)) == ([1, 2, 4], 1)
    world.check()


# --- what becomes of the previous run ------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue_one"])
def test_a_cancelled_run_is_not_open(world: World, overlap: str) -> None:
    """The queued one starts; otherwise the next occurrence does."""
    world.ok(every_minute(overlap))
    world.tick(MINUTE)
    world.tick(MINUTE)
    cancel(world, root(1))
    if overlap == "queue_one":
        assert ready(world) == [f"{root(2)}:a", f"{root(2)}:b"]
        work(world)
    world.tick(MINUTE)
    expected = ([1, 2, 3], 0) if overlap == "queue_one" else ([1, 3], 1)
    assert (made(world), skipped(world)) == expected
    assert f"{root(3)}:a" in ready(world)
    world.check()


def test_a_cancelled_run_that_was_queued_leaves_its_place(world: World) -> None:
    """The next one waits for the run that is still going, not for the cancelled one."""
    world.ok(every_minute("queue_one"))
    world.tick(MINUTE)
    world.tick(MINUTE)
    cancel(world, root(2))
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1, 2, 3], 0)
    assert _after(world.promise(root(3))) == [root(1)]
    assert ready(world) == [f"{root(1)}:a", f"{root(1)}:b"]
    world.check()


def test_a_later_life_of_a_run_is_open_as_well(world: World) -> None:
    """A rerun is not held up by anybody, but occurrences see it."""
    world.ok(every_minute("skip"))
    world.tick(MINUTE)
    work(world)
    rerun(world, 1)
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1], 1)
    work(world)
    world.tick(MINUTE)
    assert made(world) == [1, 3]
    world.check()


def test_a_run_is_queued_behind_all_that_are_open(world: World) -> None:
    """Behind a later life of an earlier run and the run that had been queued before."""
    world.ok(every_minute("queue_one"))
    world.tick(MINUTE)
    world.tick(MINUTE)
    work(world, at_most=4)
    rerun(world, 1)
    world.tick(MINUTE)
    assert _after(world.promise(root(3))) == [root(1, 2), root(2)]
    assert world.task(f"{root(3)}:a").waits_left == 2
    work(world)
    assert world.promise(root(3)).state == "resolved"
    world.check()


def test_a_rerun_of_a_queued_run_is_not_queued(world: World) -> None:
    """Whoever asks for it wants it now. The place in the queue is free."""
    world.ok(every_minute("queue_one"))
    world.tick(MINUTE)
    world.tick(MINUTE)
    cancel(world, root(2))
    rerun(world, 2)
    assert f"{root(2, 2)}:a" in ready(world)
    assert AFTER not in world.promise(root(2, 2)).tags
    world.tick(MINUTE)
    assert _after(world.promise(root(3))) == [root(2, 2), root(1)]
    world.check()


def test_runs_started_by_hand_ignore_overlap_and_count_for_later_ones(world: World) -> None:
    """They start beside an open run, and the next occurrence sees them."""
    world.ok(every_minute("skip"))
    world.tick(MINUTE)
    by_hand = world.ok(c.StartScheduled(id="s", at=MINUTE, key="k1")).promise
    assert by_hand.id == f"{root(1)}-now-k1"
    assert f"{by_hand.id}:a" in ready(world)
    cancel(world, root(1))
    world.tick(MINUTE)
    assert (made(world), skipped(world)) == ([1], 1)
    work(world)
    world.tick(MINUTE)
    assert made(world) == [1, 3]
    world.check()


def test_what_merely_looks_like_a_run_of_the_schedule_does_not_count(world: World) -> None:
    """Runs of a schedule whose id begins alike, runs under such an id, promises with such a tag."""
    world.ok(every_minute("skip"))
    world.ok(every_minute("allow", id="s-1", nodes=NODES[:1]))
    world.ok(r.run("run/s-7", a=""))
    tags = {"resonate:schedule": "s", "resonate:target": r.OTHER}
    world.ok(c.CreatePromise(id="run/s-8", timeout_at=NEVER, tags=tags))
    world.ok(c.CreatePromise(id="forged", timeout_at=NEVER, tags=tags | {"layby:kind": "root"}))
    for _ in range(2):
        world.tick(MINUTE)
        work(world)
    state = world.dump()
    assert state.schedules["s"].skipped == 0
    assert {root(1), root(2)} <= state.promises.keys()


def test_a_deleted_or_paused_schedule_leaves_its_queue_alone(world: World) -> None:
    """A queued run has started as far as its schedule is concerned."""
    for command in (c.PauseSchedule(id="s"), c.DeleteSchedule(id="s")):
        world.ok(every_minute("queue_one"))
        now = world.now // MINUTE
        world.tick(MINUTE)
        world.tick(MINUTE)
        world.ok(command)
        assert len(work(world)) == 8
        assert world.promise(root(now + 2)).state == "resolved"
        world.tick(3 * MINUTE)
        assert max(made(world)) == now + 2
        if world.dump().schedules:
            world.ok(c.DeleteSchedule(id="s"))
    world.check()


def test_a_replaced_schedule_sees_the_runs_of_the_old_definition(world: World) -> None:
    """A policy that is introduced later counts what already runs, and queued runs stay."""
    world.tick(30_000_000 * MINUTE)
    world.ok(every_minute("allow"))
    for _ in range(MOST_OPEN_RUNS + 3):
        world.tick(MINUTE)
    last = world.now // MINUTE
    world.ok(every_minute("queue_one", nodes=NODES[:1], replace=True))
    world.tick(MINUTE)
    newest = [root(each) for each in range(last, last - MOST_OPEN_RUNS, -1)]
    assert _after(world.promise(root(last + 1))) == newest
    world.ok(every_minute("skip", replace=True))
    world.tick(MINUTE)
    assert skipped(world) == 1
    work(world, at_most=1_000)
    assert {p.state for p in world.dump().promises.values()} == {"resolved"}
    world.check()


def test_all_of_it_in_one_batch(world: World) -> None:
    """An occurrence sees what the steps before it have done: started, ended, begun again."""
    world.ok(every_minute("skip"))
    row = world.dump().schedules["s"]
    (fire,) = due([row], MINUTE, _each_minute, 500)
    start = c.StartScheduled(id="s", at=7, key="k")
    world.batch([(start, MINUTE), (fire, MINUTE)])
    assert (made(world), skipped(world)) == ([], 1)
    row = world.dump().schedules["s"]
    (fire,) = due([row], 2 * MINUTE, _each_minute, 500)
    world.batch([(c.CancelPromise(id=start.root_id), 2 * MINUTE), (fire, 2 * MINUTE)])
    assert (made(world), skipped(world)) == ([2], 1)
    world.clock.advance(2 * MINUTE)
    work(world)
    row = world.dump().schedules["s"]
    (fire,) = due([row], 3 * MINUTE, _each_minute, 500)
    world.batch([(r.run("run/s-7", a=""), 3 * MINUTE), (fire, 3 * MINUTE)])
    assert skipped(world) == 1  # it was given such an id by somebody else
    world.check(3 * MINUTE)


def test_the_previous_run_ends_in_the_batch_that_queues_one(world: World) -> None:
    """The wait that was added a moment ago is seen by the settlement."""
    world.ok(every_minute("queue_one"))
    world.tick(MINUTE)
    row = world.dump().schedules["s"]
    (fire,) = due([row], 2 * MINUTE, _each_minute, 500)
    world.batch([(fire, 2 * MINUTE), (c.CancelPromise(id=root(1)), 2 * MINUTE)])
    assert _after(world.promise(root(2))) == [root(1)]
    assert {f"{root(2)}:a", f"{root(2)}:b"} <= set(ready(world))
    world.tick(MINUTE)
    world.check()


# --- missed occurrences --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "catch_up", "expected"),
    [
        ("allow", False, ([10], 0)),
        ("allow", True, (list(range(1, 11)), 0)),
        ("skip", False, ([10], 0)),
        ("skip", True, ([1], 9)),
        ("queue_one", False, ([10], 0)),
        ("queue_one", True, ([1, 2], 8)),
    ],
)
def test_ten_missed_occurrences(
    world: World, overlap: str, catch_up: bool, expected: tuple[list[int], int]
) -> None:
    """They come at one moment, so the oldest take the places there are."""
    world.ok(every_minute(overlap, catch_up=catch_up))
    world.tick(10 * MINUTE + 1)
    assert (made(world), skipped(world)) == expected
    row = world.dump().schedules["s"]
    assert (row.last_run_at, row.next_run_at) == (expected[0][-1] * MINUTE, 11 * MINUTE)
    assert row.full_until is None
    world.check()


@pytest.mark.parametrize(
    ("overlap", "catch_up", "expected"),
    [
        ("skip", False, ([1], 1)),
        ("skip", True, ([1], 10)),
        ("queue_one", False, ([1, 11], 0)),
        ("queue_one", True, ([1, 2], 9)),
    ],
)
def test_ten_missed_occurrences_while_a_run_is_open(
    world: World, overlap: str, catch_up: bool, expected: tuple[list[int], int]
) -> None:
    """The first was started before the ten were missed."""
    world.ok(every_minute(overlap, catch_up=catch_up))
    world.tick(MINUTE)
    world.tick(10 * MINUTE)
    assert (made(world), skipped(world)) == expected
    world.check()


@pytest.mark.parametrize(("overlap", "places"), [("skip", 1), ("queue_one", 2)])
@pytest.mark.parametrize("limit", [1, 8])
def test_portions_give_no_place_away_twice(
    world: World, limit: int, overlap: str, places: int
) -> None:
    """Even if the runs of one portion have ended before the next comes, and time goes on."""
    world.ok(every_minute(overlap, catch_up=True))
    portions = _catch_up(world, range(100 * MINUTE, 101 * MINUTE), limit)
    assert portions >= 50
    assert made(world) == list(range(1, places + 1))
    assert skipped(world) == 100 - places
    world.check()


def test_what_comes_while_it_catches_up_is_decided_later(world: World) -> None:
    """In portions of two a minute: each time it has caught up with what was missed together, the
    next occurrence finds nothing open.
    """
    world.ok(every_minute("skip", catch_up=True))
    _catch_up(world, range(10 * MINUTE, 22 * MINUTE, MINUTE), 8)
    assert (made(world), skipped(world)) == ([1, 11, 16, 19, 21], 16)
    world.check()


def test_another_rule_while_it_catches_up(world: World) -> None:
    """What is left of the old rule is nobody's any more."""
    world.ok(every_minute("skip", catch_up=True))
    _catch_up(world, range(10 * MINUTE, 10 * MINUTE + 2), 8)
    assert world.dump().schedules["s"].full_until == 10 * MINUTE
    other = every_minute("skip", catch_up=True, cron="*/30 * * * *", replace=True)
    assert world.ok(other).schedule.full_until is None
    world.tick(50 * MINUTE)
    assert (made(world), skipped(world)) == ([1, 30], 4)
    world.check()


def _catch_up(world: World, times: Iterable[int], limit: int) -> int:
    """One portion each time, whose runs end before the next; how many there were."""
    portions = 0
    for now in times:
        ticks = list(world.store.due(now, limit))
        if not ticks:
            break
        world.clock.advance(now - world.now)
        for tick in ticks:
            world.send(tick)
        work(world)
        portions += 1
    return portions


minutes = st.lists(
    st.tuples(st.sampled_from(["tick", "tick", "work", "now", "cancel", "rerun"]), st.booleans()),
    max_size=14,
)


@given(minutes, st.sampled_from(["skip", "queue_one"]), st.booleans())
def test_no_policy_is_ever_broken(
    script: Sequence[tuple[str, bool]], overlap: str, catch_up: bool
) -> None:
    """Whatever people do: occurrences have runs only as their policy allows, or are counted; both
    stores agree.
    """
    worlds = [World(backend) for backend in BACKENDS]
    try:
        for world in worlds:
            world.ok(every_minute(overlap, catch_up=catch_up, nodes=NODES[:1]))
            occurrences = 0
            for number, (what, much) in enumerate(script):
                if what == "tick":
                    world.tick(MINUTE * (3 if much else 1))
                    occurrences += 3 if much and catch_up else 1
                else:
                    _disturb(world, what, number, much)
                _check_policy(world, overlap)
            assert len(made(world)) + skipped(world) == occurrences
        first, second = (world.dump() for world in worlds)
        assert first.promises == second.promises
        assert first.schedules == second.schedules
        assert first.waits == second.waits
    finally:
        for world in worlds:
            world.engine.stop()


def _disturb(world: World, what: str, number: int, much: bool) -> None:
    runs = sorted(each for each in world.dump().promises if ":" not in each)
    if what == "work":
        work(world, at_most=20 if much else 1)
    elif what == "now":
        world.ok(c.StartScheduled(id="s", at=world.now, key=f"k{number}"))
    elif runs and what == "cancel":
        cancel(world, runs[0 if much else -1])
    elif runs:
        again = (c.NodeAgain("a", succeeded=True),)
        world.send(c.RerunRun(id=runs[0 if much else -1], life=2, nodes=again))


def _check_policy(world: World, overlap: str) -> None:
    """Of open runs that occurrences have made, at most one goes on and at most one waits; by the
    time one was made, nothing else was open, or it waits for all that was.
    """
    world.check()
    state = world.dump()
    opened = [p for p in state.promises.values() if p.is_pending and state.tasks[p.id].is_root]
    ids = {p.id for p in opened}
    waiting = [p for p in opened if ids & set(_after(p))]
    assert len(waiting) <= (overlap == "queue_one")
    by_occurrence = [p for p in opened if "now" not in p.id and "life" not in p.id]
    assert len([p for p in by_occurrence if p not in waiting]) <= 1


def _after(promise: Promise) -> list[str]:
    return json.loads(json.loads(promise.tags).get(AFTER, "[]"))


def _each_minute(_cron: str, after: int, _zone: str) -> int:
    return (after // MINUTE + 1) * MINUTE
