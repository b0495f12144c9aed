"""Nodes that clean up: they begin when the bodies of all others have ended, whatever happened."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.model import NEVER, Wait
from layby.core.schedule_differences import differences
from layby.core.settings import Settings
from tests.helpers.random_runs import CHUNK, SMALL, run_scripts
from tests.helpers.requests import beat, callback, fail, finish, nightly, settle, take
from tests.helpers.worlds import BACKENDS, World

RUN, A, B, CLEAN = "run/1", "run/1:a", "run/1:b", "run/1:clean"


def node(name: str, *after: str, cleanup: bool = False) -> c.Node:
    return c.Node(id=name, name="n", after=after, cleanup=cleanup)


def started(*nodes: c.Node, timeout: int = NEVER, **options) -> c.StartRun:
    """`a`, then `b`; and `clean`, unless others are given."""
    nodes = nodes or (node("a"), node("b", "a"), node("clean", cleanup=True))
    return c.StartRun(id=RUN, name="r", group="g", nodes=nodes, timeout=timeout, **options)


def taken(world: World, pid: str = "p", incarnation: str = "1", free: int = 9) -> list[str]:
    """What a worker is handed now; it can run everything."""
    claims = world.ok(take(free, pid, incarnation, names=("n", "r"))).claims
    return [claim.task.id for claim in claims]


def released(task_id: str, version: int = 1, *, begun: bool = True) -> c.ReleaseTasks:
    """Its holder says that the body has ended."""
    ended = c.Released(task_id, version, begun=begun, history='"told"')
    return c.ReleaseTasks(pid="p", incarnation="1", tasks=(ended,))


def cancel(promise_id: str = RUN) -> c.CancelPromise:
    return c.CancelPromise(id=promise_id, by="me", reason="enough")


# --- in the ordinary course ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["resolved", "rejected"])
def test_it_begins_when_every_other_node_has_settled_and_before_the_root(world: World, how):
    world.ok(started())
    assert taken(world) == [A]
    world.ok(replace(finish(A), state=how))
    assert world.task(CLEAN).state == "suspended"
    assert taken(world) == [B]
    world.ok(finish(B))
    assert taken(world) == [CLEAN]
    world.check()
    assert world.promise(RUN).is_pending
    world.ok(finish(CLEAN))
    assert taken(world) == [RUN]
    world.ok(finish(RUN))
    world.check()


def test_the_verdict_of_the_run_comes_with_the_last_node_to_clean_up(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    assert taken(world) == [A]
    verdict = c.RootVerdict("resolved")
    assert world.ok(replace(finish(A), root=verdict)).root is None
    assert taken(world) == [CLEAN]
    assert world.ok(replace(finish(CLEAN), root=verdict)).root.state == "resolved"


def test_it_is_born_without_the_deadline_of_the_run(world: World):
    world.ok(started(timeout=1_000))
    assert world.promise(CLEAN).timeout_at == NEVER
    assert world.promise(A).timeout_at == 1_000


def test_several_begin_together_or_one_after_the_other(world: World):
    first, second = node("clean", cleanup=True), node("also", cleanup=True)
    last = node("last", "clean", "also", cleanup=True)
    world.ok(started(node("a"), first, second, last))
    assert taken(world) == [A]
    world.ok(finish(A))
    assert taken(world) == ["run/1:also", CLEAN]
    world.ok(fail("run/1:also"))
    world.ok(finish(CLEAN))
    assert taken(world) == ["run/1:last"]
    world.check()


# --- when the run ends early ----------------------------------------------------------------


def ended_early(world: World, how: str) -> None:
    if how == "cancelled":
        world.ok(cancel())
        world.tick()
    elif how == "settled":
        world.ok(settle(RUN))
        world.tick()
    else:
        world.tick(1_000)


ENDINGS = pytest.mark.parametrize("how", ["cancelled", "settled", "timed out"])


@ENDINGS
def test_the_root_settles_at_once_and_clean_up_begins_when_the_body_has_ended(world: World, how):
    """Nobody compensates a charge that is still being made."""
    world.ok(started(timeout=1_000))
    assert taken(world) == [A]
    ended_early(world, how)
    assert not world.promise(RUN).is_pending
    assert not world.promise(A).is_pending
    assert not world.promise(B).is_pending
    assert world.promise(CLEAN).is_pending
    assert taken(world) == []
    world.check()
    task = world.task(A)
    assert (task.state, task.is_kept) == ("fulfilled", True)
    world.ok(released(A))
    world.check()
    assert not world.task(A).is_kept
    assert taken(world) == [CLEAN]
    world.ok(finish(CLEAN))
    world.check()
    assert taken(world) == []
    assert not world.dump().waits


@ENDINGS
def test_what_was_never_begun_is_not_waited_for(world: World, how):
    world.ok(started(timeout=1_000))
    ended_early(world, how)
    assert taken(world) == [CLEAN]
    world.check()


def test_the_body_is_waited_for_if_only_its_own_task_was_cancelled(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    assert taken(world) == [A]
    world.ok(cancel(A))
    assert taken(world) == []
    world.ok(released(A))
    assert taken(world) == [CLEAN]


def test_those_that_depend_on_it_do_not_wait_for_the_body(world: World):
    world.ok(started())
    assert taken(world) == [A]
    world.ok(cancel(A))
    assert taken(world) == [B]
    world.ok(finish(B))
    assert taken(world) == []
    world.ok(released(A))
    assert taken(world) == [CLEAN]


def test_one_that_was_halted_before_is_waited_for_as_well(world: World):
    world.ok(started())
    assert taken(world) == [A]
    world.ok(c.HaltTask(id=A))
    world.ok(cancel())
    world.tick()
    assert taken(world) == []
    world.ok(released(A))
    assert taken(world) == [CLEAN]
    world.check()


def test_a_claim_ahead_that_never_began_is_not_a_try(world: World):
    world.ok(started())
    world.ok(replace(take(0, names=("n",)), ahead=1))
    world.ok(cancel())
    world.tick()
    assert taken(world) == []
    world.ok(released(A, begun=False))
    assert (world.task(A).tries, world.task(A).history) == (0, None)
    assert taken(world) == [CLEAN]


def test_the_history_of_a_settled_task_is_left_alone(world: World):
    """The one that comes with the end of a body speaks of a halt."""
    world.ok(started())
    taken(world)
    world.ok(cancel())
    world.tick()
    world.ok(released(A))
    assert world.task(A).history is None


@pytest.mark.parametrize("how", ["leaves", "is lost", "starts over"])
def test_a_holder_that_is_gone_holds_nothing_up(world: World, how):
    world.ok(started())
    world.ok(take(ttl=5_000, names=("n",)))
    world.ok(cancel())
    world.tick()
    if how == "leaves":
        world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    elif how == "starts over":
        world.ok(take(0, "p", "2", names=()))
    world.tick(5_000 if how == "is lost" else 0)
    world.check()
    assert world.task(A).crashes == 0
    assert taken(world, "q") == [CLEAN]


def test_a_stale_release_ends_nothing(world: World):
    world.ok(started())
    taken(world)
    world.ok(cancel())
    world.tick()
    world.ok(released(A, version=2))
    world.ok(replace(released(A), incarnation="2"))
    assert taken(world) == []


def test_a_body_that_ends_in_the_very_moment_of_the_deadline_is_heard_of_later(world: World):
    """The tick has not come yet when it is released: the notice it brings is answered."""
    world.ok(started(timeout=1_000))
    taken(world)
    world.clock.advance(1_000)
    world.ok(released(A))
    world.tick()
    notices = world.ok(c.HeartbeatWorker(pid="p", incarnation="1")).lost
    assert [(each.id, each.version) for each in notices] == [(A, 1)]
    world.ok(released(A))
    assert taken(world) == [CLEAN]


def test_a_body_that_outlasts_its_own_timeout_is_waited_for(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    taken(world)
    world.ok(replace(fail(A), still_running=True))
    assert world.promise(A).state == "rejected"
    assert taken(world) == []
    world.check()
    assert world.ok(c.HeartbeatWorker(pid="p", incarnation="1")).lost == []
    world.ok(released(A))
    assert taken(world) == [CLEAN]


def test_a_failure_with_tries_left_is_given_up_at_once(world: World):
    world.ok(started())
    taken(world)
    world.ok(replace(fail(A, retry_in=5), still_running=True))
    assert world.task(A).pid is None
    world.check()


# --- while it cleans up --------------------------------------------------------------------


def test_cancelling_the_run_does_not_end_the_clean_up(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    taken(world)
    world.ok(finish(A))
    assert taken(world) == [CLEAN]
    world.ok(cancel())
    world.tick()
    assert world.task(CLEAN).state == "acquired"
    assert world.ok(finish(CLEAN)).promise.state == "resolved"
    assert world.promise(RUN).state == "rejected_canceled"
    world.check()


def test_the_deadline_of_the_run_does_not_end_it_either(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True), timeout=1_000))
    taken(world)
    world.ok(finish(A))
    assert taken(world) == [CLEAN]
    world.tick(1_000)
    assert world.promise(RUN).state == "rejected_timedout"
    assert world.task(CLEAN).state == "acquired"
    world.check()


def test_it_can_be_cancelled_itself_and_the_root_waits_for_its_body(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    taken(world)
    world.ok(finish(A))
    taken(world)
    world.ok(cancel(CLEAN))
    assert taken(world) == []
    world.ok(released(CLEAN))
    assert taken(world) == [RUN]
    world.check()


def test_pinning_a_run_past_its_deadline_does_not_settle_it_half(world: World):
    """It reads as settled before the tick has come; those that clean up have no deadline."""
    world.ok(started(node("a"), node("clean", cleanup=True), timeout=1_000))
    taken(world)
    world.ok(finish(A))
    assert taken(world) == [CLEAN]
    world.clock.advance(1_000)
    assert world.ok(c.PinRun(id=CLEAN, version=1, code="one")).code == "one"
    world.tick()
    world.check()
    assert not world.dump().waits


def test_a_worker_lost_while_cleaning_up_is_a_crash_like_any_other(world: World):
    world.ok(started(node("a"), node("clean", cleanup=True)))
    world.ok(cancel())
    world.tick()
    world.ok(take(ttl=5_000, names=("n",)))
    world.tick(5_000)
    assert world.task(CLEAN).crashes == 1
    assert taken(world, "q") == [CLEAN]


def test_a_run_that_is_over_before_it_begins_is_cleaned_up_too(world: World):
    """A schedule's occurrence that was missed by more than its deadline."""
    world.ok(
        c.CreateRunSchedule(
            id="s",
            cron="* * * * *",
            name="r",
            group="g",
            nodes=(node("a"), node("clean", cleanup=True), node("x", "clean", cleanup=True)),
            timeout=1_000,
        )
    )
    world.tick(100_000)
    (claimed,) = taken(world)
    assert claimed.endswith(":clean")
    world.check()


# --- many ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_waits_than_one_step_handles(backend):
    """Dependents of a node whose body goes on are resumed, portion by portion, but not clean-up."""
    dependents = [node(f"d{number}", "a") for number in range(9)]
    cleanups = [node(f"c{number}", cleanup=True) for number in range(2)]
    with World(backend, settings=Settings(hop_limit=3), chunk=4) as world:
        world.ok(started(node("a"), *dependents, *cleanups))
        assert taken(world) == [A]
        world.ok(cancel(A))
        world.tick()
        world.check()
        assert len(taken(world)) == 9
        world.ok(cancel())
        world.tick()
        for each in dependents:
            world.ok(released(f"run/1:{each.id}"))
        assert taken(world) == []
        world.ok(released(A))
        world.tick()
        assert len(taken(world)) == 2
        world.check()


@pytest.mark.parametrize("order", list(permutations(["a", "b", "x"])))
def test_bodies_may_end_in_any_order(order):
    with World() as world:
        world.ok(started(node("a"), node("b"), node("x"), node("clean", cleanup=True)))
        assert len(taken(world)) == 3
        world.ok(cancel())
        world.tick()
        for each in order:
            assert taken(world) == []
            world.ok(released(f"run/1:{each}"))
        assert taken(world) == [CLEAN]


def test_a_callback_between_the_root_and_its_clean_up_changes_nothing(world: World):
    world.ok(started())
    world.ok(callback(CLEAN, RUN))
    assert world.dump().waits[CLEAN, RUN] == Wait(CLEAN, RUN, "end")
    world.ok(cancel())
    world.tick()
    assert taken(world) == [CLEAN]
    world.ok(beat("p"))
    world.check()


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ((node("a", "clean"), node("clean", cleanup=True)), "'a' depends on 'clean'"),
        ((node("clean", cleanup=True),), "only nodes that clean up"),
        ((node("a"), *(node(f"c{n}", cleanup=True) for n in range(101))), "100"),
    ],
)
def test_what_cannot_be_is_refused(nodes, why):
    with World() as world:
        reply = world.send(started(*nodes))
        assert reply.status == 400
        assert why in reply.data


def test_clean_up_counts_as_dependencies():
    """10,000 nodes and 11 that wait for each of them are too many."""
    many = [node(f"n{number}") for number in range(9_900)]
    cleanups = [node(f"c{number}", cleanup=True) for number in range(11)]
    with World() as world:
        reply = world.send(started(*many, *cleanups))
        assert reply.status == 400
        assert "dependencies of nodes" in reply.data


def test_schedules_that_stand_are_the_same_after_an_upgrade(world: World):
    """They were stored before nodes could clean up."""
    made = nightly()
    world.ok(made)
    stored = world.dump().schedules["nightly"]
    before = replace(stored, nodes=stored.nodes.replace(',"cleanup":false', ""))
    assert before != stored
    assert differences(before, stored) == []


# --- whatever happens ------------------------------------------------------------------------


@given(
    script=run_scripts(early=False, max_steps=60, settings=SMALL), backend=st.sampled_from(BACKENDS)
)
def test_nothing_cleans_up_beside_a_body_of_its_run(script, backend):
    """In random scripts: the invariants hold after each step, `clean_up_comes_last` among them."""
    with World(backend, settings=SMALL, chunk=CHUNK) as world:
        for request, now in script:
            world.send(request, now)
            world.check(now)
