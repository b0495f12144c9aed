"""Child runs: whose they are, what ends them, and what keeps them from being pruned."""

from collections.abc import Generator

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.children import Caller, caller_of, parent_of
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.wire.json_values import read_error
from tests.core.test_maps import CALLER as MAPS
from tests.core.test_maps import add, begun, item
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

CALLER = Caller("run/p:a", 1)
IN_LIFE_2 = Caller("run/p:life/2:a", 1)


@pytest.fixture(params=BACKENDS)
def family(request: pytest.FixtureRequest) -> Generator[World]:
    """A run whose task `a` is being run, and has not started anything."""
    with World(request.param, settings=Settings(hop_limit=2), chunk=2) as world:
        world.ok(r.run("run/p", a="", b="a"))
        world.ok(r.take())
        yield world
        world.tick()
        world.check()


def child(
    run_id: str = "run/c", caller: Caller | None = CALLER, timeout: int = NEVER, **more: int
) -> c.StartRun:
    return replace(r.run(run_id, timeout=timeout, x="", y="x"), caller=caller, **more)


def notes(world: World) -> dict[tuple[str, str], str]:
    waits = world.dump().waits
    return {key: wait.mode for key, wait in waits.items() if wait.is_child}


def states(world: World, *ids: str) -> list[str]:
    return [world.promise(each).state for each in ids]


def test_a_child_knows_its_parent_and_is_noted_twice(family: World):
    """By the task that started it, and by that task's run; nobody is woken by it."""
    made = family.ok(child())
    assert made.created
    assert (parent_of(made.promise), caller_of(made.promise)) == ("run/p", "run/p:a")
    assert notes(family) == {("run/c", "run/p:a"): "child", ("run/c", "run/p"): "child"}
    assert family.task("run/p").waits_left == 2
    family.check()
    for name, version in (("x", 1), ("y", 1)):
        family.ok(r.take())
        family.ok(r.finish(f"run/c:{name}", version))
    family.ok(r.settle("run/c"))
    assert family.task("run/p:a").resumes == ()
    assert len(notes(family)) == 2  # until the parent has ended
    family.check()


def test_the_same_child_is_found_again(family: World):
    """By the same claim, or by a later one of the same task; nothing is created twice."""
    family.ok(child())
    before = family.dump()
    again = family.ok(child())
    assert (again.created, again.lives) == (False, None)
    assert family.dump().promises.keys() == before.promises.keys()
    assert notes(family).keys() == {("run/c", "run/p:a"), ("run/c", "run/p")}


@pytest.mark.parametrize(
    "caller",
    [Caller("run/p:a", 0), Caller("run/p:a", 2), Caller("run/p:b", 1), Caller("run/p:z", 1)],
    ids=["earlier claim", "later claim", "not taken", "unknown"],
)
def test_a_zombie_starts_nothing(family: World, caller: Caller):
    """The fence of its claim holds for the runs it starts as well."""
    before = family.dump().promises.keys()
    assert family.send(child(caller=caller)).status == 409
    assert family.dump().promises.keys() == before


def test_a_life_that_nobody_has_begun_has_no_children(family: World):
    """Whoever names a task so could keep the writer busy for ever: all lives before it were
    looked for.
    """
    forged = Caller(f"run/p:life/{10**15}:a", 1)
    tags = {"resonate:target": "poll://any@g"}
    family.ok(c.CreatePromise(id=forged.id, timeout_at=NEVER, tags=tags))
    family.ok(c.AcquireTask(id=forged.id, version=0, pid="p", ttl=60_000))
    reply = family.send(child(caller=forged))
    assert (reply.status, "is not a life of 'run/p'" in str(reply.data)) == (409, True)


def test_a_token_must_cover_the_caller_too():
    """Whoever may only start runs may not act for a task."""
    assert set(child().named_ids()) == {"run/c", "run/p:a"}
    assert set(c.RerunRun(id="run/c", life=2, caller=CALLER).named_ids()) == {"run/c", "run/p:a"}


@pytest.mark.parametrize(
    ("caller", "why"),
    [
        (Caller("run/c:x", 1), "child of itself"),
        (Caller("run/p", 1), "must be a task of a run"),
        (Caller("", 1), "Task ID is required"),
        (Caller("run/p:a", -1), "version must be non-negative"),
    ],
)
def test_bad_callers(family: World, caller: Caller, why: str):
    reply = family.send(child(caller=caller))
    assert (reply.status, why in str(reply.data)) == (400, True), reply


def test_cancelling_the_run_cancels_children_of_children(family: World):
    """Also those of a task that has ended before, and however many there are."""
    family.ok(child())
    family.ok(r.finish("run/p:a"))
    family.ok(r.take())
    family.ok(child("run/d", Caller("run/c:x", 1)))
    family.ok(child("run/e", Caller("run/p:b", 1)))
    family.ok(child("run/f", Caller("run/p:b", 1)))
    family.ok(c.CancelPromise(id="run/p"))
    family.tick()
    cancelled = states(family, "run/c", "run/c:x", "run/c:y", "run/d", "run/d:x", "run/e", "run/f")
    assert set(cancelled) == {"rejected_canceled"}
    assert notes(family) == {}
    family.check()


def test_cancelling_the_caller_cancels_what_it_started(family: World):
    """And nothing else of its run: neither what others have started nor what it waited for."""
    family.ok(child())
    family.ok(c.CancelPromise(id="run/p:a"))
    family.tick()
    assert states(family, "run/c", "run/p") == ["rejected_canceled", "pending"]
    assert "run/p:a, which started it, was cancelled" in _message(family, "run/c")


def test_cancelling_a_task_that_waits_for_others_does_not_touch_those(family: World):
    """Its waits name what it depends on, and that is none of its own."""
    family.ok(c.CancelPromise(id="run/p:b"))
    family.tick()
    assert states(family, "run/p:a", "run/p:b") == ["pending", "rejected_canceled"]


def test_so_it_is_if_somebody_has_begun_it_before_its_turn(family: World):
    """The protocol lets anybody wake a task, and acquire it, while others are awaited."""
    family.ok(r.promise("event"))
    family.ok(r.callback("event", "run/p:b"))
    family.ok(r.settle("event"))
    family.ok(r.acquire("run/p:b", 0))
    assert family.task("run/p:b").waits_left == 1
    family.ok(child(caller=Caller("run/p:b", 1)))
    family.ok(c.CancelPromise(id="run/p:b"))
    family.tick()
    found = states(family, "run/p:a", "run/p:b", "run/c")
    assert found == ["pending", "rejected_canceled", "rejected_canceled"]


def test_cancelling_a_caller_that_is_deferred_until_its_child_ends(family: World):
    """It waits for the child in the store: that wait does not replace the note."""
    family.ok(child())
    family.ok(r.defer("run/p:a", 1, r.trigger("PromiseSettled", id="run/c")))
    assert notes(family)["run/c", "run/p:a"] == "child_any"
    family.ok(c.CancelPromise(id="run/p:a"))
    family.tick()
    assert states(family, "run/c") == ["rejected_canceled"]


def test_a_caller_that_is_woken_keeps_its_child(family: World):
    """It no longer waits for the child, which ends with it all the same."""
    family.ok(child())
    family.ok(r.defer("run/p:a", 1, r.trigger("PromiseSettled", id="run/c")))
    family.ok(c.WakeTask(id="run/p:a", exit_id="x"))
    assert notes(family)["run/c", "run/p:a"] == "child"
    family.ok(r.take())
    family.ok(c.CancelPromise(id="run/p:a"))
    family.tick()
    assert states(family, "run/c") == ["rejected_canceled"]


def test_a_deferred_caller_goes_on_when_its_child_ends(family: World):
    family.ok(child())
    family.ok(r.defer("run/p:a", 1, r.trigger("PromiseSettled", id="run/c")))
    family.ok(r.settle("run/c"))
    assert family.task("run/p:a").state == "pending"
    assert notes(family)["run/c", "run/p:a"] == "child"


def test_a_parent_that_merely_ends_leaves_its_children(family: World):
    """Whether it has completed or failed; they are nobody's then."""
    family.ok(child())
    family.ok(r.finish("run/p:a"))
    family.ok(r.settle("run/p:b", "rejected"))
    assert notes(family) == {("run/c", "run/p"): "child"}
    family.ok(r.settle("run/p", "rejected"))
    family.tick()
    assert states(family, "run/c") == ["pending"]
    assert notes(family) == {}


def test_a_child_does_not_outlast_its_parents_deadline():
    """The earlier of the two deadlines counts."""
    with World() as world:
        world.ok(r.run("run/p", timeout=100, a=""))
        world.ok(r.take())
        world.ok(child())
        world.ok(child("run/d", timeout=40))
        world.ok(child("run/e", Caller("run/p:a", 1, detach=True)))
        until = [world.promise(each).timeout_at for each in ("run/c", "run/c:x", "run/d", "run/e")]
        assert until == [100, 100, 40, NEVER]
        world.tick(100)
        found = states(world, "run/p", "run/c", "run/d", "run/e")
        assert found == [*["rejected_timedout"] * 3, "pending"]
        world.check()


def test_a_detached_child_goes_on(family: World):
    """Neither the end of its caller nor that of its parent is its own."""
    family.ok(child(caller=replace(CALLER, detach=True)))
    assert notes(family) == {}
    family.ok(c.CancelPromise(id="run/p:a"))
    family.ok(c.CancelPromise(id="run/p"))
    family.tick()
    assert states(family, "run/c") == ["pending"]


def test_a_run_of_others_is_found_and_stays_theirs(family: World):
    """Whoever started it decides when it ends."""
    family.ok(child(caller=None))
    assert not family.ok(child()).created
    assert notes(family) == {}
    family.ok(c.CancelPromise(id="run/p"))
    family.tick()
    assert states(family, "run/c") == ["pending"]


def test_a_run_that_has_ended_starts_nothing(family: World):
    """Its tasks are about to be cancelled; they may not have heard of it yet."""
    family.ok(c.CancelPromise(id="run/p"))
    reply = family.send(child())
    assert (reply.status, "has ended" in str(reply.data)) == (409, True)


def test_what_cleans_up_starts_runs_after_the_end():
    """Those are its own: they end with it, since the run is over."""
    with World() as world:
        start = r.run("run/p", a="", z="a")
        a, z = start.nodes
        world.ok(replace(start, nodes=(a, replace(z, cleanup=True))))
        world.ok(r.take())
        world.ok(c.CancelPromise(id="run/p"))
        world.tick()
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/p:a", 1),)))
        world.ok(r.take())
        assert world.task("run/p:z").state == "acquired"
        world.ok(child(caller=Caller("run/p:z", 1)))
        assert notes(world) == {("run/c", "run/p:z"): "child"}
        world.ok(c.CancelPromise(id="run/p:z"))
        world.tick()
        assert states(world, "run/c") == ["rejected_canceled"]
        world.check()


def rerun_parent(world: World) -> None:
    nodes = (c.NodeAgain("a"), c.NodeAgain("b", after=("a",)))
    world.ok(c.RerunRun(id="run/p", life=2, nodes=nodes))
    body = c.Released("run/p:a", 1)
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(body,)))
    world.ok(r.take())
    assert world.task("run/p:life/2:a").state == "acquired"


def test_a_later_life_adopts_what_an_earlier_one_was_about_to_end(family: World):
    """The rest of the earlier life's end no longer reaches it."""
    family.ok(child())
    family.ok(c.CancelPromise(id="run/p"))
    rerun_parent(family)
    assert not family.ok(child(caller=IN_LIFE_2)).created
    family.tick()
    assert states(family, "run/p:a", "run/c") == ["rejected_canceled", "pending"]
    assert notes(family).keys() == {("run/c", "run/p:life/2"), ("run/c", "run/p:life/2:a")}


def test_a_child_is_run_again_for_its_caller(family: World):
    """Its next life is a child as the first was: bound to the caller, and with its deadline."""
    family.ok(child())
    family.ok(c.CancelPromise(id="run/p"))
    family.tick()
    rerun_parent(family)
    rerun = c.RerunRun(id="run/c", life=2, nodes=(c.NodeAgain("x"),), caller=IN_LIFE_2)
    assert family.send(replace(rerun, caller=CALLER)).status == 409
    made = family.ok(rerun)
    assert (made.created, caller_of(made.promise)) == (True, "run/p:life/2:a")
    assert family.ok(rerun).created is False
    assert family.ok(child(caller=IN_LIFE_2)).lives == 2
    family.ok(child(caller=IN_LIFE_2, life=2))
    mine = {("run/c:life/2", "run/p:life/2"), ("run/c:life/2", "run/p:life/2:a")}
    assert notes(family).keys() >= mine
    family.ok(c.CancelPromise(id="run/p:life/2"))
    family.tick()
    assert states(family, "run/c:life/2") == ["rejected_canceled"]
    family.check()


def test_a_child_is_not_pruned_before_its_parent_has_ended(family: World):
    """A replay of the parent finds its result; afterwards it goes by itself."""
    family.ok(child())
    family.ok(r.settle("run/c"))
    family.tick(10)
    prune = c.Prune(completed=5, failed=5)
    assert family.ok(prune).roots == 0
    family.ok(c.CancelPromise(id="run/p"))
    family.tick()
    assert family.ok(prune).roots == 1
    assert family.promise("run/c").is_expired


def _message(world: World, promise_id: str) -> str:
    return str(read_error(world.promise(promise_id).value))


def test_an_item_takes_over_the_child_of_the_earlier_item(world: World):
    """What is still being ended with that does not reach the child any more."""
    begun(world)
    world.ok(add(1))
    (claim,) = world.ok(r.take(1)).claims
    world.ok(child(caller=Caller(item(0), claim.task.version)))
    world.ok(r.settle(item(0), "rejected_canceled"))
    ended = c.Released(claim.task.id, claim.task.version)
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(ended,)))
    again = f"{MAPS}:map/1+2"
    world.ok(add(1, join_id=again, keeps=(f"{MAPS}:map/1",)))
    (claim,) = world.ok(r.take(1)).claims
    assert claim.task.id == item(0, again)
    world.ok(child(caller=Caller(claim.task.id, claim.task.version)))
    world.tick()
    assert states(world, "run/c") == ["pending"]
    assert notes(world) == {("run/c", item(0, again)): "child", ("run/c", "run/a"): "child"}
    world.check()
