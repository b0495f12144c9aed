"""Single steps, tabular: what stands, what is asked, what is answered, what stands then."""

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core import ticks
from layby.core.draft import Draft
from layby.core.footprint import OutsideFootprint
from layby.core.model import NEVER, Message
from layby.core.rows import Rows
from layby.core.schedule_row import Schedule
from layby.core.schedules import FireSchedule
from layby.core.settings import Settings
from layby.core.step import step
from layby.engine.calendar import next_after
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, EVERY_BACKEND, Backend, World

NO_SCHEDULE = Schedule("none", "* * * * *", "x", 1, "{}", "{}", 0, next_run_at=0)
GIVEN: dict[str, tuple[c.Command, ...]] = {
    "absent": (),
    "no task": (r.promise("t"),),
    "pending": (r.target("t"),),
    "acquired": (r.claimed("t"),),
    "suspended": (r.promise("x"), r.claimed("t"), r.suspend("t", 1, "x")),
    "halted": (r.claimed("t"), c.HaltTask(id="t")),
    "fulfilled": (r.claimed("t"), r.settle("t")),
}
FENCED = c.FenceTask(id="t", version=1, inner=r.promise("inner"))

# Of each row of PROTOCOL 3.3: the statuses in the order of GIVEN, and the state that follows.
TABLE: dict[str, tuple[c.Command, str, str]] = {
    "get": (c.GetTask(id="t"), "404 404 200 200 200 200 200", "- - p a s h f"),
    "create": (r.claimed("t"), "200 422 200 409 409 409 200", "a - a a s h f"),
    "acquire 0": (r.acquire("t", 0), "404 404 200 409 409 409 409", "- - a a s h f"),
    "acquire 1": (r.acquire("t", 1), "404 404 409 409 409 409 409", "- - p a s h f"),
    "release": (c.ReleaseTask(id="t", version=1), "404 404 409 200 409 409 409", "- - p p s h f"),
    "fulfill": (r.fulfill("t", 1), "404 404 409 200 409 409 409", "- - p f s h f"),
    "suspend": (r.suspend("t", 1, "y"), "404 404 409 200 409 409 409", "- - p s s h f"),
    "redirect": (r.suspend("t", 1, "y", "z"), "404 404 409 300 409 409 409", "- - p a s h f"),
    "missing": (r.suspend("t", 1, "y", "no"), "404 404 409 422 409 409 409", "- - p a s h f"),
    "fence": (FENCED, "404 404 409 200 409 409 409", "- - p a s h f"),
    "heartbeat": (r.beat("p", ("t", 1)), "200 200 200 200 200 200 200", "- - p a s h f"),
    "halt": (c.HaltTask(id="t"), "404 404 200 200 200 200 409", "- - h h h h f"),
    "halt 1": (c.HaltTask(id="t", version=1), "404 404 409 200 200 200 409", "- - p h h h f"),
    "continue": (c.ContinueTask(id="t"), "404 404 409 409 409 200 409", "- - p a s p f"),
    "continue 7": (
        c.ContinueTask(id="t", version=7),
        "404 404 409 409 409 409 409",
        "- - p a s h f",
    ),
    "settle": (r.settle("t"), "404 200 200 200 200 200 200", "- - f f f f f"),
    "resume": (r.callback("z", "t"), "422 422 200 200 200 200 200", "- - p a p h f"),
}
LETTERS = {"pending": "p", "acquired": "a", "suspended": "s", "halted": "h", "fulfilled": "f"}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", TABLE)
def test_task_transitions(name: str, given: str) -> None:
    """Every cell of the protocol's table of task transitions."""
    command, statuses, states = TABLE[name]
    column = list(GIVEN).index(given)
    with World() as world:
        for each in (r.promise("y"), r.promise("z"), r.settle("z"), *GIVEN[given]):
            world.ok(each)
        before = world.dump()
        reply = world.send(command)
        assert reply.status == int(statuses.split()[column])
        task = world.dump().tasks.get("t")
        assert ("-" if task is None else LETTERS[task.state]) == states.split()[column]
        if not reply.is_ok:
            assert world.dump() == before
        world.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_deadlines_are_exact(backend) -> None:
    """Not a millisecond before, and no later: promise, retry, delay, lease, holder."""
    with World(backend) as world:
        world.ok(r.promise("promise", 100))
        world.ok(r.target("delayed", delay="100"))
        world.ok(r.claimed("leased", ttl=100))
        world.ok(r.run(a=""))
        world.ok(r.take(ttl=100))
        world.tick(99)
        state = world.dump()
        assert state.promises["promise"].is_pending
        assert state.tasks["leased"].state == "acquired"
        assert state.tasks["run/a:a"].state == "acquired"
        assert state.messages == {}
        world.tick(1)
        state = world.dump()
        assert not state.promises["promise"].is_pending
        assert state.tasks["leased"].state == "pending"
        assert state.tasks["run/a:a"].state == "pending"
        assert {key[0] for key in state.messages} == {"delayed", "leased"}
        assert {state.tasks[key].wake_at for key in ("delayed", "leased")} == {30_100}


def test_resumes_are_a_set_and_end_with_a_claim() -> None:
    """They gather while pending or halted, and entering acquired clears them."""
    with World() as world:
        for key in "xyz":
            world.ok(r.promise(key))
        world.ok(r.claimed("t"))
        world.ok(r.suspend("t", 1, "x", "y"))
        world.ok(r.callback("z", "t"))
        world.ok(r.settle("x"))
        world.ok(c.HaltTask(id="t"))
        world.ok(r.settle("y"))
        world.ok(c.ContinueTask(id="t"))
        world.ok(r.settle("z"))
        assert world.task("t").resumes == ("x", "y", "z")
        world.ok(r.acquire("t", 1))
        assert world.task("t").resumes == ()


def test_a_fulfilled_task_is_forgotten_by_all_it_waited_for() -> None:
    """Its waits are gone, so that nothing it waited for looks at it again."""
    with World() as world:
        for key in "xy":
            world.ok(r.promise(key))
        world.ok(r.claimed("t"))
        world.ok(r.suspend("t", 1, "x", "y"))
        world.ok(r.settle("t"))
        assert world.dump().waits == {}


def test_preload_is_the_branch_without_the_task_itself() -> None:
    """In id order, also when the branch comes into being in the same batch."""
    for backend in BACKENDS:
        with World(backend) as world:
            world.ok(r.promise("b.2", branch="b"))
            world.ok(r.promise("b.1", branch="b"))
            world.ok(r.promise("other", branch="c"))
            made, claim = world.batch([(r.target("b", branch="b"), 0), (r.acquire("b", 0), 0)])
            assert made.status == 200
            assert [each.id for each in claim.data.preload] == ["b.1", "b.2"]
            world.ok(r.claimed("new", branch="b"))
            assert len(world.send(r.suspend("b", 1, "none")).data) > 0


def test_late_and_double_ticks_are_harmless() -> None:
    """Each checks again: of something that is over, or not yet due, nothing changes."""
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take())
        world.ok(r.target("t"))
        before = world.dump()
        due = (
            ticks.ExpirePromises(ids=("t", "none")),
            ticks.RetryTasks(ids=("t", "none", "run/a:a")),
            ticks.ExpireLeases(ids=("t", "none", "run/a:a")),
            ticks.FinishSettlement(id="t"),
            ticks.FinishSettlement(id="none"),
            ticks.ExpireHolders(pids=("p", "none")),
            ticks.FreeTasks(pid="p", incarnation="1", ids=("run/a:a",)),
            ticks.FreeTasks(pid="none", incarnation="1", ids=("run/a:a",)),
            FireSchedule(found=NO_SCHEDULE, occurrences=((0, "x"),), by=0),
            ticks.ForgetMessages(messages=(Message("none", "execute", "x"),)),
        )
        for tick in due:
            world.ok(tick)
        assert world.dump() == before


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_delivered_messages_are_forgotten(backend: Backend) -> None:
    """By key and version: one that has replaced it is another message, though of the same key."""
    with World(backend) as world:
        world.ok(r.target("t"))
        [message] = world.dump().messages.values()
        world.ok(ticks.ForgetMessages(messages=(replace(message, version=7),)))
        assert list(world.dump().messages.values()) == [message]
        world.ok(ticks.ForgetMessages(messages=(message,)))
        assert world.dump().messages == {}


def test_a_step_that_reads_what_it_did_not_declare_is_a_bug() -> None:
    """Reading past the footprint raises; a row that is known to be absent does not."""
    rows = Rows(Settings(), next_after)
    rows.known.add("absent")
    assert rows.promise("absent") is None
    assert rows.task("absent") is None
    for read in (rows.promise, rows.task):
        with pytest.raises(OutsideFootprint, match="elsewhere"):
            read("elsewhere")
    with pytest.raises(OutsideFootprint):
        step(rows, c.GetPromise(id="elsewhere"), 0)


def test_a_refusal_writes_nothing() -> None:
    """The draft of a refused step is empty."""
    rows = Rows(Settings(), next_after)
    reply, draft = step(rows, c.GetPromise(id=""), 0)
    assert reply.status == 400
    assert isinstance(draft, Draft)
    assert (draft.promises, draft.tasks, draft.messages) == ({}, {}, {})


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_is_no_id(text: str) -> None:
    """No database and no wire can carry it."""
    with World() as world:
        assert world.send(r.promise(text)).status == 400


def test_runs_are_listed_and_read_whole() -> None:
    """Roots by id; a run with all its rows, root first."""
    for backend in BACKENDS:
        with World(backend) as world:
            world.ok(r.run("run/a", a="", b="a"))
            world.ok(r.run("run/b", 500, a=""))
            world.ok(r.target("t"))
            world.clock.advance(500)
            assert world.send(q.GetRun(id="")).status == 400
            assert world.send(q.GetRun(id="run/a")).is_ok
            assert world.send(q.ListRuns()).is_ok
            assert world.send(q.ListRuns(state="pending", name="root")).is_ok


def test_born_claimed_without_a_target_cannot_be_asked_for() -> None:
    """Validation stands before it: the action must have a target."""
    action = c.CreateAction("", None, r.promise("x", NEVER - 1))
    with World() as world:
        assert world.send(c.CreateTask(pid="p", ttl=1, action=action)).status == 400


def test_of_many_ids_of_nodes_that_are_in_use_the_first_are_named() -> None:
    """A run has ten thousand nodes, and an id a thousand bytes."""
    names = [f"n{number:02}" for number in range(30)]
    with World() as world:
        for name in names:
            world.ok(r.promise(f"run/a:{name}"))
        reply = world.send(r.dag(dict.fromkeys(names, "")))
    listed = ", ".join(names[:20])
    why = f"Run 'run/a': node ids already in use: {listed} and 10 more"
    assert (reply.status, reply.data) == (409, why)
