"""C1 to C11 of the protocol's conformance questions: each fails when it is answered wrongly.

`docs/conformance.md` lists them; C12 is in tests/engine/test_debug.py. C1 to C3 are answered by
the profile; all others are asked of both, with external promises of one origin.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core import ticks
from layby.core.model import Listener, Message
from layby.core.settings import Settings
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

SOON, LATER = 1_000, 9_000
PROFILES = {"compat": Settings(), "strict": Settings.strict()}


@pytest.fixture(params=PROFILES)
def settings(request: pytest.FixtureRequest) -> Settings:
    return PROFILES[request.param]


@pytest.fixture
def world_options(settings: Settings) -> dict[str, Any]:
    return {"settings": settings}


@pytest.fixture(params=BACKENDS)
def compat(request: pytest.FixtureRequest):
    with World(request.param) as world:
        yield world


@pytest.fixture(params=BACKENDS)
def strict(request: pytest.FixtureRequest):
    with World(request.param, settings=Settings.strict()) as world:
        yield world


@pytest.mark.parametrize("tags", [{}, {"timer": "true"}, {"target": r.OTHER}, {"external": "true"}])
def test_c1_every_pending_promise_has_an_enforced_deadline(compat: World, tags: dict) -> None:
    """Whatever its tags: the sweep settles it, at its deadline and not before."""
    check_deadline(compat, tags)


@pytest.mark.parametrize("tags", [{"timer": "true"}, {"target": r.OTHER}, {"external": "true"}])
def test_c1_strict_external_promises_have_an_enforced_deadline(strict: World, tags: dict) -> None:
    """With a target, a timer or the tag: the same."""
    check_deadline(strict, tags)


def check_deadline(world: World, tags: dict) -> None:
    world.ok(r.promise("x", SOON, **tags))
    assert promise_timeouts(world) == [{"id": "x", "timeout": SOON}]
    world.tick(SOON - 1)
    assert world.promise("x").is_pending
    world.tick(1)
    settled = world.promise("x")
    assert settled.settled_at == SOON
    assert settled.state == ("resolved" if "timer" in tags else "rejected_timedout")


@pytest.mark.parametrize("tags", [{}, {"external": "yes"}, {"timer": "1"}, {"scope": "global"}])
def test_c1_strict_other_deadlines_are_not_enforced(strict: World, tags: dict) -> None:
    """Nothing is armed and nothing is written; the promise reads as settled all the same."""
    strict.ok(r.promise("x", SOON, **tags))
    assert promise_timeouts(strict) == []
    strict.tick(SOON)
    assert strict.store.dump().promises["x"].is_pending
    assert strict.ok(c.GetPromise(id="x")).promise.settled_at == SOON


def promise_timeouts(world: World) -> list[dict]:
    return world.ask("debug.snap", {}, world.now)[1]["promiseTimeouts"]


def test_c2_a_callback_may_attach_to_any_promise(compat: World) -> None:
    """It is discharged, because the deadline of the promise is enforced."""
    compat.ok(r.promise("t:plain", SOON))
    compat.ok(r.claimed("t"))
    compat.ok(r.suspend("t", 1, "t:plain"))
    compat.tick(SOON)
    task = compat.task("t")
    assert (task.state, task.resumes) == ("pending", ("t:plain",))


def test_c2_strict_no_callback_attaches_to_an_internal_promise(strict: World) -> None:
    """Neither alone nor in a suspend; an external one beside it takes both."""
    strict.ok(r.promise("t:plain", SOON))
    strict.ok(r.promise("t:open", SOON, external="true"))
    strict.ok(r.claimed("t"))
    assert strict.send(r.callback("t:plain", "t")).status == 422
    assert strict.send(r.suspend("t", 1, "t:plain", "t:open")).status == 422
    assert strict.dump().waits == {}
    strict.ok(r.callback("t:open", "t"))
    strict.ok(r.suspend("t", 1, "t:open"))
    strict.tick(SOON)
    assert strict.task("t").resumes == ("t:open",)


def test_c3_a_listener_may_attach_to_any_promise(compat: World) -> None:
    """It is told, for the same reason."""
    compat.ok(r.promise("plain", SOON))
    compat.ok(c.RegisterListener(awaited="plain", address=r.WORKER))
    compat.tick(SOON)
    assert ("plain", "unblock", r.WORKER) in compat.dump().messages


def test_c3_strict_no_listener_attaches_to_an_internal_promise(strict: World) -> None:
    """An external one takes it and tells it."""
    strict.ok(r.promise("plain", SOON))
    strict.ok(r.promise("open", SOON, external="true"))
    assert strict.send(c.RegisterListener(awaited="plain", address=r.WORKER)).status == 422
    strict.ok(c.RegisterListener(awaited="open", address=r.WORKER))
    strict.tick(SOON)
    assert [key[0] for key in strict.dump().messages] == ["open"]


def test_c4_create_halt_and_continue_look_at_the_deadline(world: World) -> None:
    """A task past its deadline is fulfilled for them, though nothing has swept it yet."""
    world.ok(r.target("t", SOON))
    world.ok(r.target("h", SOON))
    world.ok(c.HaltTask(id="h"))
    world.clock.advance(SOON)
    claim = world.ok(r.claimed("t"))
    assert (claim.task.state, claim.promise.state) == ("fulfilled", "rejected_timedout")
    assert claim.task.pid is None
    assert world.send(c.HaltTask(id="t")).status == 409
    assert world.send(c.ContinueTask(id="h")).status == 409
    assert world.send(r.acquire("t", 0)).status == 409


def test_c5_lease_expiry_dispatches_nothing_for_a_dead_promise(world: World) -> None:
    """A lease and a retry that are due with the deadline send no `execute`."""
    world.ok(r.claimed("leased", SOON, ttl=SOON))
    world.ok(r.target("delayed", SOON, delay=str(SOON - 1)))
    world.send(ticks.ExpireLeases(ids=("leased",)), SOON)
    world.send(ticks.RetryTasks(ids=("delayed",)), SOON)
    assert world.dump().messages == {}
    assert world.task("leased").state == "acquired"
    world.tick(SOON)
    assert {t.state for t in world.dump().tasks.values()} == {"fulfilled"}
    assert world.dump().messages == {}


def test_c5_take_hands_out_nothing_for_a_dead_promise(world: World) -> None:
    """Nor does a take, between the deadline and its sweep."""
    world.ok(r.run(timeout=SOON, a=""))
    world.clock.advance(SOON)
    assert world.ok(r.take()).claims == []


def test_c6_a_settling_promise_skips_an_awaiter_past_its_deadline(world: World) -> None:
    """The point every implementation missed: the awaiter is logically fulfilled."""
    world.ok(r.promise("parent:child", LATER, external="true"))
    world.ok(r.claimed("parent", SOON))
    world.ok(r.suspend("parent", 1, "parent:child"))
    world.clock.advance(SOON)
    world.ok(r.settle("parent:child"))
    state = world.dump()
    assert state.tasks["parent"].state == "suspended"
    assert state.messages == {}
    world.tick()
    assert world.task("parent").state == "fulfilled"
    assert world.dump().messages == {}


def test_c6_a_parent_that_expires_with_its_child_is_not_resumed(world: World) -> None:
    """All expired promises are written before anybody is resumed."""
    for parent, child in (("p:1", "p:0"), ("p:2", "p:3")):
        world.ok(r.promise(child, SOON, timer="true"))
        world.ok(r.claimed(parent, SOON))
        world.ok(r.suspend(parent, 1, child))
    world.tick(SOON)
    assert {task.state for task in world.dump().tasks.values()} == {"fulfilled"}
    assert world.dump().messages == {}


def test_c7_heartbeat_renews_no_lease_of_a_dead_promise(world: World) -> None:
    """Neither by name nor by the empty list."""
    world.ok(r.claimed("t", SOON, ttl=SOON))
    world.clock.advance(SOON)
    world.ok(r.beat("p", ("t", 1)))
    world.ok(r.beat("p"))
    assert world.task("t").wake_at == SOON


def test_c8_every_response_shows_the_projected_view(world: World) -> None:
    """Reads, searches, preload and refusals agree before and after the sweep."""
    world.ok(r.claimed("t", LATER, branch="t"))
    world.ok(r.target("t:x", SOON, branch="t"))
    world.clock.advance(SOON)

    def seen() -> list[Any]:
        found = world.ok(q.SearchPromises(state="rejected_timedout")).promises
        fulfilled = world.ok(q.SearchTasks(state="fulfilled")).tasks
        alive = world.ok(q.SearchPromises(state="pending")).promises
        redirect = world.send(r.suspend("t", 1, "t:x"))
        return [
            world.ok(c.GetPromise(id="t:x")).promise,
            world.ok(c.GetTask(id="t:x")).task,
            world.ok(r.promise("t:x")).promise,
            world.ok(r.settle("t:x")).promise,
            [each.id for each in found],
            [each.id for each in fulfilled],
            [each.id for each in alive],
            (redirect.status, redirect.data.preload),
        ]

    before = seen()
    world.tick()
    assert seen() == before
    assert before[0].state == "rejected_timedout"
    assert before[4:7] == [["t:x"], ["t:x"], ["t"]]
    assert before[7][0] == 300


def test_c9_no_version_is_dispatched_that_was_never_issued(world: World) -> None:
    """Every `execute` carries the version a claim must present, through the whole life."""
    world.ok(r.promise("t:x", external="true"))
    world.ok(r.target("t"))
    key = ("t", "execute", r.OTHER)
    assert world.dump().messages[key] == Message("t", "execute", r.OTHER, 0)
    world.ok(r.acquire("t", 0))
    assert key not in world.dump().messages
    world.ok(c.ReleaseTask(id="t", version=1))
    assert world.dump().messages[key].version == 1
    world.ok(c.HaltTask(id="t"))
    assert key not in world.dump().messages
    world.ok(c.ContinueTask(id="t"))
    assert world.dump().messages[key].version == 1
    world.ok(r.acquire("t", 1))
    world.ok(r.suspend("t", 2, "t:x"))
    assert key not in world.dump().messages
    world.ok(r.settle("t:x"))
    assert world.dump().messages[key].version == 2
    world.ok(r.settle("t"))
    assert key not in world.dump().messages


def test_c10_two_workers_never_hold_a_valid_claim(world: World) -> None:
    """Of everything the loser can say with its old version, nothing succeeds."""
    world.ok(r.claimed("t", ttl=SOON))
    world.ok(r.promise("t:x", external="true"))
    world.tick(SOON)
    world.ok(r.acquire("t", 1, pid="q"))
    stale: list[c.Command] = [
        c.ReleaseTask(id="t", version=1),
        r.fulfill("t", 1),
        r.suspend("t", 1, "t:x"),
        c.FenceTask(id="t", version=1, inner=r.promise("y")),
        r.acquire("t", 1),
        r.claimed("t"),
        r.finish("t", 1),
        r.fail("t", 1),
        c.AnnotateTask(id="t", version=1),
    ]
    lease = world.task("t").wake_at
    assert [world.send(each).status for each in stale] == [409] * len(stale)
    world.ok(r.beat("p", ("t", 1)))
    assert world.task("t").wake_at == lease
    world.ok(r.fulfill("t", 2))


def test_c10_two_takes_in_one_batch_share_nothing(world: World) -> None:
    """One ready task goes to one of two workers that ask together."""
    world.ok(r.run(a=""))
    replies = world.batch([(r.take(1, pid="p"), 0), (r.take(1, pid="q"), 0)])
    assert [len(reply.data.claims) for reply in replies] == [1, 0]


def test_c11_a_settled_promise_takes_no_callback_or_listener(world: World) -> None:
    """Nothing is stored; the caller reads the record."""
    world.ok(r.promise("t:x", external="true"))
    world.ok(r.settle("t:x"))
    world.ok(r.target("t"))
    listened = world.ok(c.RegisterListener(awaited="t:x", address=r.WORKER))
    called = world.ok(r.callback("t:x", "t"))
    state = world.dump()
    assert listened.promise == called.promise == state.promises["t:x"]
    assert state.listeners == set()
    assert state.waits == {}


def test_c11_holds_for_a_promise_past_its_deadline(world: World) -> None:
    """Also when nothing has swept it yet."""
    world.ok(r.promise("t:x", SOON, external="true"))
    world.ok(r.target("t"))
    world.clock.advance(SOON)
    world.ok(c.RegisterListener(awaited="t:x", address=r.WORKER))
    world.ok(r.callback("t:x", "t"))
    state = world.dump()
    assert Listener("t:x", r.WORKER) not in state.listeners
    assert state.waits == {}


def test_the_page_names_tests_that_exist() -> None:
    """And every test here stands on the page."""
    page = Path(__file__).parents[2].joinpath("docs/conformance.md").read_text()
    named = set(re.findall(r"`(test_c\d+_\w+)`", page))
    here = {name for name in globals() if re.match(r"test_c\d+_", name)}
    assert named - here == {"test_c12_the_debug_surface_is_off_unless_enabled"}
    assert here <= named
