"""Which wait a person means by an id, and that no other one is ended in its place."""

from typing import Any

import pytest

from layby.core import commands as c
from layby.core.exit_refusals import GOES_ON, NOT_IN_IT, why_not_waiting
from layby.core.meant_waits import NO_WAIT, FindWait
from layby.core.replies import WaitData
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World

NODE = "run/a:a"
TIMER = {"resonate:timer": "true", MOVABLE: "true"}


def meant(world: World, asked: str) -> tuple[str, str]:
    found = world.ok(FindWait(id=asked))
    assert isinstance(found, WaitData)
    return found.task, found.wait


def sleep(world: World, which: str, task: str = NODE, version: int = 1) -> str:
    """Its body is parked in a sleep that is called so."""
    record = f"{task}.w0.{which}"
    below = c.CreateBelow(id=task, version=version, promise_id=record, timeout=60_000, tags=TIMER)
    told = WaitingOn("sleep", "sleeps", record_id=record).to_text()
    world.ok(below)
    world.ok(c.AnnotateTask(id=task, version=version, sub_status="Deferred", waiting_on=told))
    return record


def wake(wait: str, exit_id: str = "x") -> c.WakeTask:
    return c.WakeTask(id=NODE, wait=wait, exit_id=exit_id)


def extend(wait: str, exit_id: str = "y") -> c.ExtendWait:
    return c.ExtendWait(id=NODE, wait=wait, exit_id=exit_id, timeout=5_000)


@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_a_task_a_run_and_the_wait_itself_mean_the_same(world: World) -> None:
    """Whichever of the three ids is given, the answer names the task and its wait."""
    world.ok(r.run(a="", b="", with_take=r.take()))
    assert meant(world, NODE) == (NODE, ""), "it runs"
    record = sleep(world, "sleep-1")
    for each in (NODE, "run/a", record):
        assert meant(world, each) == (NODE, record)


def test_what_waits_in_the_store_has_a_name_too(world: World) -> None:
    """A deferred task, also by its trigger, and one that backs off."""
    world.ok(r.run(a="", b="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Poll", url="u")))
    assert meant(world, NODE) == (NODE, f"{NODE}.defer.1")
    assert meant(world, f"{NODE}.defer.1") == (NODE, f"{NODE}.defer.1")
    assert meant(world, "run/a") == (NODE, f"{NODE}.defer.1"), "its trigger does not count"
    world.ok(r.fail("run/a:b", retry_in=9_000))
    assert meant(world, "run/a:b") == ("run/a:b", "run/a:b.backoff.1")


def test_a_run_in_which_several_tasks_wait_or_none_is_not_enough(world: World) -> None:
    """The refusal says which to name."""
    world.ok(r.run(a="", b="", with_take=r.take()))
    none = world.send(FindWait(id="run/a"))
    assert (none.status, none.data) == (409, NO_WAIT)
    sleep(world, "sleep-1")
    sleep(world, "sleep-1", "run/a:b")
    several = world.send(FindWait(id="run/a"))
    assert (several.status, "'run/a:a', 'run/a:b'" in several.data) == (409, True)


def test_the_name_of_a_task_may_have_dots(world: World) -> None:
    """Then it means that task, not a wait of the one above."""
    world.ok(r.dag({"a": "", "a.b": ""}, with_take=r.take()))
    assert meant(world, "run/a:a.b") == ("run/a:a.b", "")
    assert meant(world, "run/a:a.b.w0.sleep-1") == ("run/a:a.b", "run/a:a.b.w0.sleep-1")


def test_a_call_means_the_wait_of_who_serves_it_while_that_waits(world: World) -> None:
    """Else that of the caller, whose wait has the same id."""
    call = f"{NODE}.x.rpc-1"
    world.ok(r.run(a="", with_take=r.take()))
    tags = {"resonate:target": "poll://any@other"}
    world.ok(c.CreateBelow(id=NODE, version=1, promise_id=call, tags=tags))
    world.ok(c.AcquireTask(id=call, version=0, pid="q", ttl=60_000))
    assert meant(world, call) == (NODE, call)
    record = sleep(world, "sleep-1", call)
    assert meant(world, call) == meant(world, record) == (call, record)


def test_the_task_of_a_run_that_was_run_again_is_that_of_its_latest_life(world: World) -> None:
    """Unless another life is named, or the task has ended there as well."""
    world.ok(r.run(a=""))
    world.ok(r.settle(NODE, "rejected"))
    world.ok(r.settle("run/a", "rejected"))
    world.ok(c.RerunRun(id="run/a", life=2, nodes=(c.NodeAgain("a", 1),)))
    later = "run/a:life/2:a"
    world.ok(r.take())
    record = sleep(world, "sleep-1", later)
    for each in (NODE, "run/a", later, record):
        assert meant(world, each) == (later, record)


def test_what_nobody_knows_is_not_found(world: World) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(c.CreatePromise(id="paid", timeout_at=9_000))
    for each in ("run/b", "run/a:b", "paid", "paid.w0.sleep-1"):
        assert world.send(FindWait(id=each)).status == 404


@pytest.mark.parametrize("command", [wake, extend])
@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_an_exit_for_a_sleep_does_not_touch_the_next(world: World, command: Any) -> None:
    """Who meant the first is told that it is over."""
    world.ok(r.run(a="", with_take=r.take()))
    first = sleep(world, "sleep-1")
    world.ok(wake(first, "e"))
    second = sleep(world, "sleep-2")
    refused = world.send(command(first))
    assert (refused.status, refused.data) == (409, GOES_ON)
    assert (world.promise(second).state, world.promise(second).timeout_at) == ("pending", 60_000)
    assert world.send(command(second)).is_ok
    world.check()


@pytest.mark.parametrize("command", [wake, extend])
@pytest.mark.parametrize("kind", ["Event", "Delay", "Poll"])
def test_an_exit_for_a_deferral_does_not_touch_the_next(
    world: World, kind: str, command: Any
) -> None:
    """Nor does it while the task goes on. The name stays when the deadline has moved."""
    args = {"Event": {"name": "paid"}, "Delay": {"ms": 60_000}, "Poll": {"url": "u"}}[kind]
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger(kind, **args), 50_000))
    first = meant(world, NODE)[1]
    world.ok(extend(first, "e"))
    assert meant(world, NODE)[1] == first
    world.ok(wake(first, "f"))
    refused = world.send(command(first))
    going_on = (GOES_ON, NOT_IN_IT, why_not_waiting(world.task(NODE)))
    assert (refused.status, refused.data in going_on) == (409, True)
    world.ok(r.take())
    assert world.send(command(first)).status == 409, "it runs"
    world.ok(r.defer(NODE, 2, r.trigger("Event", name="shipped"), 50_000))
    before = world.task(NODE)
    assert world.send(command(first)).status == 409
    assert world.task(NODE) == before
    assert world.send(command(meant(world, NODE)[1])).is_ok
    world.check()


def test_an_exit_for_a_back_off_does_not_touch_the_next(world: World) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.fail(NODE, retry_in=9_000))
    first = meant(world, NODE)[1]
    assert "halt it" in world.send(extend(first)).data
    world.ok(wake(first, "e"))
    world.ok(r.take())
    world.ok(r.fail(NODE, version=2, retry_in=9_000))
    refused = world.send(wake(first))
    assert (refused.status, refused.data) == (409, GOES_ON)
    assert world.task(NODE).state == "suspended"
    world.check()


def test_a_condition_that_was_woken_does_not_end_the_next_one(world: World) -> None:
    """Though the exit was asked for while its body was in the first."""
    world.ok(r.run(a="", with_take=r.take()))
    records = [f"{NODE}.w0.defer_until-{n}" for n in (1, 2)]
    for each in records:
        told = WaitingOn("condition", "waits", record_id=each).to_text()
        world.ok(c.AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=told))
    refused = world.send(wake(records[0]))
    assert (refused.status, refused.data) == (409, NOT_IN_IT)
    assert world.store.dump().promises.keys() == {"run/a", NODE}
