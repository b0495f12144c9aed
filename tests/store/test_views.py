"""What people see with SQL of deferred tasks, their triggers and their tries: in both databases."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.store.sql import SqlStore
from tests.helpers import requests as r
from tests.helpers.worlds import World

NODE = "run/a:a"
OWN = f"{NODE}.defer.1"


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param) as world:
        yield world


def row(world: World, columns: str, view: str) -> tuple[Any, ...]:
    store = world.store
    assert isinstance(store, SqlStore)
    return tuple(store._session.row(f"SELECT {columns} FROM {view}"))


def test_a_trigger_from_its_defer_to_its_end(world: World) -> None:
    world.clock.advance(5)
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Poll", url="u"), 900, "m:go_on"))
    where = f"task_executions WHERE id = '{NODE}'"
    assert row(world, "state, sub_status, pid", where) == ("deferred", "Deferred", None)
    columns = "id, task, root, trigger_class, args, state, callback, created_at, deadline, holder"
    known = (OWN, NODE, "run/a", "Poll", '{"url":"u"}')
    assert row(world, columns, "triggers") == (*known, "untaken", "m:go_on", 5, 905, None)
    world.ok(r.take_triggers())
    report = c.PollReport(polls=3, last_poll_at=20, next_poll_at=50, last_error="off")
    world.ok(c.HeartbeatWorker(pid="m", incarnation="1", polling={OWN: report}))
    columns = "state, holder, polls, last_poll_at, next_poll_at, last_error"
    assert row(world, columns, "triggers") == ("running", "m", 3, 20, 50, "off")
    world.ok(c.WakeTask(id=NODE, exit_id="x", by="ann", reason="enough"))
    columns = "state, holder, ended_by, person, reason"
    assert row(world, columns, "triggers") == ("ended", None, OWN, "ann", "enough")
    world.ok(r.take())
    world.ok(r.finish(NODE, 2))
    assert row(world, "count(*)", "triggers") == (0,)


@pytest.mark.parametrize("spec", [r.trigger("Event", name="paid"), r.trigger("Delay", ms=5)])
def test_what_nobody_runs_is_waiting(world: World, spec: c.TriggerSpec) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, spec))
    assert row(world, "trigger_class, state, holder, polls", "triggers") == (
        spec.kind,
        "waiting",
        None,
        None,
    )


def test_a_row_for_each_try(world: World) -> None:
    """What somebody else has written as a history is not shown, and does no harm."""
    tries = [
        {"number": 1, "why": "first", "spans": [["running", 1, 2]], "outcome": "Suspended"},
        {"number": 2, "why": "resumed", "callback": "m:f", "event": "paid"},
    ]
    history = msgspec.json.encode({"tries": tries}).decode()
    world.ok(r.run(a="", b="", with_take=r.take()))
    world.ok(c.AnnotateTask(id=NODE, version=1, history=history))
    world.ok(c.AnnotateTask(id="run/a:b", version=1, history='["of another program"]'))
    assert row(world, "count(*)", "task_tries") == (2,)
    columns = "task, root, name, why, callback, event, outcome"
    first = (NODE, "run/a", "f", "first", None, None, "Suspended")
    assert row(world, columns, "task_tries WHERE number = 1") == first
    second = (NODE, "run/a", "f", "resumed", "m:f", "paid", None)
    assert row(world, columns, "task_tries WHERE number = 2") == second


def test_a_text_with_nul_ends_no_view(world: World) -> None:
    """One task's error, argument or context is nothing to the rows of all others."""
    nul = msgspec.json.encode(["a\0b", "\\u0000"]).decode()
    world.ok(r.run(a="", b="", with_take=r.take()))
    tries = f'{{"tries":[{{"number":1,"why":"first","error":{nul}}}]}}'
    spec = c.TriggerSpec("Poll", msgspec.Raw(f'{{"url":{nul}}}'.encode()))
    resume = c.ResumeSpec("m:f", kwargs=msgspec.Raw(f'{{"x":{nul}}}'.encode()))
    world.ok(c.DeferTask(id=NODE, version=1, trigger=spec, resume=resume, history=tries))
    world.ok(r.take_triggers())
    report = c.PollReport(polls=1, last_poll_at=20, next_poll_at=50, last_error="\0")
    world.ok(c.HeartbeatWorker(pid="m", incarnation="1", polling={OWN: report}))
    assert row(world, "id, polls, callback", "triggers") == (OWN, 1, "m:f")
    assert row(world, "task, number", "task_tries") == (NODE, 1)
