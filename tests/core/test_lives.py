"""The rule of a rerun: a new life below the same root, and nothing that has settled changes."""

import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import NEVER
from tests.helpers import requests as r
from tests.helpers.worlds import World


def again(*names: str, life: int = 2, source: int = 1, keep: bool = True, **options) -> c.RerunRun:
    nodes = tuple(c.NodeAgain(name, source, keep=keep) for name in names)
    return c.RerunRun(id="run/a", life=life, nodes=nodes, **options)


def failed(world: World, timeout: int = NEVER) -> None:
    """`a` has succeeded, `b` has failed, and so has the run."""
    world.ok(r.run(a="", b="a", timeout=timeout))
    world.ok(r.settle("run/a:a"))
    world.ok(r.settle("run/a:b", "rejected"))
    world.ok(r.settle("run/a", "rejected"))


def test_a_life_has_a_root_and_what_runs_again(world: World) -> None:
    """What does not run again is not created; what ran is as it was."""
    failed(world)
    before = world.dump()
    made = world.ok(again("b", timeout=1_000))
    assert (made.created, made.promise.id) == (True, "run/a:life/2")
    after = world.dump()
    new = after.promises.keys() - before.promises.keys()
    assert new == {"run/a:life/2", "run/a:life/2:b"}
    assert {key: after.promises[key] for key in before.promises} == before.promises
    assert {after.promises[key].timeout_at for key in new} == {1_000}
    assert {after.promises[key].root for key in new} == {"run/a"}
    node, root = after.tasks["run/a:life/2:b"], after.tasks["run/a:life/2"]
    assert (node.state, node.name, node.group, node.kind) == ("pending", "f", "g", "node")
    assert (root.state, root.waits_left, root.name, root.kind) == ("suspended", 1, "root", "root")
    assert after.tasks["run/a"].lives == 2
    world.ok(r.settle("run/a:life/2:b"))
    assert world.task("run/a:life/2").state == "pending"


def test_nodes_wait_for_each_other_as_in_the_first_life(world: World) -> None:
    failed(world)
    nodes = (c.NodeAgain("a", 1, succeeded=True), c.NodeAgain("b", 1, ("a",)))
    world.ok(c.RerunRun(id="run/a", life=2, nodes=nodes))
    assert world.task("run/a:life/2:b").state == "suspended"
    world.ok(r.settle("run/a:life/2:a"))
    assert world.task("run/a:life/2:b").state == "pending"


def test_the_same_again_is_the_same_life(world: World) -> None:
    """As after a lost answer; even when the life is over, or another one has followed."""
    failed(world)
    first = world.ok(again("b"))
    twice = world.ok(again("b"))
    assert (twice.created, twice.promise) == (False, first.promise)
    other = again("b", param=c.Value(data="eA=="))
    assert world.send(other).status == 409
    assert world.send(again("b", timeout=5)).status == 409
    world.ok(r.settle("run/a:life/2:b", "rejected"))
    world.ok(r.settle("run/a:life/2", "rejected"))
    world.ok(again("b", life=3, source=2))
    assert world.ok(again("b")).promise.id == "run/a:life/2"
    assert world.task("run/a").lives == 3
    assert world.task("run/a:life/2").lives == 3
    assert world.task("run/a:life/3").lives is None


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (again("b", life=3), 409, "the next is 2"),
        (again("x"), 409, "has no task 'x' in life 1"),
        (again("a"), 409, "has succeeded after all"),
        (c.RerunRun(id="run/x", life=2), 404, "not found"),
        (c.RerunRun(id="plain", life=2), 404, "not found"),
        (c.RerunRun(id="run/a:b", life=2), 400, "must not contain ':'"),
        (again("b", life=1), 400, "2 or more"),
        (again("b", source=2), 400, "must be one before life 2"),
        (again("b", timeout=0), 400, "timeout"),
        (again("b", "b"), 400, "Duplicate node"),
        (
            c.RerunRun(id="run/a", life=2, nodes=(c.NodeAgain("b", 1, ("b",)),)),
            400,
            "cycle",
        ),
    ],
)
def test_what_is_refused_changes_nothing(world: World, request_, status, why) -> None:
    failed(world)
    world.ok(r.promise("plain"))
    before = world.dump()
    reply = world.send(request_)
    assert (reply.status, why in str(reply.data)) == (status, True), reply
    assert world.dump() == before


def test_a_run_that_runs_is_not_run_again(world: World) -> None:
    world.ok(r.run(a=""))
    reply = world.send(again("a"))
    assert (reply.status, "still running" in str(reply.data)) == (409, True)


def test_a_cancelled_run_need_not_be_swept_first(world: World) -> None:
    """Its nodes are cancelled with the rerun, as a tick would have done in a moment."""
    world.ok(r.run(a="", b="a"))
    world.ok(c.CancelPromise(id="run/a"))
    assert world.promise("run/a:a").is_pending
    world.ok(again("a", "b"))
    assert world.promise("run/a:a").state == "rejected_canceled"
    world.tick()
    assert world.promise("run/a:b").state == "rejected_canceled"
    assert world.promise("run/a:life/2:a").is_pending
    assert world.task("run/a:life/2:a").state == "pending"


def test_a_run_past_its_deadline_need_not_be_swept_first(world: World) -> None:
    world.ok(r.run(a="", b="a", timeout=10))
    world.clock.advance(20)
    world.ok(again("a", "b"))
    assert world.promise("run/a").state == "rejected_timedout"
    world.tick()
    states = {world.promise(f"run/a:{name}").state for name in "ab"}
    assert states == {"rejected_timedout"}
    assert world.promise("run/a:life/2").is_pending


def test_a_life_without_nodes_is_only_concluded_again(world: World) -> None:
    """All tasks had succeeded, but the run was settled otherwise before that could be said."""
    failed(world)
    world.ok(again())
    assert world.task("run/a:life/2").state == "pending"


def test_keep_names_the_task_of_the_earlier_life(world: World) -> None:
    failed(world)
    world.ok(again("b"))
    assert '"layby:keeps":"run/a:b"' in world.promise("run/a:life/2:b").tags
    world.ok(c.CancelPromise(id="run/a:life/2"))
    world.ok(again("b", life=3, source=2, keep=False))
    assert "layby:keeps" not in world.promise("run/a:life/3:b").tags


def test_the_verdict_of_the_last_node_is_on_its_own_life(world: World) -> None:
    failed(world)
    world.ok(again("b"))
    (claim,) = world.ok(r.take(names=("f",))).claims
    verdict = c.RootVerdict("resolved", c.Value(data="eA=="))
    done = world.ok(c.FinishTask(id=claim.task.id, version=claim.task.version, root=verdict))
    assert (done.root.id, done.root.state) == ("run/a:life/2", "resolved")
    assert world.promise("run/a").state == "rejected"


def test_a_watch_tells_how_many_lives_there_were(world: World) -> None:
    failed(world)
    assert world.ok(c.WatchRun(id="run/a")).lives == 1
    world.ok(again("b"))
    told = world.ok(c.WatchRun(id="run/a"))
    assert (told.lives, told.promise.state) == (2, "rejected")
    assert world.ok(c.WatchRun(id="run/a:life/2", hold=False)).promise.is_pending
    assert world.send(c.WatchRun(id="run/x")).status == 404


def test_lists_show_a_run_by_its_latest_life(world: World) -> None:
    failed(world)
    world.ok(again("b"))
    for newest_first in (False, True):
        (row,) = world.ok(q.ListRuns(newest_first=newest_first)).rows
        assert row[0].id == "run/a:life/2"
        assert world.ok(q.ListRuns(state="rejected", newest_first=newest_first)).rows == []


def test_runs_of_a_schedule_stay_its_runs(world: World) -> None:
    world.ok(r.nightly())
    at = world.dump().schedules["nightly"].next_run_at
    world.tick(at - world.now)
    run_id = f"run/nightly-{at}"
    world.ok(c.CancelPromise(id=run_id))
    nodes = (c.NodeAgain("a", 1),)
    world.ok(c.RerunRun(id=run_id, life=2, nodes=nodes))
    (row,) = world.ok(q.ListRuns(schedule="nightly")).rows
    assert row[0].id == f"{run_id}:life/2"


def test_a_node_waits_for_the_end_of_its_body_in_the_earlier_life(world: World) -> None:
    """Nobody charges again while the first charge is still being made."""
    world.ok(r.run(a=""))
    (claim,) = world.ok(r.take(names=("f",))).claims
    world.ok(c.CancelPromise(id="run/a"))
    world.ok(again("a"))
    assert world.task("run/a:life/2:a").state == "suspended"
    ended = c.Released(claim.task.id, claim.task.version)
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(ended,)))
    assert world.task("run/a:life/2:a").state == "pending"
    assert world.ok(r.take(names=("f",))).claims[0].task.id == "run/a:life/2:a"


def test_what_cleans_up_does_so_last_in_the_new_life_as_well(world: World) -> None:
    """And is born without its deadline; a run that is being cleaned up is not run again."""
    started = (c.Node("a", "f"), c.Node("z", "f", cleanup=True))
    world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=started))
    world.ok(c.CancelPromise(id="run/a"))
    world.tick()
    nodes = (c.NodeAgain("a", 1), c.NodeAgain("z", 1, succeeded=True, cleanup=True))
    request = c.RerunRun(id="run/a", life=2, nodes=nodes, timeout=1_000)
    refused = world.send(request)
    assert (refused.status, "cleaned up by task 'z'" in str(refused.data)) == (409, True)
    world.ok(r.settle("run/a:z"))
    world.ok(request)
    assert world.promise("run/a:life/2:z").timeout_at == NEVER
    assert world.task("run/a:life/2:z").state == "suspended"
    world.ok(r.settle("run/a:life/2:a"))
    assert world.task("run/a:life/2:z").state == "pending"
    world.ok(r.settle("run/a:life/2:z"))
    assert world.task("run/a:life/2").state == "pending"
