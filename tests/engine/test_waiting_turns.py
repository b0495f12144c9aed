"""Takes that wait: who is woken for a ready task, and who only hears that it is left."""

from concurrent.futures import Future
from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.replies import TakeData
from layby.core.takes import RETRY_REFUSED_MS
from layby.engine import engine as engine_module
from layby.engine.batch import apply
from layby.engine.items import NOT_BEGUN, Allowance, Item
from layby.errors import StoreAway, StoreUnavailable
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World, resolve


@pytest.fixture
def world_options() -> dict[str, Any]:
    return {"paused": False}


def submit(world: World, request: c.Command) -> "Future[Any]":
    future: Future[Any] = Future()
    world.engine.submit([Item(request, resolve, future)])
    world.engine.pump()
    return future


def waiting(world: World, free: int = 0, pid: str = "p", **fields: Any) -> "Future[Any]":
    return submit(world, replace(r.take(free, pid=pid, wait_ms=60_000), **fields))


def claimed(future: "Future[Any]") -> list[str]:
    return [claim.task.id for claim in future.result(0).data.claims]


def test_who_has_somebody_in_line_hears_of_what_is_left(world: World) -> None:
    """At once, and as soon as there is something; nothing is claimed for it."""
    later = waiting(world, in_line=True)
    world.clock.advance(5)
    world.ok(r.run(a=""))
    assert later.result(0).data == TakeData([], oldest_left=5)
    assert waiting(world, in_line=True).result(0).data == TakeData([], oldest_left=5)
    assert world.task("run/a:a").state == "pending"


def test_slots_are_not_kept_for_one_whose_permit_has_gone(world: World) -> None:
    """It was let in and needs more slots than are free; then another one gets the last permit."""
    world.ok(c.SetLimit(name="api", concurrency=1))
    large = c.Node(id="a", name="f", slots=2, limits=("api",))
    world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=(large,)))
    small = waiting(world, 1, slots=2)
    world.clock.advance(1)
    world.ok(r.run("run/b", a=""))
    assert not small.done()
    other = c.Node(id="a", name="h", limits=("api",))
    world.ok(c.StartRun(id="run/c", name="root", group="g", nodes=(other,)))
    assert len(world.ok(r.take(1, pid="q", names=("h",))).claims) == 1
    assert claimed(small) == ["run/b:a"]


@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_who_keeps_slots_for_it_and_has_somebody_in_line_hears_that_its_permit_has_gone(
    world: World,
) -> None:
    """None is free: the one in line would have it, but for the task that was let in."""
    world.ok(c.SetLimit(name="api", concurrency=1))
    heavy = c.Node(id="a", name="f", slots=2, limits=("api",))
    world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=(heavy,)))
    left = world.ok(r.take(1)).next_place
    kept = waiting(world, in_line=True, left=left)
    assert not kept.done()
    world.ok(c.SetLimit(name="api", concurrency=0))
    assert kept.result(0).data == TakeData([])


def fail_once(monkeypatch: pytest.MonkeyPatch, pid: str, failure: Exception) -> None:
    """The next time that a take of this worker is woken, the store fails."""
    armed = [failure]

    def failing(store: Any, commands: Any, *args: Any, **options: Any) -> Any:
        woken = [each for each, _ in commands if isinstance(each, c.Take) and not each.renews]
        if armed and any(each.pid == pid for each in woken):
            raise armed.pop()
        return apply(store, commands, *args, **options)

    monkeypatch.setattr(engine_module, "apply", failing)


def test_a_take_that_fails_passes_its_call_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one that waits looks at once: nobody waits for luck."""
    first, second = waiting(world, 1, pid="p"), waiting(world, 1, pid="q")
    fail_once(monkeypatch, "p", StoreUnavailable("the disk is full"))
    world.ok(r.run(a=""))
    assert isinstance(first.exception(0), StoreUnavailable)
    assert claimed(second) == ["run/a:a"]


@pytest.mark.parametrize("others", ["", "q"], ids=["alone", "with another one"])
def test_a_take_that_found_the_database_away_does_not_miss_a_task(
    world: World, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """It goes on waiting: another one looks at once, and it looks again itself a second later."""
    first, *second = [waiting(world, 1, pid=pid) for pid in ("p", *others)]
    fail_once(monkeypatch, "p", StoreAway("it restarts"))
    world.ok(r.run(a=""))
    assert [claimed(each) for each in second] == [["run/a:a"]] * len(second)
    assert not first.done()
    world.clock.advance(1_000)
    world.engine.pump()
    assert first.done() == (not second)


def test_a_take_that_waits_is_no_sign_of_life(world: World) -> None:
    """Its process may have died meanwhile, or hang: only what it sends renews its lease."""
    take = waiting(world, 1, ttl=1_000)
    world.clock.advance(900)
    world.ok(r.run(a=""))
    assert claimed(take) == ["run/a:a"]
    assert world.dump().holders["p", "1"].expires_at == 1_000


def test_without_anybody_in_line_a_full_worker_sleeps_on(world: World) -> None:
    full = waiting(world)
    world.ok(r.run(a=""))
    assert not full.done()


def test_what_somebody_has_room_for_is_no_news_for_others(world: World) -> None:
    """One take is woken, and those in line sleep on until more is ready than it has room for."""
    in_line = waiting(world, pid="q", in_line=True)
    free = waiting(world, 1)
    world.ok(r.run("run/a", a=""))
    assert claimed(free) == ["run/a:a"]
    assert not in_line.done()
    free = waiting(world, 1)
    world.ok(r.run("run/b", a="", b=""))
    assert claimed(free) == ["run/b:a"]
    assert in_line.result(0).data.oldest_left == 0


def test_all_who_have_somebody_in_line_hear_of_it(world: World) -> None:
    """Whoever asks first gets it; names and groups decide who hears."""
    hearing = [waiting(world, pid=pid, in_line=True) for pid in "pq"]
    deaf = [
        waiting(world, pid="s", in_line=True, names=("g",)),
        waiting(world, pid="t", in_line=True, group="h"),
    ]
    world.ok(r.run(a=""))
    assert [each.result(0).data.oldest_left for each in hearing] == [0, 0]
    assert not any(each.done() for each in deaf)


def test_a_task_goes_ahead_only_where_nobody_has_a_slot(world: World) -> None:
    """A waiting take may be handed something ahead, after all that have room."""
    ahead = waiting(world, pid="q", ahead=1)
    free = waiting(world, 1)
    world.ok(r.run("run/a", a="", b=""))
    assert claimed(free) == ["run/a:a"]
    assert claimed(ahead) == ["run/a:b"]
    assert [claim.task.ahead for claim in ahead.result(0).data.claims] == [True]


def test_a_riding_take_leaves_what_a_waiting_one_has_room_for(world: World) -> None:
    """Nothing is claimed ahead while a slot is free elsewhere."""
    free = waiting(world, 1, pid="q")
    rider = replace(r.take(0), ahead=9)
    taken = world.ok(r.run("run/a", with_take=rider, a="", b="", d="")).taken
    assert [claim.task.id for claim in taken.claims] == ["run/a:b", "run/a:d"]
    assert taken.oldest_left == 0
    assert claimed(free) == ["run/a:a"]


def test_a_take_that_replaces_its_own_does_not_leave_anything_for_it(world: World) -> None:
    """The older one of the same worker is answered empty; a rider leaves it its share."""
    older = waiting(world, 2)
    rider = replace(r.take(0), ahead=9)
    batch = world.batch([(r.run(a="", b="", d="", with_take=rider), 0), (rider, 0)])
    assert [claim.task.id for claim in batch[0].data.taken.claims] == ["run/a:d"]
    assert [claim.task.id for claim in batch[1].data.claims] == ["run/a:a", "run/a:b"]
    assert not older.done()


def test_before_decides_who_is_woken(world: World) -> None:
    """What was handed back keeps its place, and with it is older than what stands in line."""
    world.ok(r.run(a=""))
    world.ok(r.take(1, pid="q"))
    world.clock.advance(10)
    young = waiting(world, 1, before=0)
    old = waiting(world, 1, pid="s", before=5)
    back = c.Released("run/a:a", 1, ready_at=0, begun=False)
    world.ok(c.ReleaseTasks(pid="q", incarnation="1", tasks=(back,)))
    assert claimed(old) == ["run/a:a"]
    assert not young.done()


def test_a_task_that_is_kept_wakes_nobody_until_it_is_let_go(world: World) -> None:
    """Halted and continued while its body still ends."""
    world.ok(r.run(a=""))
    world.ok(r.take(1))
    free = waiting(world, 1, pid="q")
    world.ok(c.HaltTask(id="run/a:a"))
    world.ok(c.ContinueTask(id="run/a:a"))
    assert not free.done()
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/a:a", 1),)))
    assert claimed(free) == ["run/a:a"]


def test_a_take_that_was_shown_too_little_asks_again(world: World) -> None:
    """What it was shown had to be put back; it does not have to wait to be asked once more."""
    world.ok(r.run("run/early", a="", y="a", z="a"))
    world.ok(r.take())
    for node in "yz":
        world.ok(c.HaltTask(id=f"run/early:{node}"))
        world.ok(c.ContinueTask(id=f"run/early:{node}"))
    world.clock.advance(1)
    world.ok(r.run("run/late", a=""))
    assert claimed(submit(world, r.take(1))) == ["run/late:a"]


# --- priorities and several slots ----------------------------------------------------------


def large(run_id: str, slots: int, priority: int = 0) -> c.StartRun:
    node = c.Node(id="a", name="f", slots=slots, priority=priority)
    return c.StartRun(id=run_id, name="root", group="g", nodes=(node,))


def test_a_task_that_needs_several_slots_wakes_who_has_them(world: World) -> None:
    few, many = waiting(world, 1), waiting(world, 2, pid="q")
    world.ok(large("run/x", 2))
    assert claimed(many) == ["run/x:a"]
    assert not few.done()


def test_who_keeps_its_slot_for_such_a_task_goes_on_when_that_is_gone(world: World) -> None:
    """Another worker takes it: nothing has become ready, but what stood behind it has its turn."""
    world.ok(large("run/x", 2))
    world.ok(r.run("run/y", a=""))
    few = waiting(world, 1)
    assert not few.done()
    assert [claim.task.id for claim in world.ok(r.take(2, pid="q")).claims] == ["run/x:a"]
    assert claimed(few) == ["run/y:a"]


@pytest.mark.parametrize("how", ["halt", "settle"])
def test_it_may_also_be_gone_because_somebody_ended_it(world: World, how: str) -> None:
    world.ok(large("run/x", 2))
    world.ok(r.run("run/y", a=""))
    few = waiting(world, 1)
    world.ok(c.HaltTask(id="run/x:a") if how == "halt" else r.settle("run/x:a"))
    assert claimed(few)[:1] == ["run/y:a"]  # and maybe the root, whose last task has ended


def test_who_keeps_slots_for_it_and_has_somebody_in_line_hears_that_it_is_gone(
    world: World,
) -> None:
    world.ok(large("run/x", 2))
    left = world.ok(r.take(1)).next_place
    kept = waiting(world, pid="s", in_line=True, left=left)
    assert not kept.done()
    world.ok(r.take(2, pid="q"))
    assert kept.result(0).data == TakeData([])


def test_who_knows_what_is_left_hears_of_a_higher_priority_only(world: World) -> None:
    world.ok(large("run/x", 1, priority=1))
    left = world.ok(r.take(0)).next_place
    knowing = waiting(world, pid="s", in_line=True, left=left)
    world.ok(r.run("run/y", a=""))
    assert not knowing.done()
    world.ok(large("run/z", 1, priority=2))
    assert knowing.result(0).data.next_place.priority == 2


# --- whoever is woken can begin it ---------------------------------------------------------


def nodes(run_id: str, *each: c.Node) -> c.StartRun:
    return c.StartRun(id=run_id, name="root", group="g", nodes=each)


def test_takes_are_woken_in_the_order_of_turns(world: World) -> None:
    """The first one gets what has the first turn; the other task wakes one that has room for it."""
    first, kept, last = (
        waiting(world, 1, slots=1),
        waiting(world, 1, pid="q", slots=3),
        waiting(world, 1, pid="s", slots=1),
    )
    small, heavy = c.Node(id="b", name="f"), c.Node(id="a", name="f", slots=2, priority=-1)
    world.ok(nodes("run/x", heavy, small))
    assert (claimed(first), claimed(last)) == (["run/x:b"], ["run/x:a"])
    assert not kept.done()


def test_who_keeps_slots_for_a_task_is_not_woken_for_one_behind_it(world: World) -> None:
    """It would leave that one, and nobody else would hear of it."""
    world.ok(large("run/x", 2))
    kept = waiting(world, 1, names=("f", "h"))
    other = waiting(world, 1, pid="q", names=("h",))
    world.ok(nodes("run/y", c.Node(id="a", name="h")))
    assert claimed(other) == ["run/y:a"]
    assert not kept.done()


def kept_for_the_oldest(world: World) -> "Future[Any]":
    world.ok(large("run/x", 2, priority=-1))
    world.clock.advance(1)
    oldest = world.ok(r.take(1)).oldest_place
    return waiting(world, 1, oldest=True, in_line=True, left=oldest)


def test_who_keeps_slots_for_the_oldest_is_not_woken_for_younger_ones(world: World) -> None:
    kept, other = kept_for_the_oldest(world), waiting(world, 1, pid="q")
    world.ok(r.run("run/y", a=""))
    assert claimed(other) == ["run/y:a"]
    assert not kept.done()


def test_what_is_kept_for_the_oldest_is_no_room_for_others(world: World) -> None:
    """Nobody else takes the first of them, so a younger one must not go ahead before it."""
    kept_for_the_oldest(world)
    rider = replace(r.take(0, pid="q"), ahead=1)
    taken = world.ok(r.run("run/y", with_take=rider, a="", b="")).taken
    assert [claim.task.id for claim in taken.claims] == ["run/y:a"]


# --- whoever leaves what it was woken for passes the call on -------------------------------


def two_who_wait(world: World) -> tuple["Future[Any]", "Future[Any]"]:
    """The first one also has the code of what will stand in front for it."""
    return waiting(world, 1, names=("f", "h")), waiting(world, 1, pid="q", names=("f",))


HEAVY = c.Node(id="a", name="h", slots=2, priority=1)


def test_another_commit_before_the_second_look_loses_no_wake_up() -> None:
    """The first one is woken, and then keeps its slot for what the next batch has made ready."""
    with World(paused=False, max_batch=1) as world:
        first, other = two_who_wait(world)
        world.batch([(r.run("run/x", a=""), 0), (nodes("run/y", HEAVY), 0)])
        assert claimed(other) == ["run/x:a"]
        assert not first.done()


@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_nor_does_one_before_it_was_woken(world: World) -> None:
    """It was not told of what needs more slots than it has, and finds that when it looks."""
    first, other = two_who_wait(world)
    world.ok(nodes("run/y", HEAVY))
    world.ok(r.run("run/x", a=""))
    assert claimed(other) == ["run/x:a"]
    assert not first.done()


def test_a_call_is_passed_on_until_nobody_is_left() -> None:
    """The second one gets what the first was woken for, and the third what the second was."""
    with World(paused=False, max_batch=1) as world:
        first, second = two_who_wait(world)
        third = waiting(world, 1, pid="s", names=("f",))
        light = c.Node(id="a", name="h", priority=1)
        world.batch([(r.run("run/x", a="", b=""), 0), (nodes("run/y", light), 0)])
        found = [claimed(first), claimed(second), claimed(third)]
        assert found == [["run/y:a"], ["run/x:a"], ["run/x:b"]]


def test_who_is_put_off_passes_its_call_on(world: World) -> None:
    """Its caller has had its share of what is loaded at once, and asks again later."""
    allowance = Allowance(1)
    first: Future[Any] = Future()
    world.engine.submit(
        [Item(r.take(1, wait_ms=60_000), resolve, first, allowance=allowance)],
    )
    other = waiting(world, 1, pid="q")
    allowance.left = 0
    world.ok(r.run("run/x", a=""))
    assert first.result(0) == NOT_BEGUN
    assert claimed(other) == ["run/x:a"]


def refusal(world: World, run_id: str) -> c.BlockTask:
    """By code that nobody else has."""
    world.ok(r.run(run_id, a=""))
    [claim] = world.ok(replace(r.take(1, pid="bad"), codes=(("f", "bad"),))).claims
    return c.BlockTask(
        id=claim.task.id, version=claim.task.version, code="bad", why="", ready_at=claim.ready_at
    )


def test_each_is_woken_once_for_a_task(world: World) -> None:
    """They may not try it before a moment has passed: they must not call each other for ever."""
    world.clock.advance(1)
    goods = [replace(r.take(1, pid=pid), codes=(("f", "good"),)) for pid in "pq"]
    for good, run_id in zip(goods, ("run/x", "run/y"), strict=True):
        world.ok(refusal(world, run_id))
        assert len(world.ok(good).claims) == 1
    last = refusal(world, "run/z")
    first, other = (submit(world, replace(good, wait_ms=60_000)) for good in goods)
    world.ok(last)
    assert not first.done()
    world.clock.advance(RETRY_REFUSED_MS)
    world.engine.pump()
    assert claimed(first) == ["run/z:a"]
    assert not other.done()
