"""Promises that exist because somebody waits for them, or that are settled before anybody does."""

import pytest

from layby.core import commands as c
from layby.core.model import NEVER, Listener
from tests.helpers import requests as r
from tests.helpers.worlds import World


def waited_for(world: World) -> None:
    """A placeholder `x` with a task that waits for it and somebody who listens."""
    world.ok(c.EnsurePromise(id="x"))
    world.ok(r.claimed("t"))
    world.ok(r.suspend("t", 1, "x"))
    world.ok(c.RegisterListener(awaited="x", address=r.WORKER))


def test_ensure_creates_a_placeholder_once(world: World) -> None:
    """It is pending, without a deadline, and shown as it is the second time."""
    first = world.ok(c.EnsurePromise(id="x")).promise
    assert (first.placeholder, first.state, first.timeout_at) == (True, "pending", NEVER)
    world.clock.advance(5)
    assert world.ok(c.EnsurePromise(id="x")).promise == first


def test_ensure_leaves_what_exists_alone(world: World) -> None:
    """Whether pending or settled."""
    created = world.ok(r.promise("x", 500)).promise
    assert world.ok(c.EnsurePromise(id="x")).promise == created
    world.clock.advance(500)
    assert world.ok(c.EnsurePromise(id="x")).promise.state == "rejected_timedout"


def test_an_event_before_its_wait_is_not_lost(world: World) -> None:
    """Resolving creates the promise settled; whoever comes later reads it."""
    world.ok(c.ResolvePromise(id="x", value=c.Value(data="eA==")))
    world.ok(c.ResolvePromise(id="x", state="rejected"))
    found = world.ok(c.EnsurePromise(id="x")).promise
    assert (found.state, found.value, found.settled_at) == ("resolved", '{"data":"eA=="}', 0)
    assert world.ok(r.promise("x", 500)).promise == found
    world.ok(r.claimed("t"))
    assert world.send(r.suspend("t", 1, "x")).status == 300


def test_resolving_a_placeholder_wakes_who_waits(world: World) -> None:
    """The task is ready and the listener is told, in the same step."""
    waited_for(world)
    world.ok(c.ResolvePromise(id="x"))
    state = world.dump()
    assert (state.tasks["t"].state, state.tasks["t"].resumes) == ("pending", ("x",))
    assert ("x", "unblock", r.WORKER) in state.messages


ADOPTERS: dict[str, c.Command] = {
    "promise.create": r.promise("x", 9_000),
    "promise.create with a task": r.target("x", 9_000),
    "task.create": r.claimed("x", 9_000),
    "task.fence": c.FenceTask(id="f", version=1, inner=r.promise("x", 9_000)),
}


@pytest.mark.parametrize("name", ADOPTERS)
@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
def test_whoever_creates_the_id_adopts_it(world: World, name: str, batched: bool) -> None:
    """It counts as absent for create: all it had is replaced, waits and listeners stay."""
    world.ok(r.claimed("f"))
    if batched:
        world.batch(
            [
                (c.EnsurePromise(id="x"), 0),
                (r.claimed("t"), 0),
                (r.suspend("t", 1, "x"), 0),
                (c.RegisterListener(awaited="x", address=r.WORKER), 0),
                (ADOPTERS[name], 7),
            ]
        )
    else:
        waited_for(world)
        world.clock.advance(7)
        world.ok(ADOPTERS[name])
    state = world.dump()
    adopted = state.promises["x"]
    assert (adopted.placeholder, adopted.timeout_at, adopted.created_at) == (False, 9_000, 7)
    assert ("x", "t") in state.waits
    assert Listener("x", r.WORKER) in state.listeners
    world.check(7)
    world.ok(r.settle("x"))
    assert world.task("t").state == "pending"


def test_a_schedule_adopts_it(world: World) -> None:
    """As any other creation would."""
    waited_for(world)
    tags = {"resonate:target": r.OTHER}
    world.ok(
        c.CreateSchedule(
            id="s", cron="* * * * *", promise_id="x", promise_timeout=9_000, promise_tags=tags
        )
    )
    world.tick(60_000)
    state = world.dump()
    assert (state.promises["x"].placeholder, state.tasks["x"].state) == (False, "pending")
    assert ("x", "t") in state.waits
    world.check()


def test_a_run_adopts_its_root(world: World) -> None:
    """Who waited for the id of a run waits for the run."""
    waited_for(world)
    world.ok(r.run("x", a=""))
    world.ok(r.settle("x"))
    assert world.task("t").state == "pending"
    world.tick()
    world.check()


def test_a_run_adopts_its_nodes(world: World) -> None:
    """Who waited for a node before the run was started waits for that node."""
    world.ok(c.EnsurePromise(id="job:b"))
    world.ok(r.claimed("t"))
    world.ok(r.suspend("t", 1, "job:b"))
    world.ok(r.run("job", a="", b="a"))
    world.ok(r.settle("job:a"))
    world.ok(r.settle("job:b"))
    assert world.task("t").state == "pending"
    world.check()


def test_adoption_past_the_deadline_wakes_who_waits(world: World) -> None:
    """Born settled, and those who wait for it hear so."""
    waited_for(world)
    world.clock.advance(9)
    born = world.ok(r.promise("x", 5)).promise
    assert (born.state, born.created_at, born.settled_at) == ("rejected_timedout", 5, 5)
    state = world.dump()
    assert state.tasks["t"].state == "pending"
    assert ("x", "unblock", r.WORKER) in state.messages
    world.check()


@pytest.mark.parametrize("request_", [c.EnsurePromise(id="run/x"), c.ResolvePromise(id="run/x")])
def test_runs_are_never_created_by_waiting(world: World, request_: c.Command) -> None:
    """Neither by waiting for one nor by resolving it; the text says what to do."""
    reply = world.send(request_)
    assert (reply.status, "starting" in str(reply.data)) == (404, True)
    assert world.dump().promises == {}
    world.ok(r.run("run/x", a=""))
    assert world.send(request_).status == (200 if isinstance(request_, c.EnsurePromise) else 409)


def test_cancelling_keeps_who_and_why(world: World) -> None:
    """As an error in the form the SDKs write; a settled promise stays as it is."""
    assert world.send(c.CancelPromise(id="x")).status == 404
    world.ok(r.promise("x"))
    first = world.ok(c.CancelPromise(id="x", by="me", reason="late")).promise
    assert first.state == "rejected_canceled"
    assert world.ok(c.CancelPromise(id="x", by="you")).promise == first
