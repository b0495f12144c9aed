"""What people see with SQL of deferred tasks, their triggers and their tries: in both databases."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.store.postgres import PostgresStore
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


def put(world: World, column: str, task_id: str, stored: str) -> None:
    """As older code did, which did not look into it."""
    store = world.store
    assert isinstance(store, SqlStore)
    store._session.execute(f"UPDATE promises SET {column} = ? WHERE id = ?", (stored, task_id))


def two_deferred(world: World) -> None:
    """`run/a:b` stands for all others."""
    world.clock.advance(5)
    world.ok(r.run(a="", b="", with_take=r.take()))
    for task_id in (NODE, "run/a:b"):
        history = '{"tries":[{"number":1,"outcome":"Suspended"}]}'
        defer = r.defer(task_id, 1, r.trigger("Poll"))
        world.ok(msgspec.structs.replace(defer, history=history))


@pytest.mark.parametrize("stored", ["", "broken", '{"kind":', '{"kind":"\xff', "7", "[1]", '"x"'])
def test_a_resumption_that_nobody_can_read_ends_no_view(world: World, stored: str) -> None:
    """Its row says which task it is, and what is stored. The rows of all others are as ever."""
    two_deferred(world)
    put(world, "task_resume", NODE, stored)
    known = "id, root, trigger_class, state, args, created_at"
    found = row(world, known, f"triggers WHERE task = '{NODE}'")
    assert found == (None, "run/a", None, "unreadable", stored, None)
    found = row(world, known, "triggers WHERE task = 'run/a:b'")
    assert found == ("run/a:b.defer.1", "run/a", "Poll", "untaken", "{}", 5)
    assert row(world, "count(*)", "triggers") == (2,)


@pytest.mark.parametrize("number", ['"x"', "[]", "1.5", "1e400000", "99999999999999999999", "null"])
def test_a_number_that_is_none_ends_no_view(world: World, number: str) -> None:
    """On SQLite it may be another number; everything else of the row is shown."""
    two_deferred(world)
    resumption = f'{{"kind":"Poll","at":1,"trigger":"{OWN}","since":{number},"until":{number}}}'
    put(world, "task_resume", NODE, resumption)
    put(world, "task_waiting_on", OWN, f'{{"kind":"trigger","polls":{number}}}')
    put(world, "task_history", NODE, f'{{"tries":[{{"number":{number},"why":"first"}}]}}')
    columns = "created_at, deadline, polls, trigger_class, state"
    *_, kind, state = row(world, columns, f"triggers WHERE task = '{NODE}'")
    is_too_large = number == "1e400000" and isinstance(world.store, PostgresStore)
    assert (kind, state) == ((None, "unreadable") if is_too_large else ("Poll", "untaken"))
    _, why = row(world, "number, why", f"task_tries WHERE task = '{NODE}'")
    assert why == (None if is_too_large else "first")
    others = row(world, "created_at, state", "triggers WHERE task = 'run/a:b'")
    assert others == (5, "untaken")
    assert row(world, "number", "task_tries WHERE task = 'run/a:b'") == (1,)


@pytest.mark.parametrize("stored", ["broken", '{"polls":', "7", '"x"', "[1]"])
def test_what_cannot_be_read_of_polls_is_not_shown(world: World, stored: str) -> None:
    two_deferred(world)
    put(world, "task_waiting_on", OWN, stored)
    found = row(world, "task, state, polls, last_error", f"triggers WHERE id = '{OWN}'")
    assert found == (NODE, "untaken", None, None)
    assert row(world, "count(*)", "triggers") == (2,)


@pytest.mark.parametrize("stored", ['{"tries":[', '{"tries":[{"number":1}],', '{"tries":[\t}'])
def test_a_history_that_nobody_can_read_is_one_row(world: World, stored: str) -> None:
    two_deferred(world)
    put(world, "task_history", NODE, stored)
    columns = "task, root, name, number, outcome, error"
    found = row(world, columns, f"task_tries WHERE task = '{NODE}'")
    assert found == (NODE, "run/a", "f", None, "unreadable", stored)
    assert row(world, "number, outcome", "task_tries WHERE task <> 'run/a:a'") == (1, "Suspended")


def test_tries_that_are_no_objects_have_rows_without_anything(world: World) -> None:
    two_deferred(world)
    put(world, "task_history", NODE, '{"tries":[7,"x",null,[1],true]}')
    assert row(world, "count(*), count(number)", f"task_tries WHERE task = '{NODE}'") == (5, 0)
    put(world, "task_history", NODE, '{"tries":[{"number":1}],"tries":7}')
    assert row(world, "count(*)", "task_tries WHERE task = 'run/a:b'") == (1,)


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00x"])
def test_half_of_a_surrogate_pair_ends_no_view(world: World, half: str) -> None:
    """PostgreSQL reads no text with one; SQLite shows what it can."""
    two_deferred(world)
    put(world, "task_resume", NODE, f'{{"kind":"{half}","at":1,"trigger":"{OWN}"}}')
    put(world, "task_history", NODE, f'{{"tries":[{{"number":1,"why":"{half}"}}]}}')
    put(world, "task_waiting_on", "run/a:b.defer.1", f'{{"last_error":"{half}"}}')
    assert row(world, "count(*)", "triggers") == (2,)
    assert row(world, "count(*)", "task_tries") == (2,)
    if isinstance(world.store, PostgresStore):
        assert row(world, "state", f"triggers WHERE task = '{NODE}'") == ("unreadable",)
