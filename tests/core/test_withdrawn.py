"""Promises of waits that a task has given up: cancelled together with the record of who won."""

import pytest

from layby.core import commands as c
from layby.core.model import NEVER
from layby.wire import json_values
from tests.helpers import requests as r
from tests.helpers.worlds import World

TASK = "run/a:a"


def held(world: World, *below: str) -> None:
    """A task that a worker has taken, with these promises below it."""
    world.ok(r.run(with_take=r.take(), a=""))
    for each in below:
        world.ok(c.CreateBelow(id=TASK, version=1, promise_id=each, timeout=NEVER))


def gives_up(*ids: str, version: int = 1, record: str | None = f"{TASK}.w0.r") -> c.AnnotateTask:
    return c.AnnotateTask(id=TASK, version=version, record_id=record, withdrawn=ids)


def test_they_are_cancelled_with_the_record(world: World) -> None:
    """One step: whoever reads the record finds them cancelled."""
    held(world, f"{TASK}.w0.t", f"{TASK}.x.f")
    recorded = world.ok(gives_up(f"{TASK}.w0.t", f"{TASK}.x.f")).record
    assert recorded is not None
    found = [world.promise(each) for each in (f"{TASK}.w0.t", f"{TASK}.x.f")]
    assert [each.state for each in found] == ["rejected_canceled"] * 2
    assert "waits for it no longer" in json_values.from_text(found[0].value)["message"]
    world.check()


def test_what_has_settled_stays_and_what_is_unknown_is_skipped(world: World) -> None:
    """A timer that fired meanwhile has fired; the command may be sent twice."""
    held(world, f"{TASK}.w0.t")
    world.ok(c.ResolvePromise(id=f"{TASK}.w0.t"))
    for _ in range(2):
        world.ok(gives_up(f"{TASK}.w0.t", f"{TASK}.w0.never"))
    assert world.promise(f"{TASK}.w0.t").state == "resolved"
    world.check()


def test_whoever_has_lost_the_task_withdraws_nothing(world: World) -> None:
    """The next claim may wait for just that timer."""
    held(world, f"{TASK}.w0.t")
    assert world.send(gives_up(f"{TASK}.w0.t", version=2)).status == 409
    assert world.promise(f"{TASK}.w0.t").state == "pending"


@pytest.mark.parametrize("other", ["paid", "run/a:b.w0.t", "run/a", TASK])
def test_only_what_is_below_the_task_can_be_withdrawn(world: World, other: str) -> None:
    """A shared promise is never settled by a wait that is given up."""
    held(world)
    reply = world.send(gives_up(other))
    assert reply.status == 400
    assert f"must begin with '{TASK}.'" in str(reply.data)
