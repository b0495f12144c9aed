"""The wait for *all*: a node is handed out once, when everything before it has settled."""

from itertools import combinations, permutations

import pytest

from layby.core import commands as c
from layby.core.settings import Settings
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, History, World

SHAPES = {
    "fan-in of 1": {"a": "", "z": "a"},
    "fan-in of 2": {"a": "", "b": "", "z": "a b"},
    "fan-in of 3": {"a": "", "b": "", "d": "", "z": "a b d"},
    "fan-in of 4": {"a": "", "b": "", "d": "", "e": "", "z": "a b d e"},
    "chain": {"a": "", "b": "a", "d": "b", "e": "d"},
    "diamond": {"a": "", "b": "a", "d": "a", "e": "b d"},
    "two diamonds": {"a": "", "b": "a", "d": "a", "e": "b d", "f": "b d", "h": "e f"},
    "named twice": {"a": "", "z": "a a"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_order_of_settlement_joins(name: str) -> None:
    """In any order in which others may settle them, a node is ready exactly when it should be."""
    shape = SHAPES[name]
    before = {node: set(after.split()) for node, after in shape.items()}
    for order in permutations(shape):
        if len(shape) > 4 and not is_topological(order, before):
            continue  # all orders of the small shapes, all sensible ones of the large
        with World() as world:
            settle_in(world, shape, before, order)


def settle_in(world: World, shape: dict, before: dict, order: tuple) -> None:
    history = History()
    world.ok(r.dag(shape))
    settled: set[str] = set()
    for node in order:
        tasks = world.dump().tasks
        for other, after in before.items():
            expected = "fulfilled" if other in settled else "suspended"
            if other not in settled and after <= settled:
                expected = "pending"
            assert tasks[f"run/a:{other}"].state == expected, (order, node, other)
        assert tasks["run/a"].state == "suspended"
        world.ok(r.settle(f"run/a:{node}"))
        settled.add(node)
        history.observe(world.dump(), 0)
    root = world.task("run/a")
    assert (root.state, root.waits_left, root.version) == ("pending", 0, 0)
    assert root.resumes == (f"run/a:{order[-1]}",)
    assert world.dump().waits == {}


def is_topological(order: tuple, before: dict) -> bool:
    return all(before[node] <= set(order[:at]) for at, node in enumerate(order))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_siblings_that_settle_in_one_batch_make_the_node_ready_once(
    world: World, size: int
) -> None:
    """Any two or more of the dependencies may settle in one transaction."""
    names = "abde"[:size]
    nodes = dict.fromkeys(names, "") | {"z": " ".join(names)}
    for together in range(2, size + 1):
        for chosen in combinations(names, together):
            world.reset()
            world.ok(r.dag(nodes))
            rest = [name for name in names if name not in chosen]
            for name in rest:
                world.ok(r.settle(f"run/a:{name}"))
            assert world.task("run/a:z").state == "suspended"
            world.batch([(r.settle(f"run/a:{name}"), 0) for name in chosen])
            task = world.task("run/a:z")
            assert (task.state, task.waits_left, len(task.resumes)) == ("pending", 0, 1)
            world.check()


@pytest.mark.parametrize("how", ["resolved", "rejected", "rejected_canceled"])
def test_any_outcome_counts(world: World, how: str) -> None:
    """A join waits for an end, whatever end: the rule of the node is its worker's business."""
    world.ok(r.run(a="", b="a"))
    world.ok(r.settle("run/a:a", how))
    assert world.task("run/a:b").state == "pending"


def test_a_dependency_that_times_out_counts(world: World) -> None:
    """A node that waits for a promise with a deadline of its own goes on at that deadline."""
    world.ok(r.run(a="", b="a"))
    world.ok(r.take(1))
    world.ok(r.promise("other", 500))
    world.ok(r.suspend("run/a:a", 1, "other"))
    world.tick(500)
    assert world.task("run/a:a").state == "pending"
    world.ok(r.take(1))
    world.ok(r.finish("run/a:a", 2))
    assert world.task("run/a:b").state == "pending"
    world.check()


def test_a_run_that_times_out_takes_its_nodes_with_it(world: World) -> None:
    """Root and nodes share the deadline: nobody is resumed, nothing is left."""
    world.ok(r.run(timeout=500, a="", b="a", z="a b"))
    world.ok(r.take(1))
    world.tick(500)
    state = world.dump()
    assert {p.state for p in state.promises.values()} == {"rejected_timedout"}
    assert {t.state for t in state.tasks.values()} == {"fulfilled"}
    assert state.waits == {}
    world.check()


def test_a_cancelled_node_counts(world: World) -> None:
    """Cancelling a dependency lets those that wait for it go on."""
    world.ok(r.run(a="", b="", z="a b"))
    world.ok(c.CancelPromise(id="run/a:a", by="me"))
    world.ok(r.settle("run/a:b"))
    assert world.task("run/a:z").state == "pending"


def test_a_halted_node_counts_down_and_goes_on_when_continued(world: World) -> None:
    """It stays halted while its count falls, and is ready at once afterwards."""
    world.ok(r.run(a="", z="a"))
    world.ok(c.HaltTask(id="run/a:z"))
    world.ok(r.settle("run/a:a"))
    halted = world.task("run/a:z")
    assert (halted.state, halted.waits_left, halted.resumes) == ("halted", 0, ())
    world.ok(c.ContinueTask(id="run/a:z"))
    assert [claim.task.id for claim in world.ok(r.take()).claims] == ["run/a:z"]


@pytest.mark.parametrize("how", ["continue", "callback", "settled callback"])
def test_take_puts_back_what_others_made_pending_early(world: World, how: str) -> None:
    """In the same step, without a version, and it still joins afterwards."""
    world.ok(r.run(a="", b="", z="a b"))
    claims = world.ok(r.take()).claims
    world.ok(r.promise("x"))
    if how == "continue":
        world.ok(c.HaltTask(id="run/a:z"))
        world.ok(c.ContinueTask(id="run/a:z"))
    elif how == "callback":
        world.ok(r.callback("x", "run/a:z"))
        world.ok(r.settle("x"))
    else:
        world.ok(r.settle("x"))
        world.ok(r.callback("x", "run/a:z"))
    early = world.task("run/a:z")
    assert (early.state, early.waits_left) == ("pending", 2)
    taken = world.ok(r.take())
    assert taken.claims == []
    back = world.task("run/a:z")
    assert (back.state, back.version, back.waits_left) == ("suspended", 0, 2)
    world.check()
    for claim in claims:
        world.ok(r.finish(claim.task.id))
    assert [claim.task.id for claim in world.ok(r.take(5)).claims] == ["run/a:z"]


def test_an_early_node_does_not_hide_those_behind_it() -> None:
    """A take that waits asks again by itself when all it was shown had to be put back."""
    with World("sqlite") as world:
        world.ok(r.run("run/early", a="", z="a"))
        world.ok(r.take())
        world.ok(c.HaltTask(id="run/early:z"))
        world.ok(c.ContinueTask(id="run/early:z"))
        world.clock.advance(1)
        world.ok(r.run("run/ready", a=""))
        got = world.ok(r.take(1, wait_ms=1_000)).claims
        assert [claim.task.id for claim in got] == ["run/ready:a"]


def test_an_early_node_that_is_claimed_by_the_protocol_keeps_its_count(world: World) -> None:
    """Protocol kinds act on nodes as on any task; a suspend on a dependency keeps it counting."""
    world.ok(r.run(a="", b="", z="a b"))
    world.ok(c.HaltTask(id="run/a:z"))
    world.ok(c.ContinueTask(id="run/a:z"))
    world.ok(r.acquire("run/a:z", 0, pid="q"))
    world.ok(r.suspend("run/a:z", 1, "run/a:a"))
    assert world.dump().waits["run/a:a", "run/a:z"].mode == "both"
    world.ok(r.settle("run/a:a"))
    task = world.task("run/a:z")
    assert (task.state, task.waits_left, task.resumes) == ("pending", 1, ("run/a:a",))
    world.check()
    assert "run/a:z" not in {claim.task.id for claim in world.ok(r.take()).claims}
    world.ok(r.settle("run/a:b"))
    assert world.task("run/a:z").state == "pending"


def test_a_count_falls_while_the_node_is_acquired_early(world: World) -> None:
    """The settled dependency is consumed and shows in no `resumes`."""
    world.ok(r.run(a="", z="a"))
    world.ok(c.HaltTask(id="run/a:z"))
    world.ok(c.ContinueTask(id="run/a:z"))
    world.ok(r.acquire("run/a:z", 0))
    world.ok(r.settle("run/a:a"))
    task = world.task("run/a:z")
    assert (task.state, task.waits_left, task.resumes) == ("acquired", 0, ())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["cancelled", "settled", "timed out"])
def test_a_root_that_ends_early_ends_its_nodes_in_chunks(backend, how: str) -> None:
    """However many there are: a bounded number in each transaction, and none is left."""
    nodes = {f"n{at:02}": "" if at < 3 else "n00" for at in range(20)}
    with World(backend, chunk=4, settings=Settings(hop_limit=3)) as world:
        history = History()
        world.ok(r.dag(nodes, timeout=5_000))
        held = world.ok(r.take(2)).claims
        if how == "timed out":
            world.clock.advance(5_000)
        elif how == "cancelled":
            world.ok(c.CancelPromise(id="run/a", by="me", reason="late"))
        else:
            world.ok(r.settle("run/a"))
        history.observe(world.dump(), world.now)
        for _ in range(40):
            if not tick_once(world):
                break
            history.observe(world.dump(), world.now)
        state = world.dump()
        assert {t.state for t in state.tasks.values()} == {"fulfilled"}
        expected = "rejected_timedout" if how == "timed out" else "rejected_canceled"
        assert {state.promises[f"run/a:{node}"].state for node in nodes} == {expected}
        assert state.waits == {}
        assert state.promises["run/a"].tail_at is None
        lost = world.ok(c.HeartbeatWorker(pid="p", incarnation="1", held=len(held)))
        assert {notice.id for notice in lost.lost} == {claim.task.id for claim in held}
        assert lost.agrees  # it keeps them until it has said that their bodies have ended


def tick_once(world: World) -> bool:
    return world.engine._tick(world.now)


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_waits_than_one_step_handles_are_resumed_by_ticks(backend) -> None:
    """Each in a bounded chunk, each exactly once; the promise says that more is armed."""
    with World(backend, settings=Settings(hop_limit=3)) as world:
        history = History()
        world.ok(r.promise("x"))
        for at in range(8):
            world.ok(r.claimed(f"t{at}"))
            world.ok(r.suspend(f"t{at}", 1, "x"))
        world.ok(r.settle("x"))
        resumed = [3]
        history.observe(world.dump(), 0)
        while world.promise("x").tail_at is not None:
            assert count(world, "pending") == resumed[-1]
            assert tick_once(world)
            resumed.append(count(world, "pending"))
            history.observe(world.dump(), 0)
        assert resumed == [3, 6, 8]
        assert all(wait.is_read for wait in world.dump().waits.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callback_beyond_the_loaded_waits_goes_on_counting(backend) -> None:
    """With more waits on one promise than are loaded, a callback must not end a count."""
    nodes = {"a": ""} | {f"n{at}": "a" for at in range(9)}
    with World(backend, settings=Settings(hop_limit=2)) as world:
        world.ok(r.dag(nodes))
        world.ok(r.callback("run/a:a", "run/a:n8"))
        world.check()


def count(world: World, state: str) -> int:
    return sum(task.state == state for task in world.dump().tasks.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wide_fan_out_joins_through_ticks(backend) -> None:
    """More dependents than one step handles, all counting, and the root after them."""
    nodes = {"a": ""} | {f"n{at}": "a" for at in range(9)}
    with World(backend, settings=Settings(hop_limit=2)) as world:
        world.ok(r.dag(nodes))
        world.ok(r.settle("run/a:a"))
        world.tick()
        world.check()
        claims = world.ok(r.take(20)).claims
        assert len(claims) == 9
        for claim in claims:
            world.ok(r.finish(claim.task.id))
            world.tick()
            world.check()
        assert [claim.task.id for claim in world.ok(r.take(0)).claims] == ["run/a"]


def test_start_answers_an_existing_run_as_it_is(world: World) -> None:
    """Same id, same run: the second start creates nothing, whatever it asks for."""
    first = world.ok(r.run(a=""))
    before = world.dump()
    second = world.ok(r.run(a="", b="a"))
    assert (first.created, second.created) == (True, False)
    assert second.promise == first.promise
    assert world.dump() == before


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (r.run(a="nope"), 400),
        (r.run(a="b", b="a"), 400),
        (r.run(), 400),
        (r.run("run/a:b", a=""), 400),
        (r.run("", a=""), 400),
        (r.run(timeout=-1, a=""), 400),
        (r.run(timeout=0, a=""), 400),
        (r.run("taken", a=""), 409),
        (r.run(with_take=r.take(-1), a=""), 400),
    ],
    ids=["unknown", "cycle", "empty", "colon", "no id", "negative", "past", "taken", "bad take"],
)
def test_a_run_that_cannot_be_is_refused_whole(request_: c.StartRun, status: int) -> None:
    """Nothing of it is created."""
    with World() as world:
        world.ok(r.promise("taken:a"))
        before = world.dump()
        reply = world.send(request_)
        assert reply.status == status
        assert isinstance(reply.data, str)
        assert world.dump() == before


def test_a_node_given_twice_is_refused() -> None:
    """The text names it."""
    twice = (c.Node(id="a", name="f"), c.Node(id="a", name="f"))
    with World() as world:
        start = c.StartRun(id="run/a", name="root", group="g", nodes=twice, timeout=9)
        reply = world.send(start)
        assert (reply.status, "Duplicate node 'a'" in str(reply.data)) == (400, True)


def test_nodes_may_belong_to_other_groups(world: World) -> None:
    """Each is taken by workers of its own group only."""
    node = c.Node(id="a", name="f", group="gpu")
    world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=(node,), timeout=9_000))
    assert world.ok(r.take()).claims == []
    assert len(world.ok(r.take(pid="q", group="gpu")).claims) == 1
