"""Workers say how long, core knows what time it is: no clock elsewhere spoils a deadline."""

import json
from typing import Any

import pytest

from layby.core import commands as c
from layby.core.model import NEVER
from tests.helpers import requests as r
from tests.helpers.worlds import World

NOW = 1_000_000
TIMER = {"resonate:timer": "true"}


@pytest.fixture
def world_options() -> dict[str, Any]:
    return {"now": NOW}


def held(world: World, timeout: int = NEVER) -> str:
    """A task that a worker has taken."""
    world.ok(r.run(timeout=timeout, with_take=r.take(), a=""))
    return "run/a:a"


def below(task_id: str, timeout: int = NEVER, version: int = 1, **more: Any) -> c.CreateBelow:
    return c.CreateBelow(
        id=task_id, version=version, promise_id=f"{task_id}.t", timeout=timeout, **more
    )


def annotate(task_id: str, version: int = 1, ended=(), **waits: int) -> c.AnnotateTask:
    named = {f"{task_id}.{key}": length for key, length in waits.items()}
    gone = tuple(f"{task_id}.{key}" for key in ended)
    return c.AnnotateTask(id=task_id, version=version, waits=named, ended=gone)


def deadlines(world: World, task_id: str) -> dict[str, int]:
    text = world.task(task_id).deadlines
    found = {} if text is None else json.loads(text)
    return {key.removeprefix(f"{task_id}."): at for key, at in found.items()}


# --- layby.task.create -------------------------------------------------------------------


def test_a_promise_below_a_task_ends_so_long_after_now(world: World) -> None:
    """The caller's clock plays no part; a timer resolves then."""
    task = held(world)
    made = world.ok(below(task, 5_000, tags=TIMER)).promise
    assert (made.timeout_at, made.created_at, made.state) == (NOW + 5_000, NOW, "pending")
    world.tick(5_000)
    assert world.promise(made.id).state == "resolved"
    world.check()


def test_what_stands_there_is_answered_as_it_is(world: World) -> None:
    """Asked again later it does not begin anew."""
    task = held(world)
    world.ok(below(task, 5_000))
    world.clock.advance(3_000)
    assert world.ok(below(task, 5_000)).promise.timeout_at == NOW + 5_000


def test_without_a_length_it_never_ends(world: World) -> None:
    assert world.ok(below(held(world))).promise.timeout_at == NEVER


@pytest.mark.parametrize(("capped", "timeout_at"), [(True, NOW + 2_000), (False, NOW + 5_000)])
def test_capped_it_does_not_outlast_the_task(world: World, capped: bool, timeout_at: int) -> None:
    task = held(world, timeout=2_000)
    assert world.ok(below(task, 5_000, capped=capped)).promise.timeout_at == timeout_at


def test_only_the_holder_creates_below_a_task(world: World) -> None:
    task = held(world)
    assert world.send(below(task, version=2)).status == 409
    assert world.send(below("run/none:a")).status == 404
    assert set(world.dump().promises) == {"run/a", task}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (below("x", -1), "timeout must be non-negative"),
        (c.CreateBelow(id="x", version=1, promise_id="x"), "must not equal the task ID"),
        (below("x", tags={"resonate:delay": "5"}), "resonate:delay is an instant"),
        (annotate("x", a=-1), "The length of wait 'x.a' must be non-negative"),
        (r.run(timeout=0, a=""), "timeout must be positive"),
    ],
)
def test_what_cannot_be_is_refused(world: World, command: c.Command, told: str) -> None:
    reply = world.send(command)
    assert (reply.status, told in reply.data) == (400, True)


# --- lengths in other commands -----------------------------------------------------------


def test_a_run_ends_so_long_after_its_start(world: World) -> None:
    world.ok(r.run(timeout=3_000, a=""))
    assert {each.timeout_at for each in world.dump().promises.values()} == {NOW + 3_000}


def test_a_back_off_lasts_so_long_from_now(world: World) -> None:
    task = held(world)
    world.clock.advance(10)
    world.ok(r.fail(task, retry_in=2_000))
    assert world.promise(f"{task}.backoff.1").timeout_at == NOW + 2_010


# --- deadlines of waits ------------------------------------------------------------------


def test_the_first_deadline_of_a_wait_stays(world: World) -> None:
    """Told again, in this life or another, it gets no more time."""
    task = held(world)
    told = world.ok(annotate(task, a=6_000))
    assert json.loads(told.task.deadlines) == {f"{task}.a": NOW + 6_000}
    world.clock.advance(4_000)
    world.ok(annotate(task, a=6_000, b=1_000))
    assert deadlines(world, task) == {"a": NOW + 6_000, "b": NOW + 5_000}


def test_an_entry_leaves_when_its_wait_ends(world: World) -> None:
    task = held(world)
    world.ok(annotate(task, a=1, b=2))
    world.ok(annotate(task, ended=["a", "unknown"]))
    assert deadlines(world, task) == {"b": NOW + 2}
    world.ok(annotate(task, ended=["b"]))
    assert world.task(task).deadlines is None


def test_deadlines_survive_a_hand_back_and_a_loss_and_come_with_the_claim(world: World) -> None:
    """What the next holder gets is what the first one began."""
    task = held(world)
    world.ok(annotate(task, a=90_000))
    world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    world.tick()
    (claim,) = world.ok(r.take(pid="q")).claims
    assert claim.task.deadlines_by_id == {f"{task}.a": NOW + 90_000}
    world.tick(61_000)
    (claim,) = world.ok(r.take(pid="s")).claims
    assert claim.task.deadlines_by_id == {f"{task}.a": NOW + 90_000}


def test_a_failed_try_takes_its_deadlines_with_it(world: World) -> None:
    """The next try begins its waits anew."""
    task = held(world)
    world.ok(annotate(task, a=90_000))
    world.ok(r.fail(task, retry_in=5))
    assert world.task(task).deadlines is None


def test_a_task_that_is_over_has_none(world: World) -> None:
    task = held(world)
    world.ok(annotate(task, a=90_000))
    world.ok(r.finish(task))
    assert world.task(task).deadlines is None


def test_claims_and_annotations_show_them_on_the_wire(world: World) -> None:
    task = held(world)
    data = {"id": task, "version": 1, "waits": {f"{task}.a": 7}}
    status, told = world.ask("layby.task.annotate", data, NOW)
    assert (status, told["task"]["deadlines"]) == (200, {f"{task}.a": NOW + 7})
    world.ok(c.ReleaseTask(id=task, version=1))
    take = {"pid": "q", "incarnation": "1", "group": "g", "names": ["f"], "free": 1}
    _, taken = world.ask("layby.worker.take", take, NOW)
    assert taken["claims"][0]["task"]["deadlines"] == {f"{task}.a": NOW + 7}
