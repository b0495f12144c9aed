"""Turns: claims ahead of slots, older work first, what is handed back, and verdicts on runs."""

from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.core.takes import MAX_ROOT_PARAM
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World


def take(free: int = 0, **fields: Any) -> c.Take:
    pid = fields.pop("pid", "p")
    return replace(r.take(free, pid=pid), **fields)


def ids(taken: Any) -> list[str]:
    return [claim.task.id for claim in taken.claims]


def release(*tasks: c.Released, pid: str = "p", incarnation: str = "1") -> c.ReleaseTasks:
    return c.ReleaseTasks(pid=pid, incarnation=incarnation, tasks=tasks)


def start(world: World, count: int) -> None:
    """Runs of one node each, a millisecond apart."""
    for at in range(count):
        world.ok(r.run(f"run/{at}", a=""))
        world.clock.advance(1)


# --- ahead, before, oldest_left ------------------------------------------------------------


def test_claims_ahead_come_after_those_of_free_slots_and_have_not_begun(world: World) -> None:
    """Acquired, but no try yet; the oldest that is left is named."""
    start(world, 5)
    taken = world.ok(take(1, ahead=2))
    assert ids(taken) == ["run/0:a", "run/1:a", "run/2:a"]
    assert [claim.task.ahead for claim in taken.claims] == [False, True, True]
    assert [(claim.task.tries, claim.task.try_number) for claim in taken.claims] == [
        (1, 1),
        (0, 1),
        (0, 1),
    ]
    assert [claim.ready_at for claim in taken.claims] == [0, 1, 2]
    assert taken.oldest_left == 3
    assert world.dump().holders["p", "1"].held == 3
    world.check()


def test_nothing_is_left_when_all_was_handed_out(world: World) -> None:
    """Nor when nothing is ready, is another group's, or is for other names."""
    assert world.ok(take(1)).oldest_left is None
    start(world, 2)
    assert world.ok(take(5, group="other")).oldest_left is None
    assert world.ok(take(5, names=("other",))).oldest_left is None
    assert world.ok(take(5, names=())).oldest_left is None
    assert world.ok(take(0, prefix="run/1")).oldest_left == 1
    taken = world.ok(take(1, ahead=1))
    assert (len(taken.claims), taken.oldest_left, taken.again) == (2, None, False)


def test_roots_are_no_oldest_left(world: World) -> None:
    """They need no slot, so nobody has to stand in line for them."""
    world.ok(r.run(a=""))
    world.ok(r.settle("run/a:a"))
    taken = world.ok(take(0))
    assert (ids(taken), taken.oldest_left) == (["run/a"], None)
    assert taken.claims[0].task.tries == 1


# --- the root's param ----------------------------------------------------------------------


def param(run_id: str, size: int = 1) -> c.StartRun:
    return replace(r.run(run_id, a="", b="a"), param=c.Value(data="x" * size))


def test_a_claim_brings_the_param_of_its_root(world: World) -> None:
    """Or a remote worker would pay a second round trip for each run that it has not seen."""
    world.ok(param("run/0"))
    root = world.ok(c.GetPromise(id="run/0")).promise
    (claim,) = world.ok(take(1)).claims
    assert claim.root_param == root.param
    (after,) = world.ok(r.finish("run/0:a", with_take=take(1))).taken.claims
    assert (after.task.id, after.root_param) == ("run/0:b", root.param)


def test_a_claim_of_a_run_started_with_the_take_brings_it_too(world: World) -> None:
    started = world.ok(replace(param("run/0"), take=take(1)))
    (claim,) = started.taken.claims
    assert claim.root_param == started.promise.param


def test_a_claim_brings_no_param_that_is_big_or_out_of_reach_or_near(world: World) -> None:
    """Out of reach of the token's prefix; near: an embedded worker reads without a round trip."""
    world.ok(param("run/big", MAX_ROOT_PARAM + 1))
    (claim,) = world.ok(take(1)).claims
    assert claim.root_param is None
    world.ok(param("run/0"))
    (claim,) = world.ok(take(1, prefix="run/0:")).claims
    assert claim.root_param is None
    world.ok(param("run/1"))
    (claim,) = world.ok(take(1, embedded=True)).claims
    assert claim.root_param is None


def test_before_takes_only_what_is_older(world: World) -> None:
    """And nothing ahead."""
    start(world, 3)
    taken = world.ok(take(5, ahead=5, before=2))
    assert (ids(taken), taken.oldest_left) == (["run/0:a", "run/1:a"], 2)
    taken = world.ok(take(5, before=2))
    assert (ids(taken), taken.oldest_left) == ([], 2)


def test_ahead_leaves_what_others_of_the_batch_have_room_for(world: World) -> None:
    """Whoever has a slot gets the older ones, wherever it stands in the batch."""
    start(world, 5)
    replies = world.batch([(take(1, ahead=9), 9), (take(2, pid="q"), 9)])
    assert [ids(reply.data) for reply in replies] == [
        ["run/0:a", "run/3:a", "run/4:a"],
        ["run/1:a", "run/2:a"],
    ]
    assert [reply.data.oldest_left for reply in replies] == [1, None]


def test_ahead_does_not_care_for_takes_of_other_tasks(world: World) -> None:
    """Of another group, or of other names; some names in common are enough."""
    start(world, 3)
    others = [take(9, pid="q", group="h"), take(9, pid="s", names=("x", "y"))]
    replies = world.batch([(take(1, ahead=1), 9), *((each, 9) for each in others)])
    assert ids(replies[0].data) == ["run/0:a", "run/1:a"]
    some = take(9, pid="t", names=("f", "x"))
    replies = world.batch([(take(0, ahead=1), 9), (some, 9)])
    assert [ids(reply.data) for reply in replies] == [[], ["run/2:a"]]


def test_no_more_is_loaded_than_can_be_handed_out(world: World) -> None:
    """One slot, a hundred ready: two nodes, of which one tells what is left, and their root."""
    world.ok(r.dag({f"n{at:02}": "" for at in range(100)}))
    seen: list[int] = []
    load = world.store.load

    def counted(footprint: Any, now: int) -> Any:
        rows = load(footprint, now)
        seen.append(len(rows.tasks))
        return rows

    world.store.load = counted
    world.ok(take(1))
    world.ok(r.finish("run/a:n00", with_take=take(1)))
    assert seen == [3, 4]  # with the node that is finished


# --- begun, crashes, tries -----------------------------------------------------------------


def test_a_claim_ahead_begins_when_the_next_take_says_so(world: World) -> None:
    """Only at its version, and only by its holder."""
    start(world, 2)
    world.ok(take(0, ahead=2))
    named = (c.TaskVersion("run/0:a", 1), c.TaskVersion("run/1:a", 2), c.TaskVersion("none", 1))
    world.ok(take(0, pid="q", begun=named))
    assert world.task("run/0:a").ahead
    for _ in range(2):
        world.ok(take(0, begun=named))
    assert (world.task("run/0:a").ahead, world.task("run/0:a").tries) == (False, 1)
    assert (world.task("run/1:a").ahead, world.task("run/1:a").tries) == (True, 0)
    world.check()


FENCED = {
    "finish": r.finish("run/0:a"),
    "fail": r.fail("run/0:a", retry_in=NEVER - 1),
    "annotate": c.AnnotateTask(id="run/0:a", version=1),
    "fence": c.FenceTask(id="run/0:a", version=1, inner=r.promise("x")),
    "suspend": r.suspend("run/0:a", 1, "y"),
}


@pytest.mark.parametrize("how", FENCED)
def test_what_a_body_writes_tells_that_it_has_begun(world: World, how: str) -> None:
    start(world, 1)
    world.ok(r.promise("y"))
    world.ok(take(0, ahead=1))
    world.ok(FENCED[how])
    task = world.task("run/0:a")
    assert (task.ahead, task.tries) == (False, 1)
    world.check()


def test_only_what_has_begun_can_crash(world: World) -> None:
    """Its worker died: one body ran; of the other nobody knows, so its number is not used again."""
    start(world, 2)
    world.ok(take(1, ahead=1, ttl=1_000))
    world.tick(1_002)
    begun, ahead = world.task("run/0:a"), world.task("run/1:a")
    assert [(each.state, each.crashes, each.tries) for each in (begun, ahead)] == [
        ("pending", 1, 1),
        ("pending", 0, 1),
    ]
    world.check()


@pytest.mark.parametrize("end", [c.HaltTask(id="run/0:a"), c.CancelPromise(id="run/0:a")])
def test_what_is_taken_away_may_have_begun(world: World, end: c.Command) -> None:
    """Only its holder knows, so the number is not used again."""
    start(world, 1)
    world.ok(take(0, ahead=1))
    world.ok(end)
    task = world.task("run/0:a")
    assert (task.is_kept, task.ahead, task.tries) == (True, False, 1)
    world.check()


def test_a_protocol_acquire_is_a_try(world: World) -> None:
    world.ok(r.target("t"))
    assert world.ok(r.acquire("t", 0)).task.tries == 1
    assert world.ok(r.claimed("u")).task.tries == 1


# --- release -------------------------------------------------------------------------------


def test_what_is_released_keeps_its_place(world: World) -> None:
    """It is no try, no failure and no crash, and is taken before what came later."""
    start(world, 3)
    world.ok(take(0, ahead=1))
    world.ok(release(c.Released("run/0:a", 1, ready_at=0, begun=False)))
    task = world.task("run/0:a")
    assert (task.state, task.ready_at, task.version, task.tries) == ("pending", 0, 1, 0)
    assert (task.failures, task.crashes, task.wake_at) == (0, 0, NEVER)
    assert world.dump().holders["p", "1"].held == 0
    assert ids(world.ok(take(2, pid="q"))) == ["run/0:a", "run/1:a"]
    world.check()


@pytest.mark.parametrize(
    ("ahead", "begun", "tries"), [(0, True, 1), (0, False, 0), (1, True, 1), (1, False, 0)]
)
def test_a_claim_whose_body_never_ran_was_no_try(
    world: World, ahead: int, begun: bool, tries: int
) -> None:
    start(world, 1)
    world.ok(take(1 - ahead, ahead=ahead))
    world.ok(release(c.Released("run/0:a", 1, begun=begun, history='"told"')))
    task = world.task("run/0:a")
    assert (task.tries, task.history, task.ready_at) == (tries, '"told"', world.now)


def test_a_release_may_put_it_off(world: World) -> None:
    """For so long no take finds it; then it wakes takes."""
    start(world, 1)
    world.ok(take(1))
    world.ok(release(c.Released("run/0:a", 1, ready_at=0, delay=1_000)))
    assert world.ok(take(1)).claims == []
    world.tick(999)
    assert world.ok(take(1)).claims == []
    world.tick(1)
    assert ids(world.ok(take(1))) == ["run/0:a"]
    world.check()


def test_nobody_gets_before_all_others_by_a_release(world: World) -> None:
    """A place in the future is one of now."""
    start(world, 1)
    world.ok(take(1))
    world.ok(release(c.Released("run/0:a", 1, ready_at=99_999)))
    assert world.task("run/0:a").ready_at == world.now


def test_what_is_not_held_so_is_skipped(world: World) -> None:
    """Another version, holder or pid, a task of the protocol, none at all, one that is done."""
    start(world, 2)
    world.ok(r.target("t"))
    world.ok(r.acquire("t", 0))
    world.ok(take(2))
    world.ok(r.finish("run/1:a"))
    before = world.dump().tasks
    mine = c.Released("run/0:a", 1)
    world.ok(release(mine, pid="q"))
    world.ok(release(mine, incarnation="2"))
    world.ok(release(c.Released("run/0:a", 2), c.Released("none", 1), c.Released("t", 1)))
    world.ok(release(c.Released("run/1:a", 1)))
    assert world.dump().tasks == before


# --- halt keeps the hold -------------------------------------------------------------------


def halted(world: World) -> None:
    world.ok(r.run(a=""))
    world.ok(take(1, ttl=1_000))
    world.ok(c.HaltTask(id="run/a:a", by="me"))


def test_a_halted_task_is_kept_by_its_holder(world: World) -> None:
    """It is told, and still counts for it; a record shows no pid."""
    halted(world)
    task = world.task("run/a:a")
    assert (task.state, task.pid, task.holder, task.ttl) == ("halted", "p", "1", None)
    assert world.dump().holders["p", "1"].held == 1
    status, shown = world.ask("task.get", {"id": "run/a:a"}, world.now)
    assert (status, shown["task"]) == (
        200,
        {"id": "run/a:a", "state": "halted", "version": 1, "resumes": 0},
    )
    world.check()


def test_a_task_that_is_continued_waits_for_the_end_of_its_old_body(world: World) -> None:
    """No take finds it until its holder releases it."""
    halted(world)
    world.ok(c.ContinueTask(id="run/a:a"))
    task = world.task("run/a:a")
    assert (task.state, task.ready_at, task.holder) == ("pending", None, "1")
    taken = world.ok(take(5, pid="q"))
    assert (taken.claims, taken.oldest_left) == ([], None)
    world.check()
    world.ok(release(c.Released("run/a:a", 1, ready_at=0, history='"end"')))
    task = world.task("run/a:a")
    assert (task.ready_at, task.holder, task.history, task.tries) == (0, None, '"end"', 1)
    assert ids(world.ok(take(1, pid="q"))) == ["run/a:a"]
    world.check()


def test_the_end_of_the_body_may_come_before_it_is_continued(world: World) -> None:
    """It stays halted, with who and why; then it goes on at once."""
    halted(world)
    before = world.task("run/a:a")
    world.ok(release(c.Released("run/a:a", 1)))
    task = world.task("run/a:a")
    assert task == replace(before, pid=None, holder=None)
    assert world.dump().holders["p", "1"].held == 0
    world.ok(c.ContinueTask(id="run/a:a"))
    assert ids(world.ok(take(1, pid="q"))) == ["run/a:a"]


@pytest.mark.parametrize("continued", [True, False])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_holder_that_is_gone_keeps_nothing(world: World, continued: bool, leaves: bool) -> None:
    """No crash is counted: the body had been told to end."""
    halted(world)
    if continued:
        world.ok(c.ContinueTask(id="run/a:a"))
    if leaves:
        world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    world.tick(1_000)
    task = world.task("run/a:a")
    assert (task.pid, task.holder, task.crashes) == (None, None, 0)
    assert (task.state, task.ready_at) == (
        ("pending", world.now) if continued else ("halted", None)
    )
    assert world.dump().holders["p", "1"].held == 0
    world.check()


def test_halting_what_was_continued_keeps_it_still(world: World) -> None:
    halted(world)
    world.ok(c.ContinueTask(id="run/a:a"))
    world.ok(c.HaltTask(id="run/a:a"))
    assert (world.task("run/a:a").state, world.task("run/a:a").holder) == ("halted", "1")
    world.check()


def test_an_acquire_takes_the_hold_away(world: World) -> None:
    """The protocol knows nothing of holds; a late release then means nothing."""
    halted(world)
    world.ok(c.ContinueTask(id="run/a:a"))
    world.ok(r.acquire("run/a:a", 1, pid="x"))
    assert world.dump().holders["p", "1"].held == 0
    world.ok(release(c.Released("run/a:a", 1)))
    assert (world.task("run/a:a").state, world.task("run/a:a").pid) == ("acquired", "x")
    world.check()


def test_what_was_never_held_by_ours_goes_on_at_once(world: World) -> None:
    """Halt and continue of the protocol's own tasks are as they were."""
    world.ok(r.target("t"))
    world.ok(r.acquire("t", 0))
    world.ok(c.HaltTask(id="t"))
    assert world.task("t").pid is None
    world.ok(c.ContinueTask(id="t"))
    assert world.task("t").ready_at == world.now


# --- verdicts ------------------------------------------------------------------------------

VERDICT = c.RootVerdict("resolved", c.Value(data="eA=="))


def test_the_finish_of_the_last_node_carries_the_verdict_on_its_run(world: World) -> None:
    """Settled in the same step; the root is handed to nobody, and who waits for it hears."""
    world.ok(r.run(a="", b=""))
    world.ok(take(2))
    world.ok(r.target("t"))
    world.ok(r.claimed("w"))
    world.ok(r.suspend("w", 1, "run/a"))
    first = world.ok(replace(r.finish("run/a:a"), root=VERDICT))
    assert first.root is None
    last = world.ok(replace(r.finish("run/a:b", with_take=take(1)), root=VERDICT))
    assert (last.root.state, last.root.value) == ("resolved", '{"data":"eA=="}')
    assert (last.root, last.taken.claims) == (world.promise("run/a"), [])
    assert world.task("run/a").state == "fulfilled"
    assert world.task("w").state == "pending"
    assert world.ok(take(5)).claims == []
    world.check()


def test_a_final_failure_carries_it_too(world: World) -> None:
    """One that is tried again does not."""
    world.ok(r.run(a=""))
    world.ok(take(1))
    verdict = c.RootVerdict("rejected", c.Value(data="ZXJy"))
    data = world.ok(replace(r.fail("run/a:a", retry_in=0), root=verdict))
    assert (data.root, data.promise.state) == (None, "pending")
    world.ok(take(1))
    data = world.ok(replace(r.fail("run/a:a", 2), root=verdict))
    assert (data.root.state, data.promise.state) == ("rejected", "rejected")
    world.check()


@pytest.mark.parametrize("how", ["halted", "woken", "cancelled", "not of ours"])
def test_a_verdict_is_ignored_when_the_root_does_not_wait_for_this_node(
    world: World, how: str
) -> None:
    """Then everything goes as without it."""
    world.ok(r.run(a="", b=""))
    world.ok(take(2))
    if how != "woken":
        world.ok(r.settle("run/a:b"))
    if how == "halted":
        world.ok(c.HaltTask(id="run/a"))
    elif how == "woken":  # it waits for this node twice, and for another one as well
        world.ok(r.callback("run/a:a", "run/a"))
    elif how == "cancelled":
        world.ok(c.CancelPromise(id="run/a"))
    if how == "not of ours":
        world.ok(r.claimed("x:y"))
        data = world.ok(replace(r.finish("x:y"), root=VERDICT))
    else:
        data = world.ok(replace(r.finish("run/a:a"), root=VERDICT))
    assert data.root is None
    assert data.promise.state == "resolved"
    world.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_root_behind_many_others_is_settled_by_a_worker(backend) -> None:
    """The step that settles the node does not reach it: it is ready later, as without verdict."""
    with World(backend, settings=Settings(hop_limit=1)) as world:
        world.ok(r.run("z", a=""))
        world.ok(take(1))
        for at in range(9):
            world.ok(r.claimed(f"w{at}"))
            world.ok(r.suspend(f"w{at}", 1, "z:a"))
        assert world.ok(replace(r.finish("z:a"), root=VERDICT)).root is None
        world.tick()
        assert ids(world.ok(take(0))) == ["z"]
