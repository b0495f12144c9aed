"""Permits: who is let in under a limit, in which order, and what frees a permit."""

from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.draft import Draft
from layby.core.limit import Limit
from layby.core.limits import SPREAD, GetLimit
from layby.core.queries import ExplainPromise
from layby.core.rows import Rows
from layby.core.settings import Settings
from layby.core.waits import waiting_of
from layby.engine.calendar import next_after
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World


def limited(
    run_id: str, *limits: str, name: str = "f", priority: int = 0, group: str = "g"
) -> c.StartRun:
    """A run of one node under these limits."""
    node = c.Node(id="a", name=name, limits=limits, priority=priority)
    return c.StartRun(id=run_id, name="root", group=group, nodes=(node,))


def start(world: World, count: int, *limits: str, first: int = 0, priority: int = 0) -> None:
    """Runs of one limited node each, a millisecond apart."""
    for at in range(first, first + count):
        world.ok(limited(f"run/{at:02}", *(limits or ("api",)), priority=priority))
        world.clock.advance(1)


def define(world: World, name: str = "api", **numbers: Any) -> Any:
    return world.ok(c.SetLimit(name=name, **numbers))


def taken(world: World, free: int = 10, pid: str = "p", **fields: Any) -> list[str]:
    claims = world.ok(r.take(free, pid=pid, **fields)).claims
    return [claim.task.id for claim in claims if claim.task.kind == "node"]


def standing(world: World, name: str = "api") -> Any:
    return world.ok(GetLimit(name=name))


# --- how many run at once ------------------------------------------------------------------


def test_a_take_is_handed_no_more_than_there_are_permits(world: World) -> None:
    define(world, concurrency=2)
    start(world, 5)
    assert taken(world) == ["run/00:a", "run/01:a"]
    assert taken(world) == []
    shown = standing(world)
    assert (shown.held, shown.waiting) == (2, 3)
    assert shown.holders == ("run/00:a", "run/01:a")
    assert world.ok(GetLimit(name="api", prefix="run/01")) == replace(shown, holders=("run/01:a",))
    world.check()


def test_a_finish_hands_its_permit_to_the_oldest_that_waits(world: World) -> None:
    """In the same step: the take that it carries is handed the next one."""
    define(world, concurrency=1)
    start(world, 3)
    assert taken(world) == ["run/00:a"]
    data = world.ok(r.finish("run/00:a", 1, r.take(1)))
    assert [claim.task.id for claim in data.taken.claims if claim.task.kind == "node"] == [
        "run/01:a"
    ]
    world.check()


@pytest.mark.parametrize("end", ["fail", "release", "cancel", "halt", "leave", "lost"])
def test_whatever_ends_a_claim_frees_its_permit(world: World, end: str) -> None:
    define(world, concurrency=1)
    start(world, 2)
    assert taken(world, 1) == ["run/00:a"]
    if end == "fail":
        world.ok(c.FailTask(id="run/00:a", version=1, retry_in=60_000))
    elif end == "release":
        gone = c.Released("run/00:a", 1, delay=60_000)
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(gone,)))
    elif end == "cancel":
        world.ok(c.CancelPromise(id="run/00:a"))
        assert taken(world) == []  # its body has not ended
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/00:a", 1),)))
    elif end == "halt":
        world.ok(c.HaltTask(id="run/00:a"))
        assert taken(world) == []  # its body has not ended
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/00:a", 1),)))
    elif end == "leave":
        world.ok(c.LeaveWorker(pid="p", incarnation="1"))
        world.tick()
    else:
        world.tick(60_000)
    pid = "q" if end in ("leave", "lost") else "p"
    assert taken(world, 1, pid) == ["run/01:a"]
    world.check()


def test_order_is_kept_and_a_newer_task_does_not_pass_those_that_wait(world: World) -> None:
    define(world, concurrency=1)
    start(world, 2)
    assert taken(world, 1) == ["run/00:a"]
    start(world, 2, first=2)
    for at in range(3):
        data = world.ok(r.finish(f"run/{at:02}:a", 1, r.take(1)))
        assert f"run/{at + 1:02}:a" in [claim.task.id for claim in data.taken.claims]
    world.check()


def test_no_more_are_let_in_than_may_begin(world: World) -> None:
    """However many wait: so a take does not come across the rest."""
    define(world, concurrency=2)
    start(world, 9)
    ready = [task.id for task in world.dump().tasks.values() if task.is_ready]
    assert [each for each in ready if each.endswith(":a")] == ["run/00:a", "run/01:a"]


def test_tasks_without_a_worker_do_not_hold_up_those_of_another_name(world: World) -> None:
    define(world, concurrency=1)
    world.ok(limited("run/old", "api", name="nobody"))
    world.clock.advance(1)
    world.ok(limited("run/new", "api"))
    assert taken(world) == ["run/new:a"]
    world.check()


def test_tasks_without_a_worker_do_not_hold_up_those_of_another_group(world: World) -> None:
    """Neither those that were let in, nor those behind the gate, however many there are."""
    define(world, concurrency=1)
    for at in range(3):
        world.ok(limited(f"run/old-{at}", "api", group="away"))
        world.clock.advance(1)
    world.ok(limited("run/new", "api"))
    world.ok(limited("run/newer", "api"))
    assert taken(world) == ["run/new:a"]
    world.check()
    data = world.ok(r.finish("run/new:a", 1, r.take(1)))
    assert "run/newer:a" in [claim.task.id for claim in data.taken.claims]
    world.ok(r.finish("run/newer:a"))
    assert taken(world, group="away") == ["run/old-0:a"]
    world.check()


def test_one_that_was_let_in_is_turned_back_when_its_permit_has_gone(world: World) -> None:
    define(world, concurrency=1)
    world.ok(limited("run/f", "api"))
    world.ok(limited("run/g", "api", name="g"))
    assert taken(world) == ["run/f:a"]
    assert taken(world, names=("g",)) == []
    assert world.task("run/g:a").gate == "api"
    world.ok(r.finish("run/f:a"))
    assert taken(world, names=("g",)) == ["run/g:a"]
    world.check()


def test_one_that_was_turned_back_begins_before_those_that_are_let_in(world: World) -> None:
    """The take that came across it did not come as far as the younger one."""
    define(world, concurrency=2)
    start(world, 1)
    world.ok(r.run("run/plain", a=""))
    world.clock.advance(1)
    start(world, 1, first=1)
    for name in ("run/g", "run/h"):
        world.ok(limited(name, "api", name="g"))
    assert taken(world, 2, names=("g",)) == ["run/g:a", "run/h:a"]
    assert taken(world, 0) == []  # the first one is turned back
    assert [world.task(f"run/0{at}:a").gate for at in (0, 1)] == ["api", None]
    world.ok(r.finish("run/g:a", 1))
    assert taken(world) == ["run/00:a", "run/plain:a"]
    world.check()


def test_one_that_is_turned_back_waits_since_it_was_ready(world: World) -> None:
    """Being let in for a moment is not the end of its wait."""
    define(world, concurrency=1)
    world.ok(limited("run/f", "api"))
    world.ok(limited("run/g", "api", name="g"))
    since = world.task("run/g:a").waiting_since
    assert taken(world) == ["run/f:a"]
    for _ in range(3):
        world.clock.advance(1_000)
        assert taken(world, names=("g",)) == []
        assert world.task("run/g:a").waiting_since == since
    world.check()


def test_nothing_is_taken_ahead_under_a_limit(world: World) -> None:
    define(world, concurrency=5)
    start(world, 3)
    data = world.ok(c.Take(**{**_fields(r.take(1)), "ahead": 5}))
    assert [claim.task.id for claim in data.claims if claim.task.kind == "node"] == ["run/00:a"]
    assert data.oldest_left == 1


def _fields(command: Any) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


def test_more_permits_let_more_in_at_once_and_fewer_stop_nobody(world: World) -> None:
    define(world, concurrency=1)
    start(world, 4)
    assert taken(world) == ["run/00:a"]
    define(world, concurrency=3)
    assert taken(world) == ["run/01:a", "run/02:a"]
    define(world, concurrency=1)
    assert standing(world).held == 3
    world.ok(r.finish("run/00:a"))
    world.ok(r.finish("run/01:a"))
    assert taken(world) == []
    world.ok(r.finish("run/02:a"))
    assert taken(world) == ["run/03:a"]
    world.check()


def test_a_task_waits_for_a_limit_that_nobody_has_defined(world: World) -> None:
    start(world, 2)
    assert taken(world) == []
    assert standing(world).rule is None
    world.check()
    define(world, concurrency=1)
    assert taken(world) == ["run/00:a"]
    world.check()


def test_a_limit_that_nobody_has_defined_is_forgotten_with_the_last_that_waits(
    world: World,
) -> None:
    start(world, 2)
    world.ok(c.CancelPromise(id="run/00"))
    world.tick()
    assert standing(world).waiting == 1
    world.ok(c.CancelPromise(id="run/01"))
    world.tick()
    assert world.send(GetLimit(name="api")).status == 404
    world.check()


def test_a_limit_that_is_deleted_lets_nobody_in(world: World) -> None:
    define(world, concurrency=2)
    start(world, 3)
    assert taken(world, 1) == ["run/00:a"]
    world.ok(c.DeleteLimit(name="api"))
    assert taken(world) == []
    world.check()
    define(world, concurrency=2)
    assert taken(world) == ["run/01:a"]
    assert world.send(c.DeleteLimit(name="other")).status == 404


def test_a_worker_without_a_free_slot_hears_of_whoever_may_begin(world: World) -> None:
    """One that was let in under a limit that is gone since is turned back, and the next is told."""
    define(world, concurrency=1)
    start(world, 1)
    world.ok(c.DeleteLimit(name="api"))
    world.ok(r.run("run/z", a=""))
    assert world.ok(r.take(0)).oldest_left == world.now
    world.check()


def test_many_more_permits_let_everybody_in_by_ticks(world: World) -> None:
    define(world, concurrency=0)
    start(world, 250)
    define(world, concurrency=1_000)
    world.tick()
    assert len(taken(world, 1_000)) == 250
    world.check()


def test_a_dependent_task_gets_its_permit_when_it_is_ready(world: World) -> None:
    define(world, concurrency=1)
    nodes = (
        c.Node(id="a", name="f"),
        *(c.Node(id=each, name="f", after=("a",), limits=("api",)) for each in "bcd"),
    )
    world.ok(c.StartRun(id="run/x", name="root", group="g", nodes=nodes))
    assert taken(world) == ["run/x:a"]
    world.ok(r.finish("run/x:a"))
    assert taken(world) == ["run/x:b"]
    world.check()


def test_a_rerun_runs_under_the_same_limit(world: World) -> None:
    define(world, concurrency=1)
    world.ok(limited("run/x", "api"))
    assert taken(world) == ["run/x:a"]
    world.ok(c.FailTask(id="run/x:a", version=1))
    world.ok(c.CancelPromise(id="run/x"))
    world.tick()
    again = c.RerunRun(id="run/x", life=2, nodes=(c.NodeAgain(id="a"),))
    world.ok(again)
    assert world.task("run/x:life/2:a").limits == '["api"]'
    assert taken(world) == ["run/x:life/2:a"]
    world.check()


def test_runs_of_a_schedule_are_limited_too(world: World) -> None:
    define(world, concurrency=1)
    nodes = (c.Node(id="a", name="f", limits=("api",)),)
    world.ok(r.nightly(nodes=nodes, catch_up=True))
    world.tick(3 * 86_400_000)
    assert len(taken(world)) == 1
    world.check()


# --- how many begin in a time --------------------------------------------------------------


def test_a_rate_lets_one_begin_after_the_other(world: World) -> None:
    define(world, rate="10/min")
    start(world, 3)
    begun = world.now
    assert taken(world) == ["run/00:a"]
    world.tick(5_999)
    assert taken(world) == []
    assert standing(world).next_at == begun + 6_000
    world.tick(1)
    assert taken(world) == ["run/01:a"]
    world.check()


def test_a_burst_may_begin_at_once(world: World) -> None:
    define(world, rate="10/min", burst=3)
    start(world, 6)
    assert len(taken(world)) == 3
    world.tick(6_000)
    assert taken(world) == ["run/03:a"]
    world.tick(12_000)
    assert taken(world) == ["run/04:a", "run/05:a"]
    world.check()


def test_a_faster_rate_counts_at_once(world: World) -> None:
    define(world, rate="1/day")
    start(world, 3)
    assert len(taken(world)) == 1
    define(world, rate="10/s")
    world.tick(100)
    assert taken(world) == ["run/01:a"]
    world.check()


def test_a_slower_rate_gives_no_second_burst(world: World) -> None:
    """As many as have begun ahead of the rate have done so by the new numbers too."""
    define(world, rate="60/min", burst=3)
    start(world, 8)
    assert len(taken(world)) == 3
    define(world, rate="1/min", burst=3)
    assert taken(world) == []
    world.tick(59_999)
    assert taken(world) == []
    world.tick(1)
    assert taken(world) == ["run/03:a"]
    define(world, rate="1/min", burst=4)
    assert taken(world) == ["run/04:a"]
    world.check()


def test_numbers_that_are_given_again_change_nothing(world: World) -> None:
    define(world, rate="10/min")
    start(world, 2)
    taken(world)
    world.tick(4_000)
    define(world, rate="10/min")
    world.tick(1_999)
    assert taken(world) == []
    world.tick(1)
    assert taken(world) == ["run/01:a"]


def test_what_has_begun_under_a_pattern_counts_for_numbers_of_its_own(world: World) -> None:
    define(world, "a*", rate="60/min", burst=3)
    start(world, 5)
    assert len(taken(world)) == 3
    define(world, rate="1/min", burst=3)
    assert taken(world) == []
    world.ok(c.DeleteLimit(name="api"))
    assert taken(world) == []
    world.tick(1_000)
    assert taken(world) == ["run/03:a"]


def test_a_faster_rate_of_a_pattern_counts_at_once(world: World) -> None:
    define(world, "a*", rate="1/day")
    start(world, 3)
    assert len(taken(world)) == 1
    define(world, "a*", rate="10/s")
    world.tick()
    world.tick(100)
    assert taken(world) == ["run/01:a"]
    world.check()


def test_a_slower_rate_of_a_pattern_gives_no_second_burst(world: World) -> None:
    """Each name under it remembers how many have begun, not only until when that was paid."""
    define(world, "a*", rate="60/min", burst=3)
    start(world, 8)
    assert len(taken(world)) == 3
    define(world, "a*", rate="1/min", burst=3)
    world.tick()
    assert taken(world) == []
    world.tick(59_999)
    assert taken(world) == []
    world.tick(1)
    assert taken(world) == ["run/03:a"]
    world.check()


@pytest.mark.parametrize("name", ["api", "a*"])
def test_a_change_there_and_back_gives_no_second_burst(world: World, name: str) -> None:
    """What has begun counts for the third numbers as it did for the first."""
    define(world, name, rate="60/min", burst=5)
    start(world, 12)
    assert len(taken(world)) == 5
    define(world, name, rate="1/min", burst=1)
    world.tick()
    define(world, name, rate="60/min", burst=5)
    world.tick()
    assert taken(world) == []
    world.tick(1_000)
    assert len(taken(world)) == 1
    world.check()


def test_a_limit_that_is_deleted_and_defined_again_gives_no_second_burst(world: World) -> None:
    define(world, rate="10/s", burst=4)
    start(world, 9)
    assert len(taken(world)) == 4
    world.ok(c.DeleteLimit(name="api"))
    define(world, rate="4/min", burst=4)
    assert taken(world) == []
    world.check()


def test_a_smaller_burst_makes_nobody_wait_longer_than_by_the_new_numbers(world: World) -> None:
    """A hundred that began at once do not stand for ten minutes."""
    define(world, rate="100/s", burst=100)
    start(world, 102)
    assert len(taken(world, 200)) == 100
    define(world, rate="10/min", burst=1)
    world.tick(5_999)
    assert taken(world) == []
    world.tick(1)
    assert len(taken(world)) == 1
    world.check()


def test_a_rate_and_a_concurrency_count_both(world: World) -> None:
    define(world, rate="1/s", concurrency=1)
    start(world, 3)
    assert taken(world) == ["run/00:a"]
    world.tick(5_000)
    assert taken(world) == []
    world.ok(r.finish("run/00:a"))
    assert taken(world) == ["run/01:a"]
    world.ok(r.finish("run/01:a"))
    assert taken(world) == []
    world.tick(1_000)
    assert taken(world) == ["run/02:a"]
    world.check()


def test_nobody_ticks_for_a_rate_that_nobody_waits_for(world: World) -> None:
    define(world, rate="1/s")
    start(world, 1)
    assert taken(world) == ["run/00:a"]
    assert world.dump().limits["api"].next_at is None


def test_the_oldest_that_may_begin_is_found_behind_those_that_lost_their_permits(
    world: World,
) -> None:
    """They were let in, and are more than are loaded; only then is the eighth turn its own."""
    define(world, concurrency=2)
    start(world, 2, priority=-1)
    define(world, concurrency=0)
    for at, priority in ((2, -1), (3, 0), (4, 0), (5, 0)):
        world.ok(limited(f"run/{at:02}", priority=priority))
        world.clock.advance(1)
    first, second = world.ok(r.take(1)), world.ok(r.take(1))
    assert [each.claims[0].task.id for each in (first, second)] == ["run/03:a", "run/04:a"]
    assert (first.again, second.again) == (True, False)
    assert second.oldest_place.ready_at == 2


# --- two limits ----------------------------------------------------------------------------


def test_a_task_with_two_limits_takes_both_or_none(world: World) -> None:
    define(world, "a", concurrency=1)
    define(world, "b", concurrency=1)
    start(world, 1, "b")
    start(world, 1, "a", "b", first=1)
    start(world, 1, "a", first=2)
    first = world.ok(r.take(10))
    assert first.again  # the second was turned back, and the third was let in for it
    assert [claim.task.id for claim in first.claims if claim.task.kind == "node"] == ["run/00:a"]
    assert taken(world) == ["run/02:a"]
    assert (standing(world, "a").held, standing(world, "b").held) == (1, 1)
    world.check()
    world.ok(r.finish("run/00:a"))
    assert taken(world) == []
    world.ok(r.finish("run/02:a"))
    assert taken(world) == ["run/01:a"]
    assert (standing(world, "a").held, standing(world, "b").held) == (1, 1)
    world.check()


@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_one_with_two_limits_does_not_pass_those_beyond_what_was_loaded(world: World) -> None:
    """They wait behind the gate of the other limit, and many before them do not need both."""
    define(world, "a", concurrency=1)
    define(world, "b", concurrency=1)
    start(world, 1, "a", "b", priority=1)
    assert taken(world) == ["run/00:a"]
    start(world, 3, "b", first=1)
    start(world, 1, "a", "b", first=4, priority=1)
    define(world, "a", concurrency=2)  # so that it is shown to lack a permit of b
    define(world, "a", concurrency=1)
    assert world.task("run/04:a").gate == "b"
    world.ok(c.FailTask(id="run/00:a", version=1, retry_in=0))
    world.tick()
    began = list[str]()
    for _ in range(5):
        began += taken(world, 1)
        world.ok(r.finish(began[-1], version=world.task(began[-1]).version))
    assert began == ["run/01:a", "run/02:a", "run/03:a", "run/04:a", "run/00:a"]
    world.check()


def test_who_came_back_is_let_in_though_others_were_in_front_of_it(world: World) -> None:
    """Only the first of the lane is loaded, and that one lacks another permit: a tick looks on."""
    define(world, "api", concurrency=1)
    define(world, "db", concurrency=4)
    for at, limits in enumerate([("db", "api"), ("db",), ("db",), ("db",)]):
        world.tick(1)
        world.ok(limited(f"run/{at}", *limits))
    assert taken(world, 2) == ["run/0:a", "run/1:a"]
    for run_id in ("run/x", "run/y"):
        world.ok(limited(run_id, "db", name="h"))
    others = taken(world, 2, pid="q", names=("h",))
    define(world, "db", concurrency=2)
    back = tuple(c.Released(f"run/{at}:a", 1, ready_at=1 + at, begun=False) for at in (0, 1))
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=back))
    define(world, "api", concurrency=0)
    world.ok(r.finish(others[0]))
    world.tick()
    assert taken(world, 1) == ["run/1:a"]
    world.check()


# --- patterns ------------------------------------------------------------------------------


def test_a_pattern_counts_for_each_name_that_begins_so(world: World) -> None:
    define(world, "tenant-*", concurrency=1)
    define(world, "tenant-vip", concurrency=2)
    for at, tenant in enumerate(["a", "a", "b", "vip", "vip", "vip"]):
        world.ok(limited(f"run/{at}", f"tenant-{tenant}"))
    assert taken(world) == ["run/0:a", "run/2:a", "run/3:a", "run/4:a"]
    assert standing(world, "tenant-a").rule == "tenant-*"
    world.check()
    world.ok(r.finish("run/2:a"))
    assert "tenant-b" not in world.dump().limits  # nothing of it is in use


def test_a_pattern_that_is_changed_counts_for_those_that_wait(world: World) -> None:
    define(world, "t*", concurrency=1)
    for at in range(4):
        world.ok(limited(f"run/{at}", "t-1"))
    for at in range(4, 8):
        world.ok(limited(f"run/{at}", "t-2"))
    assert taken(world) == ["run/0:a", "run/4:a"]
    define(world, "t*", concurrency=2)
    world.tick()
    assert taken(world) == ["run/1:a", "run/5:a"]
    world.ok(c.DeleteLimit(name="t*"))
    world.tick()
    world.ok(r.finish("run/0:a"))
    assert taken(world) == []
    assert "t*" not in world.dump().limits
    world.check()


def test_a_pattern_defined_later_lets_those_in_that_wait(world: World) -> None:
    for at in range(250):
        world.ok(limited(f"run/{at:03}", f"t-{at:03}"))
    assert taken(world) == []
    define(world, "t-*", concurrency=1)
    world.tick()
    assert len(taken(world, 1_000)) == 250
    world.check()


# --- parked bodies -------------------------------------------------------------------------


def park(world: World, task_id: str, version: int = 1) -> None:
    world.ok(
        c.AnnotateTask(
            id=task_id,
            version=version,
            sub_status="Deferred",
            waiting_on='{"kind":"sleep","sentence":"sleeps"}',
        )
    )


def regain(world: World, task_id: str, version: int = 1) -> Any:
    command = c.RegainPermits(id=task_id, version=version, place=world.now)
    return world.ok(command).promise


def test_a_parked_body_gives_its_permit_up_and_gets_it_back_first(world: World) -> None:
    define(world, concurrency=1)
    start(world, 3)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == ["run/01:a"]
    told = regain(world, "run/00:a")
    assert told is not None
    world.check()
    world.ok(r.finish("run/01:a"))
    assert not world.promise(told.id).is_pending
    assert list(standing(world).holders) == ["run/00:a"]
    assert taken(world) == []
    world.check()
    world.ok(c.AnnotateTask(id="run/00:a", version=1))
    world.ok(r.finish("run/00:a"))
    assert taken(world) == ["run/02:a"]
    world.check()


def test_a_parked_body_gets_a_free_permit_back_at_once(world: World) -> None:
    """Whatever the rate says: it has begun already."""
    define(world, concurrency=1, rate="1/day")
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert standing(world).held == 0
    assert regain(world, "run/00:a") is None
    assert standing(world).held == 1
    slot = '{"kind":"slot","sentence":"waits for a slot"}'
    world.ok(c.AnnotateTask(id="run/00:a", version=1, sub_status="Deferred", waiting_on=slot))
    assert standing(world).held == 1
    world.check()


def test_a_parked_body_keeps_its_permit_if_it_counts(world: World) -> None:
    define(world, concurrency=1, count_parked=True)
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == []
    assert regain(world, "run/00:a") is None
    world.check()


@pytest.mark.parametrize("name", ["api", "a*"])
def test_parked_bodies_that_no_longer_count_give_their_permits_up(world: World, name: str) -> None:
    define(world, name, concurrency=1, count_parked=True)
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    define(world, name, concurrency=1)
    define(world, name, concurrency=1, rate="9/s")  # before time has passed
    world.tick()
    assert standing(world).holders == ()
    assert taken(world) == ["run/01:a"]
    assert regain(world, "run/00:a") is not None
    world.check()


@pytest.mark.parametrize("name", ["api", "a*"])
def test_no_more_run_than_allowed_when_parked_bodies_count(world: World, name: str) -> None:
    """Those parked already gave their permits up: they get one before they go on, as before."""
    define(world, name, concurrency=1)
    start(world, 3)
    for task_id in ("run/00:a", "run/01:a"):
        assert taken(world, 1) == [task_id]
        park(world, task_id)
    assert taken(world, 1) == ["run/02:a"]
    define(world, name, concurrency=1, count_parked=True)
    world.tick()
    assert standing(world).holders == ("run/02:a",)
    told = regain(world, "run/00:a")
    assert told is not None
    world.ok(r.finish("run/02:a"))
    assert not world.promise(told.id).is_pending
    world.ok(c.AnnotateTask(id="run/00:a", version=1))
    park(world, "run/00:a")
    assert standing(world).holders == ("run/00:a",)
    assert regain(world, "run/01:a") is not None
    world.check()


def test_a_body_in_line_stays_there_when_parked_ones_count(world: World) -> None:
    """It is about to run: with a permit that is not free, too many would."""
    define(world, concurrency=1)
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == ["run/01:a"]
    told = regain(world, "run/00:a")
    define(world, concurrency=1, count_parked=True)
    world.tick()
    assert standing(world).holders == ("run/01:a",)
    assert world.promise(told.id).is_pending
    world.check()


def test_many_parked_bodies_give_their_permits_up_by_ticks(world: World) -> None:
    """A few at a time, and each of them."""
    count = SPREAD + 1
    define(world, concurrency=count, count_parked=True)
    start(world, count)
    held = taken(world, 1_000)
    assert len(held) == count
    for task_id in held:
        park(world, task_id)
    define(world, concurrency=count)
    world.tick()
    assert standing(world).held == 0
    assert world.dump().limits["api"].next_at is None
    world.check()


def test_a_body_that_waits_for_its_permit_is_not_forgotten_when_it_ends(world: World) -> None:
    """The promise that it waits for ends with it."""
    define(world, concurrency=1)
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == ["run/01:a"]
    told = regain(world, "run/00:a")
    world.ok(c.CancelPromise(id="run/00:a"))
    assert not world.promise(told.id).is_pending
    world.check()


def test_a_body_that_goes_on_without_asking_is_counted(world: World) -> None:
    define(world, concurrency=1)
    start(world, 3)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == ["run/01:a"]
    world.ok(c.AnnotateTask(id="run/00:a", version=1))
    assert standing(world).held == 2
    world.ok(r.finish("run/01:a"))
    assert taken(world) == []
    world.check()


def test_why_says_that_a_parked_body_waits_for_a_permit(world: World) -> None:
    define(world, concurrency=1)
    start(world, 2)
    assert taken(world) == ["run/00:a"]
    park(world, "run/00:a")
    assert taken(world) == ["run/01:a"]
    regain(world, "run/00:a")
    about = world.ok(ExplainPromise(id="run/00:a"))
    assert about.limit.name == "api"
    assert list(about.limit.holders) == ["run/01:a"]
    waiting = waiting_of(about.promise, about.task, world.now)
    assert waiting is not None
    assert (waiting.form, waiting.kind) == ("parked", "limit")


class OnlyByName(dict[str, Limit | None]):
    """Limits that nobody may look at one by one."""

    def items(self) -> NoReturn:
        raise AssertionError("all limits of the step were looked at for one")


def test_whose_numbers_count_is_found_without_looking_at_all_limits() -> None:
    """A run has ten thousand nodes, each with limits of its own: that was 4 s for everybody."""
    draft = Draft(rows=Rows(Settings(), next_after), now=0, limits=OnlyByName())
    draft.rows.known_limits.update(("api-a", "api-*", "other"))
    draft.put_limit(Limit("api-*", defined=True, pattern=True, concurrency=2))
    found = draft.rule("api-a")
    assert found is not None
    assert found.name == "api-*"
    draft.put_limit(Limit("api-a", defined=True, concurrency=3))
    assert draft.rule("api-a") == draft.limit("api-a")
    assert draft.rule("other") is None
    draft.drop_limit("api-*")
    draft.drop_limit("api-a")
    assert draft.rule("api-a") is None
