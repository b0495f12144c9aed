"""Holders: one lease for all a worker process has taken, and what happens when it is gone."""

import base64

import msgspec
import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import ticks
from layby.core.model import NEVER
from layby.core.settings import Settings
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World


def holder(world: World, pid: str = "p", incarnation: str = "1"):
    return world.dump().holders[pid, incarnation]


def test_take_registers_claims_and_counts(world: World) -> None:
    """The claim stores pid and incarnation; its deadline is the holder's."""
    world.ok(r.run(a="", b=""))
    claims = world.ok(r.take(1, ttl=1_000)).claims
    assert [claim.task.id for claim in claims] == ["run/a:a"]
    task = world.task("run/a:a")
    assert (task.state, task.version, task.pid, task.holder) == ("acquired", 1, "p", "1")
    assert (task.ttl, task.wake_at) == (1_000, None)
    assert (holder(world).expires_at, holder(world).held) == (1_000, 1)
    world.check()


def test_take_serves_the_oldest_first_and_only_its_names(world: World) -> None:
    """Ready first, served first; a name without code here is left to others."""
    for at, (run_id, name) in enumerate([("run/c", "f"), ("run/b", "g"), ("run/a", "f")]):
        world.clock.advance(at)
        node = c.Node(id="n", name=name)
        world.ok(c.StartRun(id=run_id, name="root", group="g", nodes=(node,), timeout=99_000))
    got = world.ok(r.take(names=("f",))).claims
    assert [claim.task.id for claim in got] == ["run/c:n", "run/a:n"]


def test_a_released_task_goes_to_the_end_of_the_queue(world: World) -> None:
    """Also inside one batch: its old place there is gone."""
    world.ok(r.run("run/a", a=""))
    world.clock.advance(5)
    world.ok(r.run("run/b", a=""))
    replies = world.batch(
        [(r.take(1), 6), (c.ReleaseTask(id="run/a:a", version=1), 7), (r.take(1), 8)]
    )
    assert [claim.task.id for claim in replies[2].data.claims] == ["run/b:a"]


def test_takes_of_overlapping_names_do_not_starve_each_other(world: World) -> None:
    """In one batch each gets what it has room for, as if it had asked alone."""
    for at in range(4):
        world.ok(r.run(f"run/{at}", a=""))
    first, second = r.take(2, names=("f",)), r.take(2, pid="q", names=("f", "g"))
    replies = world.batch([(first, 0), (second, 0)])
    assert [len(reply.data.claims) for reply in replies] == [2, 2]


def test_tasks_past_their_deadline_do_not_hide_those_behind_them(world: World) -> None:
    """A take that asks for one gets the living one, swept or not."""
    world.ok(r.run("run/dead", timeout=10, a=""))
    world.clock.advance(1)
    world.ok(r.run("run/live", a=""))
    world.clock.advance(9)
    assert [claim.task.id for claim in world.ok(r.take(1)).claims] == ["run/live:a"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_roots_need_no_room_but_are_bounded(backend) -> None:
    """A take with nothing free gets ready roots, `roots_per_take` of them at a time."""
    with World(backend, settings=Settings(roots_per_take=2)) as world:
        for at in range(5):
            world.ok(r.run(f"run/{at}", a=""))
            world.ok(r.settle(f"run/{at}:a"))
        replies = world.batch([(r.take(0), 0), (r.take(0, pid="q"), 0)])
        assert [len(reply.data.claims) for reply in replies] == [2, 2]
        assert len(world.ok(r.take(0)).claims) == 1
        assert all(claim.task.is_root for reply in replies for claim in reply.data.claims)


def test_our_tasks_get_no_execute_and_foreign_ones_no_take(world: World) -> None:
    """Each task has one way to a worker."""
    world.ok(r.run(a=""))
    world.ok(r.target("foreign"))
    state = world.dump()
    assert [key[0] for key in state.messages] == ["foreign"]
    assert state.tasks["run/a:a"].wake_at == NEVER
    assert [claim.task.id for claim in world.ok(r.take()).claims] == ["run/a:a"]


def test_a_new_incarnation_ends_the_old_one(world: World) -> None:
    """The old one is refused from then on, and its tasks are freed."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    world.ok(r.take(incarnation="2"))
    assert holder(world).standing == "lost"
    refused = [
        r.take(),
        c.HeartbeatWorker(pid="p", incarnation="1"),
        c.HeartbeatWorker(pid="nobody", incarnation="1"),
    ]
    assert [world.send(each).status for each in refused] == [409] * 3
    world.tick()
    task = world.task("run/a:a")
    assert (task.state, task.version, task.crashes) == ("pending", 1, 1)
    assert holder(world).held == 0
    world.check()


def test_renewing_a_lease_says_nothing_about_code(world: World) -> None:
    """A worker whose stream reconnects registers again; what it has code for is as before."""
    world.ok(replace(r.take(names=("f", "f/a")), codes=(("f", "v1"),)))
    world.ok(r.take(names=()))
    assert (holder(world).names, holder(world).codes) == (("f", "f/a"), (("f", "v1"),))


def test_heartbeat_renews_one_row(world: World) -> None:
    """No task is touched; afterwards all of them live as long as the holder."""
    world.ok(r.run(a="", b=""))
    world.ok(r.take(ttl=1_000))
    before = world.dump().tasks
    world.clock.advance(999)
    assert world.ok(c.HeartbeatWorker(pid="p", incarnation="1", held=2)).agrees
    assert world.dump().tasks == before
    assert holder(world).expires_at == 1_999
    world.tick(1)
    assert holder(world).is_alive


def test_a_refusal_does_not_tell_the_incarnation(world: World) -> None:
    """It proves who a worker is, and what is refused is logged."""
    refused = world.send(c.HeartbeatWorker(pid="p", incarnation="secret"))
    assert "Holder 'p' is not known here" in str(refused.data)
    assert "secret" not in str(refused.data)


def test_a_holder_expires_and_its_tasks_are_taken_again(world: World) -> None:
    """Dead exactly at its deadline, not before."""
    world.ok(r.run(a=""))
    world.ok(r.take(ttl=1_000))
    world.tick(999)
    assert holder(world).is_alive
    world.tick(1)
    assert holder(world).standing == "lost"
    got = world.ok(r.take(pid="q")).claims
    assert [(claim.task.id, claim.task.version) for claim in got] == [("run/a:a", 2)]
    world.check()


@pytest.mark.parametrize(
    ("sub_status", "leaves", "crashes"),
    [(None, False, 1), ("Active", False, 1), ("Deferred", False, 0), ("Active", True, 0)],
)
def test_what_counts_as_a_crash(
    world: World, sub_status: str | None, leaves: bool, crashes: int
) -> None:
    """A worker lost while the slot was held; parked losses and hand-backs do not count."""
    world.ok(r.run(a=""))
    world.ok(r.take(ttl=1_000))
    world.ok(c.AnnotateTask(id="run/a:a", version=1, sub_status=sub_status))
    if leaves:
        world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    world.tick(1_000)
    task = world.task("run/a:a")
    assert (task.state, task.crashes, task.sub_status) == ("pending", crashes, None)
    assert holder(world).standing == ("left" if leaves else "lost")


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_many_crashes_fail_the_task(backend, caplog) -> None:
    """It is rejected with WorkerLost, said once in the log, and those who wait for it go on."""
    with World(backend, settings=Settings(max_crashes=2)) as world:
        world.ok(r.run(a="", b="a"))
        for incarnation in "12":
            world.ok(r.take(1, incarnation=incarnation, ttl=1_000))
            world.tick(1_000)
        promise = world.promise("run/a:a")
        assert promise.state == "rejected"
        data = msgspec.json.decode(promise.value)["data"]
        error = msgspec.json.decode(base64.b64decode(data))
        assert (error["name"], error["crashes"]) == ("WorkerLost", 2)
        assert "raise max_crashes" in error["message"]
        assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
            ("ERROR", f"run/a:a failed: WorkerLost: {error['message']}")
        ]
        assert world.task("run/a:a").crashes == 2
        assert world.task("run/a:b").state == "pending"
        world.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_of_a_dead_holder_are_freed_in_chunks(backend) -> None:
    """A bounded number in each transaction, until it holds none."""
    with World(backend, chunk=3) as world:
        world.ok(r.dag({f"n{at}": "" for at in range(8)}))
        world.ok(r.take(20, ttl=1_000))
        world.clock.advance(1_000)
        held: list[int] = []
        while world.engine._tick(world.now):
            held.append(holder(world).held)
            world.check()
        assert held == [8, 5, 2, 0]


def test_an_embedded_holder_needs_no_heartbeat(world: World) -> None:
    """It dies with its process, which `expire_holders` of a restart says."""
    world.ok(r.run(a=""))
    world.ok(r.take(embedded=True))
    assert holder(world).expires_at == NEVER
    world.ok(ticks.ExpireHolders(pids=("p",), opening=True))
    assert holder(world).standing == "lost"


def test_a_lease_begins_anew_when_the_store_is_opened(world: World) -> None:
    """Nobody could hear its holder meanwhile; one that is gone stays gone."""
    world.ok(r.take(1, ttl=1_000))
    world.ok(r.take(1, pid="gone", ttl=1_000))
    world.ok(c.LeaveWorker(pid="gone", incarnation="1"))
    world.clock.advance(5_000)
    opening = ticks.ExpireHolders(pids=("p", "gone"), opening=True, heard_since=world.now)
    world.ok(opening)
    assert (holder(world).standing, holder(world).expires_at) == ("alive", world.now + 1_000)
    assert holder(world, "gone").standing == "left"
    world.tick(1_000)
    assert holder(world).standing == "lost"


@pytest.mark.parametrize(
    "taking_away",
    [c.HaltTask(id="run/a:a"), r.settle("run/a:a"), c.CancelPromise(id="run/a:a")],
    ids=["halt", "settle", "cancel"],
)
def test_the_heartbeat_tells_what_was_taken_away(world: World, taking_away: c.Command) -> None:
    """Once; and both sides count alike again."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    world.ok(taking_away)
    beat = c.HeartbeatWorker(pid="p", incarnation="1", held=1)
    told = world.ok(beat)
    assert [(notice.id, notice.version) for notice in told.lost] == [("run/a:a", 1)]
    assert told.agrees  # it is kept until its worker says that the body has ended
    assert world.ok(c.HeartbeatWorker(pid="p", incarnation="1", held=0)).lost == []
    world.check()


def test_notices_are_current_within_a_batch(world: World) -> None:
    """A halt and two heartbeats in one transaction: the first is told, the second is not."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    world.ok(r.take(pid="q"))
    beat, other = (c.HeartbeatWorker(pid=pid, incarnation="1") for pid in "pq")
    replies = world.batch([(c.HaltTask(id="run/a:a"), 0), (other, 0), (beat, 0), (beat, 0)])
    assert [len(reply.data.lost) for reply in replies[1:]] == [0, 1, 0]


def test_what_the_holder_does_itself_is_no_notice(world: World) -> None:
    """Finishing, failing, releasing and fulfilling tell nobody."""
    world.ok(r.run(a="", b="", d="", e=""))
    world.ok(r.take())
    world.ok(r.finish("run/a:a"))
    world.ok(r.fail("run/a:b"))
    world.ok(c.ReleaseTask(id="run/a:d", version=1))
    world.ok(r.fulfill("run/a:e", 1))
    assert world.ok(c.HeartbeatWorker(pid="p", incarnation="1", held=0)).lost == []


def test_a_protocol_heartbeat_that_names_a_held_task_renews_the_holder(world: World) -> None:
    """So does the empty list of that pid; a stranger's does not."""
    world.ok(r.run(a=""))
    world.ok(r.take(ttl=1_000))
    for beats, expires_at in [
        (r.beat("p", ("run/a:a", 1)), 1_010),
        (r.beat("p", ("run/a:a", 7)), 1_010),
        (r.beat("q", ("run/a:a", 1)), 1_010),
        (r.beat("p"), 1_040),
    ]:
        world.clock.advance(10)
        world.ok(beats)
        assert holder(world).expires_at == expires_at


def test_protocol_claims_have_their_own_lease(world: World) -> None:
    """`task.acquire` by a holder's pid still sets now + ttl, and only that is renewed."""
    world.ok(r.run(a="", b=""))
    world.ok(r.take(1, ttl=60_000))
    world.ok(r.acquire("run/a:b", 0, ttl=500))
    assert (world.task("run/a:b").wake_at, world.task("run/a:b").holder) == (500, None)
    world.tick(500)
    assert world.task("run/a:b").state == "pending"
    assert world.task("run/a:a").state == "acquired"


def test_leases_taken_in_a_batch_are_renewed_by_the_empty_list(world: World) -> None:
    """Acquire and heartbeat in one transaction, as if one after the other."""
    world.ok(r.target("t"))
    world.batch([(r.acquire("t", 0, ttl=1_000), 0), (r.beat("p"), 100)])
    assert world.task("t").wake_at == 1_100


def test_leaving_twice_or_unknown_is_harmless(world: World) -> None:
    """It is over either way."""
    world.ok(r.take())
    for incarnation in ("1", "1", "unknown"):
        world.ok(c.LeaveWorker(pid="p", incarnation=incarnation))
    assert holder(world).standing == "left"


def test_a_held_task_shows_the_lease_of_its_holder() -> None:
    """In records pid and ttl, in `taskTimeouts` the holder's deadline."""
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take(ttl=1_000))
        _, snap = world.ask("debug.snap", {}, 0)
        timeouts = {each["id"]: (each["type"], each["timeout"]) for each in snap["taskTimeouts"]}
        assert timeouts == {"run/a:a": (1, 1_000)}
        held = next(each for each in snap["tasks"] if each["id"] == "run/a:a")
        assert (held["pid"], held["ttl"]) == ("p", 1_000)


def test_nobody_is_told_anything_for_a_worker_that_is_gone(world: World) -> None:
    """Its listeners and its messages go with it; those of others stay."""
    world.ok(r.promise("p", 10_000))
    world.ok(r.promise("q", 10_000))
    for pid in ("p", "other"):
        world.ok(r.take(pid=pid))
        for awaited in ("p", "q"):
            address = f"poll://uni@layby.g/{pid}"
            world.ok(c.RegisterListener(awaited=awaited, address=address))
    world.ok(c.SettlePromise(id="q", state="resolved"))
    world.ok(c.LeaveWorker(pid="p", incarnation="1"))
    state = world.dump()
    assert {each.address for each in state.listeners} == {"poll://uni@layby.g/other"}
    assert {each.address for each in state.messages.values()} == {"poll://uni@layby.g/other"}


def beat(incarnation: str = "1") -> c.HeartbeatWorker:
    return c.HeartbeatWorker(pid="p", incarnation=incarnation)


GONE = {
    "another incarnation": ((r.take(1), r.take(1, incarnation="2")), "same pid"),
    "left": ((r.take(1), c.LeaveWorker(pid="p", incarnation="1")), "it has left"),
    "lease over": ((r.take(1, ttl=15_000), 15_000), "length of its lease, 15 s"),
    "unknown": ((), "has not registered"),
}


@pytest.mark.parametrize("name", GONE)
def test_a_holder_that_is_gone_is_told_what_became_of_it(world: World, name: str) -> None:
    """And what to do. The other incarnation is not named: knowing it would be proof of being it."""
    script, told = GONE[name]
    for each in script:
        world.tick(each) if isinstance(each, int) else world.ok(each)
    reply = world.send(beat())
    assert reply.status == 409
    assert told in str(reply.data)
    assert "register a new incarnation" in str(reply.data)
    assert "(2)" not in str(reply.data)


def test_a_pid_in_use_is_told_to_whom_may_not_end_the_other(world: World) -> None:
    """A token with a prefix must not end other people's workers."""
    world.ok(r.take(1))
    reply = world.send(replace(r.take(1, incarnation="2"), prefix="run/"))
    assert reply.status == 409
    assert "another living process uses the same pid" in str(reply.data)


def test_what_was_told_to_a_holder_that_left_is_not_told_to_the_next(world: World) -> None:
    """Within one batch, too: the next incarnation of the pid never held those tasks."""
    world.ok(r.run(a=""))
    world.ok(r.take(pid="q", incarnation="1", names=("f",)))
    world.ok(c.CancelPromise(id="run/a:a"))
    replies = world.batch(
        [
            (c.LeaveWorker(pid="q", incarnation="1"), 0),
            (r.take(pid="q", incarnation="2", names=("f",)), 0),
            (c.HeartbeatWorker(pid="q", incarnation="2"), 0),
        ]
    )
    assert replies[-1].data.lost == []
