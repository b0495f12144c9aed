"""How a try ends: finished or failed, the back-off, and the take that comes with it."""

import pytest

from layby.core import commands as c
from tests.helpers import requests as r
from tests.helpers.worlds import World


def test_finish_takes_what_it_has_made_ready_only_before_its_equals(world: World) -> None:
    """The same run comes first among what is ready since the same instant, older work before it."""
    world.ok(r.run("run/a", a="", b="a", d="b"))
    world.ok(r.take(1))
    world.ok(r.run("run/0", a=""))
    world.clock.advance(9)
    world.ok(r.run("run/1", a=""))
    got = world.ok(r.finish("run/a:a", with_take=r.take(2))).taken
    assert [claim.task.id for claim in got.claims] == ["run/0:a", "run/a:b"]
    assert got.oldest_left == 9


def test_a_take_of_a_dead_holder_rides_in_vain(world: World) -> None:
    """The finish stands, since its version did; the take gets nothing."""
    world.ok(r.run(a="", b="a"))
    world.ok(r.take())
    world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    done = world.ok(r.finish("run/a:a", with_take=r.take()))
    assert done.promise.state == "resolved"
    assert done.taken.claims == ()


def test_a_failure_backs_off_as_a_wait_on_a_timer(world: World) -> None:
    """Counted, error kept; suspended on a promise like any other until its time has come."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    failed = world.ok(r.fail("run/a:a", retry_in=2_000))
    assert failed.promise.is_pending
    task = world.task("run/a:a")
    assert (task.state, task.failures, task.error) == ("suspended", 1, '{"data":"ZXJy"}')
    timer = world.promise("run/a:a.backoff.1")
    assert (timer.timer, timer.timeout_at) == (True, 2_000)
    world.tick(1_999)
    assert world.ok(r.take()).claims == []
    world.tick(1)
    (claim,) = world.ok(r.take()).claims
    assert (claim.task.version, claim.task.failures) == (2, 1)
    world.check()


def test_a_back_off_that_is_over_is_ready_at_once(world: World) -> None:
    """Retry at a time that has come: no wait, and it may be taken in the same step."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    again = c.FailTask(id="run/a:a", version=1, retry_in=0, take=r.take())
    (claim,) = world.ok(again).taken.claims
    assert (claim.task.id, claim.task.version, claim.task.failures) == ("run/a:a", 2, 1)


def test_a_back_off_adopts_a_placeholder_of_its_id(world: World) -> None:
    """Somebody who waits for the timer must not keep the task from ever waking."""
    world.ok(r.run("job", a=""))
    world.ok(r.take())
    world.ok(c.EnsurePromise(id="job:a.backoff.1"))
    world.ok(r.fail("job:a", retry_in=2_000))
    world.tick(2_000)
    assert world.task("job:a").state == "pending"


def test_a_failure_for_good_rejects_and_takes(world: World) -> None:
    """The error becomes the value of the promise; what waited goes on."""
    world.ok(r.run(a="", b="a"))
    world.ok(r.take())
    last = c.FailTask(id="run/a:a", version=1, error=c.Value(data="ZXJy"), take=r.take())
    data = world.ok(last)
    assert (data.promise.state, data.promise.value) == ("rejected", '{"data":"ZXJy"}')
    assert (data.task.state, data.task.failures) == ("fulfilled", 1)
    assert [claim.task.id for claim in data.taken.claims] == ["run/a:b"]


def test_a_back_off_finds_its_timer_already_there() -> None:
    """Settled: ready at once; pending: it waits for what is there."""
    for settled in (True, False):
        with World() as world:
            world.ok(r.run("job", a=""))
            world.ok(r.take())
            world.ok(r.promise("job:a.backoff.1", 700))
            if settled:
                world.ok(r.settle("job:a.backoff.1"))
            world.ok(r.fail("job:a", retry_in=5))
            assert world.task("job:a").state == ("pending" if settled else "suspended")
            world.tick(700)
            assert world.task("job:a").state == "pending"
            world.check()


@pytest.mark.parametrize("request_", [r.finish("x"), r.fail("x")], ids=["finish", "fail"])
def test_finish_and_fail_are_fenced(world: World, request_: c.Command) -> None:
    """404 without a task, 409 without the claim."""
    assert world.send(request_).status == 404
    world.ok(r.target("x"))
    assert world.send(request_).status == 409
