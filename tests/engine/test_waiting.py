"""Requests that wait inside the engine: takes for something ready, watches for a settlement."""

from concurrent.futures import Future
from typing import Any

import pytest

from layby.core import commands as c
from layby.core.model import NEVER
from layby.core.replies import TakeData
from layby.engine import waiting as waiting_module
from layby.engine.items import Item
from layby.engine.waiting import WaitingTakes, Watches, _items
from tests.helpers import requests as r
from tests.helpers.worlds import World, resolve


@pytest.fixture
def world_options() -> dict[str, Any]:
    return {"paused": False}


def submit(world: World, request: c.Command) -> "Future[Any]":
    """One request that may wait; its future."""
    future: Future[Any] = Future()
    world.engine.submit([Item(request, resolve, future)])
    world.engine.pump()
    return future


def claimed(future: "Future[Any]") -> list[str]:
    return [claim.task.id for claim in future.result(0).data.claims]


def test_a_commit_wakes_exactly_one_waiter(world: World) -> None:
    """The one that has waited longest; the other goes on waiting."""
    first = submit(world, r.take(1, wait_ms=60_000))
    second = submit(world, r.take(1, pid="q", wait_ms=60_000))
    assert not first.done()
    world.ok(r.run("run/a", a=""))
    assert claimed(first) == ["run/a:a"]
    assert not second.done()
    world.ok(r.run("run/b", a=""))
    assert claimed(second) == ["run/b:a"]


def test_a_commit_that_readies_much_wakes_as_many_as_it_serves(world: World) -> None:
    """Each gets what it has room for."""
    waiting = [submit(world, r.take(2, pid=pid, wait_ms=60_000)) for pid in "pqs"]
    world.ok(r.run(a="", b="", d=""))
    assert [len(claimed(future)) for future in waiting[:2]] == [2, 1]
    assert not waiting[2].done()


def test_a_waiter_without_code_for_it_sleeps_on(world: World) -> None:
    """Names and groups decide who is woken."""
    other_name = submit(world, r.take(names=("g",), wait_ms=60_000))
    other_group = submit(world, r.take(pid="q", group="h", wait_ms=60_000))
    full = submit(world, r.take(0, pid="s", wait_ms=60_000))
    world.ok(r.run(a=""))
    assert not any(future.done() for future in (other_name, other_group, full))


def test_a_root_wakes_a_waiter_that_has_no_room(world: World) -> None:
    """Settling a run needs a lease but no slot."""
    world.ok(r.run(a=""))
    waiting = submit(world, r.take(0, wait_ms=60_000))
    world.ok(r.settle("run/a:a"))
    assert claimed(waiting) == ["run/a"]


def test_a_wait_expires(world: World) -> None:
    """At its time, with nothing; a take that is asked again keeps its first time."""
    waiting = submit(world, r.take(wait_ms=1_000))
    world.clock.advance(999)
    world.engine.pump()
    assert not waiting.done()
    world.clock.advance(1)
    world.engine.pump()
    assert waiting.result(0).data == TakeData()


def test_nothing_waits_without_wait_ms(world: World) -> None:
    """The answer is empty at once."""
    assert submit(world, r.take()).result(0).data.claims == []


def test_a_waiter_whose_holder_is_gone_is_told(world: World) -> None:
    """A new incarnation, an expiry and leaving all end the wait with 409."""
    waiting = submit(world, r.take(wait_ms=NEVER))
    world.ok(r.take(incarnation="2"))
    assert waiting.result(0).status == 409
    waiting = submit(world, r.take(incarnation="2", ttl=1_000, wait_ms=NEVER))
    world.clock.advance(1_000)
    world.engine.pump()
    assert waiting.result(0).status == 409
    waiting = submit(world, r.take(incarnation="3", wait_ms=NEVER))
    world.ok(c.LeaveWorker(pid="p", incarnation="3"))
    assert waiting.result(0).status == 409


def test_a_delayed_task_wakes_a_waiter_when_its_time_has_come(world: World) -> None:
    """Not before: a task of ours may carry `resonate:delay` too."""
    waiting = submit(world, r.take(ttl=90_000, wait_ms=60_000))
    tags = {
        "resonate:target": "poll://any@layby.g",
        "resonate:delay": "5000",
        "layby:name": "f",
    }
    world.ok(c.CreatePromise(id="x", timeout_at=9_000, tags=tags))
    assert not waiting.done()
    world.clock.advance(5_000)
    world.engine.pump()
    assert claimed(waiting) == ["x"]


def test_abandoned_waits_are_dropped(world: World) -> None:
    """Nobody listens: they are not kept, and a living waiter gets the task."""
    engine = world.engine
    abandoned = submit(world, r.take(wait_ms=NEVER))
    watch = submit(world, c.WatchPromise(id=world.ok(r.promise("x")).promise.id))
    for item in (*engine._takes._until, *_items(engine._watches._by_id["x"])):
        item.is_abandoned = True
    world.clock.advance(30_000)
    engine.pump()
    assert (len(engine._takes), len(engine._watches)) == (0, 0)
    assert not abandoned.done()
    assert not watch.done()


@pytest.mark.parametrize("kind", ["watches", "takes"])
def test_who_hangs_up_at_once_takes_no_room(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come and go before the next repair; who has not hung up is kept."""
    monkeypatch.setattr(waiting_module, "SWEPT_AFTER", 20)
    watches, takes = Watches(), WaitingTakes()

    def wait(number: int) -> Item:
        if kind == "watches":
            item = Item(c.WatchPromise(id=f"w{number % 7}"), resolve)
            watches.add(item)
        else:
            item = Item(r.take(pid=f"p{number}", wait_ms=NEVER), resolve)
            takes.add(item, 0)
        return item

    waiting = watches if kind == "watches" else takes
    stays = [wait(number) for number in range(3)]
    most = 0
    for number in range(3, 200):
        wait(number).is_abandoned = True
        most = max(most, len(waiting))
    assert most <= 20 + len(stays) + 1
    assert [item for item in waiting.all() if not item.is_abandoned] == stays


def test_a_watch_answers_when_the_promise_settles(world: World) -> None:
    """By a command or by time; at once when it has; 404 when there is none."""
    world.ok(r.promise("x"))
    world.ok(r.promise("y", 500))
    watches = [submit(world, c.WatchPromise(id=key)) for key in "xxy"]
    assert len(world.engine._watches) == 3
    world.ok(r.settle("x"))
    assert [future.done() for future in watches] == [True, True, False]
    assert watches[0].result(0).data.promise.state == "resolved"
    world.clock.advance(500)
    world.engine.pump()
    assert watches[2].result(0).data.promise.state == "rejected_timedout"
    assert submit(world, c.WatchPromise(id="x")).result(0).data.promise.state == "resolved"
    assert submit(world, c.WatchPromise(id="none")).result(0).status == 404


def test_a_watch_and_the_settlement_may_share_a_batch(world: World) -> None:
    """In either order nothing is missed."""
    world.ok(r.promise("x"))
    world.ok(r.promise("y"))
    early, _, _, late = world.batch(
        [
            (c.WatchPromise(id="x"), 0),
            (r.settle("x"), 0),
            (r.settle("y"), 0),
            (c.WatchPromise(id="y"), 0),
        ]
    )
    assert early.data.promise.state == late.data.promise.state == "resolved"


def test_one_pump_does_all_that_time_has_brought(world: World) -> None:
    """Also when the slow repair is due at the same time."""
    world.ok(r.promise("x", 40_000))
    world.clock.advance(40_000)
    world.engine.pump()
    assert world.store.dump().promises["x"].state == "rejected_timedout"


def test_threaded_waits_are_served_by_other_threads() -> None:
    """A take that waits in the writer is answered by somebody else's commit."""
    with World("sqlite", threaded=True, paused=False) as world:
        (waiting,) = world.submit([(r.take(wait_ms=NEVER), 0)])
        (watch,) = world.submit([(c.WatchPromise(id="run/a"), 0)])
        assert watch.result(10).status == 404
        world.ok(r.run(a=""))
        (watch,) = world.submit([(c.WatchPromise(id="run/a"), 0)])
        assert [claim.task.id for claim in waiting.result(10).data.claims] == ["run/a:a"]
        world.ok(c.CancelPromise(id="run/a"))
        assert watch.result(10).data.promise.state == "rejected_canceled"
