"""The strict profile: what it refuses and how that is worded, and what of ours it leaves alone."""

from typing import Any, get_args

import msgspec
import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core.fields import Tags
from layby.core.model import NEVER, Listener
from layby.core.settings import Settings
from layby.wire.decode import KINDS
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

COMPAT, STRICT = Settings(), Settings.strict()
DOT, COLON = Settings(strict_lineage="dot"), Settings(strict_lineage="colon")
EXTERNAL = Settings(strict_external=True)
SOON = 1_000


@pytest.fixture
def world_options() -> dict[str, Any]:
    return {"settings": STRICT}


def fenced(inner: c.CreatePromise) -> c.FenceTask:
    return c.FenceTask(id="t", version=1, inner=inner)


def schedule(schedule_id: str, **tags: str) -> c.CreateSchedule:
    named = {f"resonate:{name}": text for name, text in ({"target": r.OTHER} | tags).items()}
    return c.CreateSchedule(
        id=schedule_id, cron="* * * * *", promise_id="x", promise_timeout=9, promise_tags=named
    )


def refused(settings: Settings, command: c.Command) -> str | None:
    """The text of a 400 in a world where only task `t` exists; None when it is no 400."""
    with World(settings=settings) as world:
        world.ok(r.claimed("t"))
        before = world.dump()
        reply = world.send(command)
        assert (reply.status == 400) <= (world.dump() == before)
        return str(reply.data) if reply.status == 400 else None


LINEAGE: list[tuple[c.Command, str | None, str | None]] = [
    # a command, and how the dot and the colon rule refuse it
    (r.promise("a", origin="a", branch="a", parent="a", prefix="a"), None, None),
    (r.promise("a.1", origin="a"), None, "must be 'a' or begin with 'a:', as resonate:origin"),
    (r.promise("a:1", origin="a"), "must be 'a' or begin with 'a.', as resonate:origin", None),
    (r.promise("ab", branch="a"), "begin with 'a.', as resonate:branch", "begin with 'a:'"),
    (r.promise("a:1.2", parent="a:1"), None, None),
    (r.promise("a:1:2", parent="a:1"), "begin with 'a:1.', as resonate:parent", "'a:1.'"),
    (r.promise("a.b", origin="a.b"), "resonate:origin must not contain '.'", None),
    (r.promise("a:b", origin="a:b"), None, "resonate:origin must not contain ':'"),
    (r.promise("a", prefix="a.b"), "resonate:prefix must not contain '.'", None),
    (r.promise("a", prefix="a:b"), None, "resonate:prefix must not contain ':'"),
    (r.claimed("b", origin="a"), "begin with 'a.'", "begin with 'a:'"),
    (fenced(r.promise("b", origin="a")), "begin with 'a.'", "begin with 'a:'"),
    (fenced(r.promise("b")), None, None),
    (c.FenceTask(id="t", version=1, inner=r.settle("b")), None, None),
    (schedule("a.b"), "Schedule ID must not contain '.'", None),
    (schedule("a:b"), None, "Schedule ID must not contain ':'"),
    (schedule("s", origin="q", parent="a.b:c"), None, None),
    (r.callback("a.1", "a"), None, "(origin 'a') and awaited (origin 'a.1') must share"),
    (r.callback("a:1", "a"), "(origin 'a') and awaited (origin 'a:1') must share", None),
    (r.callback("a:1.2", "a:2"), "must share an origin", None),
    (r.suspend("t", 1, "t.1"), None, "(origin 't') and awaited (origin 't.1') must share"),
    (r.suspend("t", 1, "t:1"), "(origin 't') and awaited (origin 't:1') must share", None),
    (r.beat("p", ("t", 1), ("u", 1)), None, None),
    (r.beat("p"), None, None),
]


@pytest.mark.parametrize(("command", "dot", "colon"), LINEAGE)
def test_lineage_is_checked_by_the_chosen_rule(
    command: c.Command, dot: str | None, colon: str | None
) -> None:
    """A 400 that says which id and what it must be; without the rule nothing is refused."""
    for settings, why in ((DOT, dot), (COLON, colon), (STRICT, colon)):
        text = refused(settings, command)
        assert (why is None) == (text is None), text
        assert (why or "") in (text or "")
    assert refused(COMPAT, command) is None
    assert refused(EXTERNAL, command) is None


BOTH: dict[str, Any] = {"timer": "true", "target": r.OTHER}
NO_TIMER = "resonate:timer and resonate:target exclude each other: a timer has no task"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (r.promise("x", **BOTH), NO_TIMER),
        (r.claimed("x", timer="true"), NO_TIMER),
        (fenced(r.promise("x", **BOTH)), NO_TIMER),
        (schedule("s", timer="true"), NO_TIMER),
        (r.suspend("t", 1, "t:1", "t:2", "t:1"), "Awaited promise 't:1' is named twice"),
        (r.promise("x", timer="false", target=r.OTHER), None),
        (r.promise("x", timer="true", external="true"), None),
        (fenced(r.promise("x", timer="true")), None),
        (c.FenceTask(id="t", version=1, inner=r.settle("x")), None),
        (r.suspend("t", 1, "t:1", "t:2"), None),
    ],
)
def test_a_promise_is_one_kind_of_thing_and_is_awaited_once(
    command: c.Command, why: str | None
) -> None:
    """A 400 under strict external, whatever the lineage; nothing of it otherwise."""
    assert refused(EXTERNAL, command) == refused(STRICT, command) == why
    assert refused(COMPAT, command) is None
    assert refused(COLON, command) is None


def test_all_that_is_wrong_is_told_together() -> None:
    """Of both switches, joined by `; `."""
    told = refused(STRICT, r.promise("x", origin="a:b", **BOTH)) or ""
    assert told.split("; ") == [
        "resonate:origin must not contain ':'",
        "Promise ID must be 'a:b' or begin with 'a:b.', as resonate:origin says",
        NO_TIMER,
    ]


def test_a_malformed_request_is_refused_as_in_compat() -> None:
    """What is wrong in any profile is told first, and alone."""
    assert refused(STRICT, r.promise("", -1, origin="a:b")) == (
        "Promise ID is required; timeoutAt must be non-negative"
    )


# --- internal promises -----------------------------------------------------------------------


def test_nobody_may_wait_for_an_internal_promise(world: World) -> None:
    """422 with the remedy, by any door, pending or settled; what is missing is told first."""
    world.ok(r.claimed("t"))
    world.ok(r.promise("t:1", SOON))
    world.ok(r.promise("t:2", SOON, external="true"))
    before = world.dump()
    doors = [
        r.callback("t:1", "t"),
        c.RegisterListener(awaited="t:1", address=r.WORKER),
        r.suspend("t", 1, "t:2", "t:1"),
    ]
    for door in (*doors, c.WatchPromise(id="t:1")):
        reply = world.send(door)
        assert (reply.status, str(reply.data).partition(":")[0]) == (422, "Awaited promise 't")
        assert "resonate:external=true" in str(reply.data)
    assert world.send(r.suspend("t", 1, "t:1", "t:no")).data == "Awaited promise not found"
    assert world.send(r.callback("t:1", "t:no")).data == "Awaiter promise not found"
    assert world.send(r.suspend("t", 7, "t:1")).status == 409
    assert world.dump() == before
    world.ok(r.settle("t:1"))
    assert [world.send(door).status for door in doors] == [422] * 3


def test_a_settled_internal_promise_can_be_read_by_watching(world: World) -> None:
    """There is nothing left to wait for: neither settled nor past its deadline."""
    world.ok(r.promise("x", SOON))
    world.ok(r.promise("y", SOON))
    world.ok(r.settle("y"))
    world.clock.advance(SOON)
    found = [world.ok(c.WatchPromise(id=each)).promise.state for each in ("x", "y")]
    assert found == ["rejected_timedout", "resolved"]
    assert world.send(c.WatchPromise(id="no")).status == 404


def test_an_internal_deadline_is_never_armed(world: World) -> None:
    """No timeout in the snapshot, nothing due, no reason to wake up, and no regress."""
    world.ok(r.promise("x", SOON))
    world.ok(r.promise("late", 0))
    assert world.store.earliest() > SOON
    world.clock.advance(SOON)
    assert world.store.due(world.now, 10) == []
    commits = world.engine.commits
    world.tick()
    assert world.engine.commits == commits
    shown = world.ask("debug.snap", {}, SOON)[1]
    assert shown["promiseTimeouts"] == []
    assert {each["id"]: each["settledAt"] for each in shown["promises"]} == {"x": SOON, "late": 0}
    found = world.ok(q.SearchPromises(state="rejected_timedout")).promises
    assert [each.id for each in found] == ["late", "x"]
    assert world.ok(q.SearchPromises(state="pending")).promises == []
    world.check()


def test_the_engine_sleeps_through_internal_deadlines() -> None:
    """It runs by itself here: a deadline that nobody enforces must not keep it busy."""
    for backend in BACKENDS:
        with World(backend, settings=STRICT, paused=False) as world:
            world.ok(r.promise("x", SOON))
            assert world.engine.patience() > SOON / 1000
            world.clock.advance(SOON + 1)
            world.engine.pump()
            assert world.engine.patience() > 1


def test_a_promise_stays_what_it_was_born_as() -> None:
    """The profile may change over a store: a wait that was accepted is still discharged."""
    with World(settings=STRICT) as strict, World() as compat:
        strict.ok(r.promise("t:1", SOON))
        compat.ok(r.promise("t:1", SOON))
        compat.ok(r.claimed("t"))
        compat.ok(r.suspend("t", 1, "t:1"))
        stores: list[Any] = [strict.store, compat.store]
        stores[0].state, stores[1].state = compat.store.dump(), strict.store.dump()
        strict.ok(c.RegisterListener(awaited="t:1", address=r.WORKER))
        strict.tick(SOON)
        assert strict.task("t").state == "pending"
        assert compat.send(c.RegisterListener(awaited="t:1", address=r.WORKER)).status == 422


# --- what is ours ----------------------------------------------------------------------------


def test_placeholders_are_exempt(world: World) -> None:
    """Whoever waits for an id made it: a watch, a listener or a task of its tree."""
    placeholder = world.ok(c.EnsurePromise(id="t:e")).promise
    assert not placeholder.internal
    world.ok(c.RegisterListener(awaited="t:e", address=r.WORKER))
    world.ok(r.claimed("t"))
    world.ok(r.suspend("t", 1, "t:e"))
    world.ok(c.ResolvePromise(id="t:e"))
    assert world.task("t").state == "pending"
    assert ("t:e", "unblock", r.WORKER) in world.dump().messages
    world.check()


@pytest.mark.parametrize("create", [r.promise("t:e", SOON), fenced(r.promise("t:e", SOON))])
def test_an_adopted_placeholder_is_external(world: World, create: c.Command) -> None:
    """Its waits stay, so its deadline is enforced, tags or no tags."""
    world.ok(c.EnsurePromise(id="t:e"))
    world.ok(c.RegisterListener(awaited="t:e", address=r.WORKER))
    world.ok(r.claimed("t"))
    world.ok(create)
    assert Listener("t:e", r.WORKER) in world.dump().listeners
    world.ok(r.suspend("t", 1, "t:e"))
    world.check()
    world.tick(SOON)
    assert world.task("t").state == "pending"
    assert ("t:e", "unblock", r.WORKER) in world.dump().messages


def test_an_event_before_its_wait_is_not_lost(world: World) -> None:
    """What `resolve` creates may be waited for, by listeners too."""
    world.ok(c.ResolvePromise(id="e"))
    assert world.ok(c.EnsurePromise(id="e")).promise.state == "resolved"
    world.ok(c.RegisterListener(awaited="e", address=r.WORKER))
    world.ok(c.WatchPromise(id="e"))


def test_runs_records_and_back_off_work_as_ever(world: World) -> None:
    """Nodes wait for nodes, a record is kept and read, a failed try comes back after its timer."""
    world.ok(r.run(a="", b="a"))
    (claim,) = world.ok(r.take()).claims
    record = c.AnnotateTask(id="run/a:a", version=1, record_id="run/a:a.k", record=c.Value(data=""))
    assert not world.ok(record).record.internal
    world.ok(r.fail(claim.task.id, 1, retry_in=SOON))
    assert world.task("run/a:a").state == "suspended"
    world.check()
    world.tick(SOON)
    world.ok(r.take())
    world.ok(r.finish("run/a:a", 2))
    (second,) = world.ok(r.take()).claims
    assert second.task.id == "run/a:b"
    world.check()


def test_a_stranger_in_the_place_of_a_back_off_timer_is_not_waited_for(world: World) -> None:
    """An internal promise of that id would never wake the task: it is ready at once."""
    world.ok(r.run(a=""))
    world.ok(r.promise("run/a:a.backoff.1", SOON))
    world.ok(r.take())
    world.ok(r.fail("run/a:a", 1, retry_in=SOON))
    assert world.task("run/a:a").state == "pending"
    world.check()


def test_a_promise_without_a_deadline_is_internal_too(world: World) -> None:
    """The tags decide, as the specification says, not how far the deadline is."""
    world.ok(r.promise("x", NEVER))
    assert world.send(c.WatchPromise(id="x")).status == 422


def parts_of(wanted: Any) -> set[Any]:
    """The type, those it is made of, and those of the fields of structs in it."""
    found = {wanted}
    inner = get_args(wanted)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        inner = tuple(field.type for field in msgspec.structs.fields(wanted))
    return found.union(*map(parts_of, inner))


def test_who_carries_tags_or_names_who_waits_is_under_the_rules() -> None:
    """A new command must say so itself, or it would create what the profile forbids."""
    for kind, each in KINDS.items():
        if issubclass(each, c.Command):
            parts = parts_of(each)
            waits, creates = c.RegisterCallback in parts, Tags in parts
            has_lineage = each.lineage_problems is not c.Command.lineage_problems
            has_external = each.external_problems is not c.Command.external_problems
            assert has_lineage == (waits or creates), kind
            one_wait = each is c.RegisterCallback  # which cannot be named twice
            assert has_external == ((waits and not one_wait) or creates), kind
