"""What may be pruned, and what a pruned id answers."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.due import due_last
from layby.core.endings import STAGES
from layby.core.model import Message
from layby.core.pruning import AUTOMATIC, HOLDERS_KEPT_MS, OF_HOLDERS, PACE_MS
from layby.core.replies import PruneData
from layby.core.settings import RetentionPolicy, Settings
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, Backend, World

DAY = 24 * 3_600_000
ELSEWHERE = "poll://uni@other/w"


def ended(world: World, run_id: str = "run/a", state: str = "resolved") -> None:
    """A run of two nodes has ended now."""
    world.ok(r.run(run_id, a="", b="a"))
    for each in ("a", "b"):
        world.ok(r.settle(f"{run_id}:{each}"))
    world.ok(r.settle(run_id, state))


def batches(world: World, **policy) -> Iterator[PruneData]:
    """A pass, as whoever asks for it does it."""
    cursor: str | None = ""
    while cursor is not None:
        done = world.ok(c.Prune(cursor=cursor, **policy))
        yield done
        cursor = done.cursor
        world.check()


def prune(world: World, **policy) -> PruneData:
    """A pass, with everything counted."""
    total = PruneData()
    for done in batches(world, **policy):
        counts = {
            name: getattr(total, name) + getattr(done, name)
            for name in PruneData.__struct_fields__
            if name != "cursor"
        }
        total = PruneData(**counts)
    return total


def ids(world: World) -> set[str]:
    return set(world.dump().promises)


# --- runs --------------------------------------------------------------------------------


def test_a_run_goes_when_its_time_has_come(world: World) -> None:
    """And not a moment before; its root's id stays, without a value."""
    ended(world)
    world.clock.advance(DAY - 1)
    assert prune(world, completed=DAY) == PruneData()
    world.clock.advance(1)
    assert prune(world, completed=DAY) == PruneData(roots=1, rows=2)
    left = world.dump()
    assert set(left.promises) == {"run/a"}
    assert left.tasks == left.waits == {}
    root = left.promises["run/a"]
    assert (root.state, root.param, root.value, root.settled_at) == ("resolved", "{}", "{}", 0)
    assert root.expired_at == DAY


@pytest.mark.parametrize("state", ["resolved", "rejected", "rejected_canceled"])
def test_each_outcome_has_its_own_time(world: World, state: str) -> None:
    """Runs that failed, were cancelled or were late are failed ones; what has no time is kept."""
    ended(world, state=state)
    world.tick(2 * DAY)
    mine, other = ("completed", "failed") if state == "resolved" else ("failed", "completed")
    assert prune(world, **{other: 0}) == PruneData()
    assert prune(world, **{mine: 3 * DAY, other: 0}) == PruneData()
    assert prune(world, **{mine: 2 * DAY}).roots == 1


def test_what_has_not_ended_stays(world: World) -> None:
    """However old it is, whole: its settled nodes too."""
    world.ok(r.run(a="", b="a"))
    world.ok(r.settle("run/a:a"))
    before = world.dump()
    world.clock.advance(1_000 * DAY)
    assert prune(world, completed=0, failed=0, ids=0, foreign=True) == PruneData()
    assert world.dump() == before


def test_a_pruned_id_answers(world: World) -> None:
    """Starting it finds it, creating it finds it, and it cannot be run again."""
    ended(world)
    prune(world, completed=0)
    started = world.ok(r.run(a=""))
    assert (started.created, started.promise.is_expired) == (False, True)
    created = world.ok(r.promise("run/a")).promise
    assert (created.state, created.value) == ("resolved", "{}")
    claim = world.ok(r.claimed("run/a"))
    assert (claim.task.state, claim.promise.value) == ("fulfilled", "{}")
    assert world.ok(c.WatchRun(id="run/a")).promise.is_expired
    again = c.RerunRun(id="run/a", life=2, nodes=(c.NodeAgain("a"),))
    assert world.send(again).status == 404
    assert world.send(c.CancelPromise(id="run/a")).data.won is False
    assert world.ok(q.ListRuns()).rows == []
    assert world.dump().promises.keys() == {"run/a"}


def test_a_settlement_id_outlives_its_run(world: World) -> None:
    """A copy of the call that cancelled it still hears that it has won."""
    world.ok(r.run(a=""))
    cancel = c.CancelPromise(id="run/a", settlement_id="mine")
    assert world.ok(cancel).won
    world.tick()
    assert prune(world, failed=0).roots == 1
    assert world.ok(cancel).won


def test_an_id_goes_after_its_time(world: World) -> None:
    """Counted from when it was pruned; then the run can be started anew."""
    ended(world)
    world.clock.advance(5 * DAY)
    prune(world, completed=DAY, ids=DAY)
    world.clock.advance(DAY - 1)
    assert prune(world, completed=DAY, ids=DAY) == PruneData()
    world.clock.advance(1)
    assert prune(world, completed=DAY, ids=DAY) == PruneData(ids=1)
    assert ids(world) == set()
    assert world.ok(r.run(a="")).created


def test_unfinished_clean_up_is_never_pruned(world: World) -> None:
    """The run has ended, what cleans up after it has not."""
    nodes = (c.Node(id="a", name="f"), c.Node(id="z", name="f", cleanup=True))
    world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=nodes))
    world.ok(c.CancelPromise(id="run/a"))
    world.tick()
    world.clock.advance(DAY)
    assert prune(world, failed=0) == PruneData(kept=1)
    [claim] = world.ok(r.take()).claims
    assert claim.task.id == "run/a:z"
    assert prune(world, failed=0) == PruneData(kept=1)
    world.ok(r.finish("run/a:z"))
    assert prune(world, failed=0) == PruneData(roots=1, rows=2)


def test_a_body_that_has_not_ended_keeps_its_run(world: World) -> None:
    """A cancelled task is kept by its holder until that has said that the body is over."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    world.ok(c.CancelPromise(id="run/a"))
    world.tick()
    world.ok(c.HeartbeatWorker(pid="p", incarnation="1"))
    assert prune(world, failed=0).kept == 1
    over = c.Released("run/a:a", 1)
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(over,)))
    assert prune(world, failed=0).roots == 1


# --- lives -------------------------------------------------------------------------------


def test_the_latest_life_counts(world: World) -> None:
    """A run that was run again is kept while that life runs, then goes with all its lives."""
    ended(world, state="rejected")
    world.clock.advance(DAY)
    world.ok(c.RerunRun(id="run/a", life=2, nodes=(c.NodeAgain("b", succeeded=True),)))
    assert prune(world, failed=0, completed=0) == PruneData()
    world.ok(r.settle("run/a:life/2:b"))
    world.ok(r.settle("run/a:life/2"))
    assert prune(world, failed=0) == PruneData(), "it has completed after all"
    assert prune(world, failed=0, completed=1) == PruneData(), "just now"
    world.clock.advance(1)
    assert prune(world, failed=0, completed=1, dry_run=True) == PruneData(roots=1, rows=4)
    assert prune(world, failed=0, completed=1) == PruneData(roots=1, rows=4)
    assert ids(world) == {"run/a"}
    left = world.promise("run/a")
    assert (left.state, left.settled_at) == ("resolved", DAY), "so the run ended"


def test_a_run_whose_id_has_a_dot(world: World) -> None:
    """What others take for a tree of calls is a run as well; one does not touch the other."""
    for each in ("run/o.7", "run/o.8"):
        ended(world, each)
    world.ok(r.run("run/o", a=""))
    assert prune(world, completed=0, ids=None).roots == 2
    assert ids(world) == {"run/o.7", "run/o.8", "run/o", "run/o:a"}


# --- others wait -------------------------------------------------------------------------


def left_open(world: World) -> None:
    """A run has ended, and a promise that one of its tasks made is open."""
    world.ok(r.run(a=""))
    world.ok(r.promise("run/a:a.promise.paid"))
    world.ok(r.settle("run/a:a"))
    world.ok(r.settle("run/a"))


def test_what_a_run_left_open_goes_with_it(world: World) -> None:
    left_open(world)
    assert prune(world, completed=0) == PruneData(roots=1, rows=2)
    assert world.send(c.ResolvePromise(id="run/a:a.promise.paid")).status == 404


def test_a_wait_from_elsewhere_keeps_a_run(world: World) -> None:
    left_open(world)
    world.ok(r.claimed("other"))
    world.ok(r.suspend("other", 1, "run/a:a.promise.paid"))
    assert prune(world, completed=0) == PruneData(kept=1)
    world.ok(r.settle("run/a:a.promise.paid"))
    assert world.task("other").state == "pending"
    assert prune(world, completed=0) == PruneData(kept=1), "its body will read it again"
    world.ok(r.settle("other"))
    assert prune(world, completed=0).roots == 1


# --- what an unfinished task has awaited -------------------------------------------------


def awaited(world: World, promise_id: str = "run/child") -> None:
    """The body of a task of run/a has awaited it."""
    world.ok(c.EnsurePromise(id=promise_id, awaiter="run/a:a"))
    world.check()


def reads(world: World) -> set[tuple[str, str]]:
    return {key for key, wait in world.dump().waits.items() if wait.is_read}


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled before", "settled after"])
def test_what_an_unfinished_task_has_awaited_stays(world: World, *, is_settled: bool) -> None:
    """Its body may be replayed, or tried again, and then awaits it again."""
    world.ok(r.run(a=""))
    if is_settled:
        ended(world, "run/child")
        awaited(world)
    else:
        world.ok(r.run("run/child", a="", b="a"))
        awaited(world)
        for each in ("run/child:a", "run/child:b", "run/child"):
            world.ok(r.settle(each))
    world.clock.advance(DAY)
    assert prune(world, completed=0, failed=0, ids=0) == PruneData(kept=1)
    world.ok(r.take())
    world.ok(r.fail("run/a:a", retry_in=2 * DAY))
    assert prune(world, completed=0, failed=0, ids=0) == PruneData(kept=1), "it will try again"
    world.ok(r.settle("run/a:a"))
    assert reads(world) == set()
    assert prune(world, completed=0).roots == 1


def test_a_task_that_times_out_has_ended_too(world: World) -> None:
    ended(world, "run/child")
    world.ok(c.CreatePromise(id="t", timeout_at=DAY, tags={"resonate:target": ELSEWHERE}))
    world.ok(c.EnsurePromise(id="run/child", awaiter="t"))
    assert prune(world, completed=0).kept == 1
    world.clock.advance(DAY)
    world.tick()
    assert prune(world, completed=0).roots == 1


def test_a_placeholder_that_was_awaited_stays(world: World) -> None:
    world.ok(r.run(a=""))
    awaited(world, "payment-7")
    world.clock.advance(DAY)
    assert prune(world, ids=0) == PruneData()
    world.ok(c.ResolvePromise(id="payment-7"))
    everything = {"completed": 0, "failed": 0, "ids": 0, "foreign": True}
    assert prune(world, **everything) == PruneData(kept=1)
    world.ok(r.settle("run/a:a"))
    assert prune(world, completed=0, failed=0, foreign=True).roots == 1


def test_an_id_that_was_awaited_stays(world: World) -> None:
    """It was pruned before: the body hears that again when it is replayed."""
    ended(world, "run/child")
    prune(world, completed=0)
    world.ok(r.run(a=""))
    awaited(world)
    assert prune(world, ids=0) == PruneData()
    world.ok(r.settle("run/a:a"))
    assert prune(world, ids=0) == PruneData(ids=1)


def test_only_other_trees_are_noted_and_only_once(world: World) -> None:
    world.ok(r.run(a="", b=""))
    for _ in range(2):
        awaited(world, "payment-7")
        awaited(world, "run/a:b")
    assert reads(world) == {("payment-7", "run/a:a")}


def test_nothing_is_noted_for_a_task_that_is_over(world: World) -> None:
    world.ok(r.run(a=""))
    world.ok(r.settle("run/a:a"))
    awaited(world, "payment-7")
    world.ok(c.EnsurePromise(id="payment-7", awaiter="nobody"))
    assert reads(world) == set()


@pytest.mark.parametrize("how", ["suspended", "told at once", "called back"])
def test_what_a_task_of_an_sdk_has_awaited_stays(world: World, how: str) -> None:
    """Its body is replayed from the beginning too."""
    world.ok(r.promise("foo"))
    world.ok(r.claimed("sdk"))
    if how == "suspended":
        world.ok(r.suspend("sdk", 1, "foo"))
    world.ok(r.settle("foo"))
    if how == "told at once":
        assert world.send(r.suspend("sdk", 1, "foo")).status == 300
    if how == "called back":
        world.ok(c.RegisterCallback(awaited="foo", awaiter="sdk"))
    world.check()
    assert prune(world, completed=0, foreign=True) == PruneData(kept=1)
    world.ok(r.settle("sdk"))
    assert reads(world) == set()
    assert prune(world, completed=0, foreign=True).roots == 2


def test_a_note_outlives_a_settlement_of_the_same_batch(world: World) -> None:
    world.ok(r.run(a=""))
    ensure = c.EnsurePromise(id="payment-7", awaiter="run/a:a")
    world.submit([(ensure, 0), (c.ResolvePromise(id="payment-7"), 0)])
    assert reads(world) == {("payment-7", "run/a:a")}
    world.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_notes_do_not_hold_up_those_who_wait(backend: Backend) -> None:
    """However many there are, a settlement resumes those who wait in one step."""
    with World(backend, settings=Settings(hop_limit=2)) as world:
        for number in range(9):
            world.ok(r.target(f"reader{number}"))
            world.ok(c.EnsurePromise(id="foo", awaiter=f"reader{number}"))
        world.ok(r.claimed("sdk"))
        world.ok(r.suspend("sdk", 1, "foo"))
        world.ok(c.ResolvePromise(id="foo"))
        assert world.task("sdk").state == "pending"
        assert world.promise("foo").tail_at is None
        assert len(reads(world)) == 10
        world.check()


def test_a_wait_after_a_read_wakes(world: World) -> None:
    world.ok(r.claimed("sdk"))
    world.ok(c.EnsurePromise(id="foo", awaiter="sdk"))
    world.ok(r.suspend("sdk", 1, "foo"))
    world.ok(c.EnsurePromise(id="foo", awaiter="sdk"))
    world.ok(c.ResolvePromise(id="foo"))
    assert world.task("sdk").state == "pending"
    world.check()


def test_a_listener_keeps_a_run_until_it_was_told(world: World) -> None:
    """First because it listens, then because its message has not been delivered."""
    left_open(world)
    world.ok(c.RegisterListener(awaited="run/a:a.promise.paid", address=ELSEWHERE))
    assert prune(world, completed=0) == PruneData(kept=1)
    world.ok(r.settle("run/a:a.promise.paid"))
    assert prune(world, completed=0) == PruneData(kept=1)
    world.engine.forget([Message("run/a:a.promise.paid", "unblock", ELSEWHERE)])
    assert prune(world, completed=0).roots == 1


def test_a_request_that_waits_keeps_a_run(world: World) -> None:
    """It waits in the engine, and nothing of it is stored."""
    left_open(world)
    [watch] = world.submit([(c.WatchPromise(id="run/a:a.promise.paid"), 0)])
    assert prune(world, completed=0) == PruneData(kept=1)
    world.ok(r.settle("run/a:a.promise.paid"))
    assert watch.result().is_ok
    assert prune(world, completed=0).roots == 1


# --- foreign promises --------------------------------------------------------------------


def test_foreign_promises_only_if_asked_for(world: World) -> None:
    """A tree goes when all of it has settled, for as long as the last part asks for."""
    world.ok(r.promise("foo"))
    world.ok(r.promise("foo.1"))
    world.ok(r.settle("foo"))
    everything = {"completed": DAY, "failed": DAY}
    world.clock.advance(DAY)
    assert prune(world, **everything, foreign=True) == PruneData(kept=1), "foo.1 is open"
    world.ok(r.settle("foo.1", "rejected"))
    assert prune(world, **everything, foreign=True) == PruneData(kept=1), "foo.1 is new"
    world.clock.advance(DAY)
    assert prune(world, **everything) == PruneData()
    assert prune(world, **everything, foreign=True) == PruneData(roots=1, rows=1)
    assert world.promise("foo").is_expired
    assert ids(world) == {"foo"}


def test_a_foreign_tree_without_a_root(world: World) -> None:
    """Every id of it was somebody's own: it goes alone, and answers."""
    for each in ("job.1", "job.2"):
        world.ok(r.promise(each))
        world.ok(r.settle(each))
    world.ok(r.promise("job.3"))
    assert prune(world, completed=0, failed=0, foreign=True) == PruneData(roots=2)
    assert all(world.promise(each).is_expired for each in ("job.1", "job.2"))
    assert prune(world, completed=0, failed=0, ids=0, foreign=True) == PruneData(ids=2)
    assert ids(world) == {"job.3"}


def test_a_part_of_open_work_stays(world: World) -> None:
    """A call of `order:1` has ended; that is replayed, although there is no promise `order`."""
    world.ok(r.claimed("order:1"))
    world.ok(r.promise("order:1.0"))
    world.ok(r.promise("order:1.0.3"))
    world.ok(r.settle("order:1.0.3"))
    world.ok(r.settle("order:1.0"))
    assert prune(world, completed=0, foreign=True) == PruneData(kept=2)
    world.ok(r.settle("order:1"))
    assert prune(world, completed=0, foreign=True) == PruneData(roots=3)


@pytest.mark.parametrize("root", [(), ("order",)], ids=["without a root", "with one"])
def test_many_foreign_promises_take_few_batches(world: World, root: tuple[str, ...]) -> None:
    """Each is looked at once, however many share the beginning of their ids."""
    many = [f"order:{number:03}" for number in range(100)]
    for each in (*many, *root):
        world.ok(r.promise(each))
        world.ok(r.settle(each))
    done = list(batches(world, completed=0, foreign=True, limit=16))
    assert len(done) <= len(many) // 4 + len(many) // 16 + 4
    assert sum(each.roots for each in done) == (1 if root else 100)
    world.tick(DAY)
    for _ in range(20 if root else 0):
        world.tick(PACE_MS)
    assert ids(world) == ({"order"} if root else {*many})


def test_tags_go_with_their_promise(world: World) -> None:
    """A search by them finds nothing, and a promise of that id may be made again."""
    world.ok(replace(r.promise("foo"), tags={"shop": "7"}))
    world.ok(r.settle("foo"))
    prune(world, completed=0, foreign=True)
    assert world.ok(q.SearchPromises(tags={"shop": "7"})).promises == []
    prune(world, ids=0)
    world.ok(replace(r.promise("foo"), tags={"shop": "7"}))
    assert [p.id for p in world.ok(q.SearchPromises(tags={"shop": "7"})).promises] == ["foo"]


# --- placeholders and holders ------------------------------------------------------------


def test_placeholders_that_nobody_waits_for(world: World) -> None:
    """They go after the time of ids; one that is awaited, listened to or watched stays."""
    for each in ("idle", "awaited", "heard", "watched"):
        world.ok(c.EnsurePromise(id=each))
    world.ok(r.claimed("task"))
    world.ok(r.suspend("task", 1, "awaited"))
    world.ok(c.RegisterListener(awaited="heard", address=ELSEWHERE))
    world.submit([(c.WatchPromise(id="watched"), 0)])
    world.clock.advance(DAY - 1)
    assert prune(world, ids=DAY) == PruneData()
    world.clock.advance(1)
    assert prune(world, ids=DAY) == PruneData(placeholders=1)
    assert ids(world) == {"awaited", "heard", "watched", "task"}


def test_dead_holders_go(world: World) -> None:
    """With what they were to be told, once they have nothing; a living one keeps its inbox."""
    world.ok(r.run(a="", b="", c=""))
    world.ok(r.take(1, "dead", ttl=1_000))
    world.ok(r.take(1, "alive", "1", ttl=1_000))
    world.tick(1_000)
    world.ok(r.take(1, "alive", "2", ttl=10 * DAY))
    assert len(world.dump().holders) == 3
    world.clock.advance(HOLDERS_KEPT_MS - 1)
    assert prune(world) == PruneData()
    world.clock.advance(1)
    assert prune(world) == PruneData(holders=2)
    assert set(world.dump().holders) == {("alive", "2")}


# --- batches -----------------------------------------------------------------------------


def test_a_batch_is_bounded(world: World) -> None:
    """By rows, and whole trees only, of three rows here; together they find everything."""
    for number in range(10):
        ended(world, f"run/{number}")
    before = len(ids(world))
    found = list(batches(world, completed=0, limit=7))
    assert [each.roots for each in found if each.roots] == [2] * 5
    assert before - len(ids(world)) == 20


def test_a_dry_run_counts_the_same_and_changes_nothing(world: World) -> None:
    for number in range(5):
        ended(world, f"run/{number}", "resolved" if number % 2 else "rejected")
    world.ok(c.EnsurePromise(id="idle"))
    before, policy = world.dump(), {"completed": 0, "failed": 0, "ids": 0, "limit": 7}
    dry = prune(world, **policy, dry_run=True)
    assert world.dump() == before
    wet = prune(world, **policy)
    assert dry == replace(wet, ids=0), "the ids are pruned only now"
    assert (dry.roots, dry.placeholders) == (5, 1)


def large(world: World, nodes: int = 50) -> None:
    names = [f"n{number:02}" for number in range(nodes)]
    world.ok(r.dag(dict.fromkeys(names, "")))
    for each in names:
        world.ok(r.settle(f"run/a:{each}"))
    world.ok(r.settle("run/a"))


def test_a_tree_larger_than_a_batch(world: World) -> None:
    """It is looked at part by part, expires at once, and the rest is deleted by time."""
    large(world)
    ended(world, "run/b")
    found = list(batches(world, completed=0, limit=12))
    assert sum(each.roots for each in found) == 2
    assert sum(each.rows for each in found) == 52
    assert world.promise("run/a").tail_at is not None
    assert world.send(c.RerunRun(id="run/a", life=2, nodes=())).status == 404
    assert prune(world, ids=0, limit=12) == PruneData(ids=1), "not while some of it is left"
    for _ in range(20):
        world.tick(PACE_MS)
        world.check()
    assert ids(world) == {"run/a"}
    assert world.promise("run/a").tail_at is None
    assert prune(world, ids=0) == PruneData(ids=1)


def test_a_large_tree_with_something_open_at_its_end(world: World) -> None:
    """Nothing of it is touched."""
    large(world)
    world.ok(r.promise("run/a:z"))
    world.ok(c.RegisterListener(awaited="run/a:z", address=ELSEWHERE))
    before = world.dump()
    assert prune(world, completed=0, limit=12) == PruneData(kept=1)
    assert world.dump() == before


def test_what_comes_to_life_in_a_pruned_tree_stays(world: World) -> None:
    """Somebody may create a promise below its id while it is being deleted."""
    large(world)
    prune(world, completed=0, limit=12)
    world.ok(r.target("run/a:n99"))
    for _ in range(20):
        world.tick(PACE_MS)
    assert ids(world) == {"run/a", "run/a:n99"}
    assert world.task("run/a:n99").state == "pending"


def test_what_comes_to_life_in_front_holds_nothing_up(world: World) -> None:
    """More than a batch of it: what is behind goes all the same, and then it is forgotten."""
    for number in range(100):
        world.ok(r.promise(f"foo.{number:03}"))
        world.ok(r.settle(f"foo.{number:03}"))
    world.ok(r.promise("foo"))
    world.ok(r.settle("foo"))
    prune(world, completed=0, foreign=True)
    late = {f"foo.!{number}" for number in range(40)}
    for each in late:
        world.ok(r.promise(each))
    for _ in range(20):
        world.tick(PACE_MS)
        world.check()
    assert ids(world) == {"foo", *late}
    assert world.dump().pruning == {}


def test_a_large_tree_that_goes_while_it_is_looked_at(world: World) -> None:
    """Somebody else has pruned it between two batches: the pass goes on behind it."""
    large(world)
    world.clock.advance(1)
    ended(world, "run/b")
    first = world.ok(c.Prune(completed=0, limit=12))
    assert first.roots == 0
    assert prune(world, completed=0, limit=1_000).roots == 2
    rest = world.ok(c.Prune(completed=0, limit=12, cursor=first.cursor))
    assert (rest.roots, rest.kept) == (0, 0)


def test_nonsense_is_refused(world: World) -> None:
    for bad in (
        c.Prune(cursor="{"),
        c.Prune(cursor='[-3,1,"a"]'),
        c.Prune(cursor=f'[{len(STAGES) + 1},1,"a"]'),
        c.Prune(cursor=f'[0,{2**63},"a"]'),
        c.Prune(cursor='[0,1,"a\\u0000"]'),
        c.Prune(cursor='[0,1,"a","a\\u0000"]'),
        c.Prune(cursor='[0,1,"a","a",-1]'),
        c.Prune(completed=0, cursor=f'[{STAGES.index("ids")},1,"a","a"]'),
        c.Prune(limit=0),
        c.Prune(limit=10**6),
        c.Prune(completed=-1),
        c.Prune(ids=-1),
        c.Prune(ids=2**60),
        c.CreatePromise(id="x", timeout_at=DAY, tags={"layby:expired": "1"}),
    ):
        assert world.send(bad).status == 400


# --- by time -----------------------------------------------------------------------------

POLICY = Settings(retention=RetentionPolicy(DAY, None, DAY), prune_rows=12)


@pytest.fixture(params=BACKENDS)
def kept(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param, settings=POLICY) as world:
        yield world


def test_retention_prunes_by_itself(kept: World) -> None:
    """In batches with pauses, and then once per period."""
    for number in range(12):
        ended(kept, f"run/{number}")
    kept.tick(DAY)
    assert 0 < len([p for p in kept.dump().promises.values() if p.is_expired]) < 12
    for _ in range(20):
        kept.tick(PACE_MS)
        kept.check()
    assert all(p.is_expired for p in kept.dump().promises.values())
    due = kept.dump().pruning[AUTOMATIC]
    assert due.cursor == ""
    assert kept.now < due.due_at <= kept.now + 3_600_000
    kept.tick(2 * DAY)
    for _ in range(20):
        kept.tick(PACE_MS)
    assert ids(kept) == set()


def test_retention_goes_on_where_it_was(kept: World) -> None:
    """How far it has come is stored, so a restart neither begins again nor skips anything."""
    kept.tick()
    before = kept.dump().pruning[AUTOMATIC]
    kept.tick()
    assert kept.dump().pruning[AUTOMATIC] == before, "nothing is due"
    kept.tick(PACE_MS)
    assert kept.dump().pruning[AUTOMATIC] != before


def test_who_keeps_every_run_does_not_end_the_pass_of_others(kept: World) -> None:
    """On one database a server may have a retention, and a Runner none: it prunes dead holders."""
    store: Any = kept.store
    kept.ok(r.take(pid="dead"))
    kept.ok(c.LeaveWorker(pid="dead", incarnation="1"))
    for number in range(12):
        ended(kept, f"run/{number}")
    kept.tick(DAY)
    before = kept.dump().pruning[AUTOMATIC]
    assert before.cursor
    kept.clock.advance(PACE_MS)
    (tick,) = due_last(store, kept.now, Settings())
    assert kept.send(tick).is_ok
    assert kept.dump().pruning[AUTOMATIC] == before
    assert kept.dump().holders == {}
    assert list(due_last(store, kept.now, Settings())) == []
    for _ in range(20):
        kept.tick(PACE_MS)
    assert all(p.is_expired for p in kept.dump().promises.values())
    kept.check()


@pytest.mark.parametrize("root", ["retention", AUTOMATIC, OF_HOLDERS])
def test_a_tree_may_have_any_name(kept: World, root: str) -> None:
    """How far its deletion has come says nothing of retention, which goes on."""
    kept.tick()
    before = kept.dump().pruning[AUTOMATIC]
    for number in range(100):
        kept.ok(r.promise(f"{root}.{number:03}"))
        kept.ok(r.settle(f"{root}.{number:03}"))
    kept.ok(r.promise(root))
    kept.ok(r.settle(root))
    prune(kept, completed=0, foreign=True)
    for number in range(40):
        kept.ok(r.promise(f"{root}.!{number}"))
    overdue: Any = kept.store
    for each in list(due_last(overdue, kept.now, Settings())):
        assert kept.send(each).is_ok
    pruning = kept.dump().pruning
    assert pruning[AUTOMATIC] == before
    assert OF_HOLDERS not in pruning


def test_nothing_is_pruned_unless_asked_for(world: World) -> None:
    """The default keeps everything, and looks at nothing."""
    ended(world)
    before = world.dump()
    world.tick(1_000 * DAY)
    assert world.dump() == before
    assert before.pruning == {}
