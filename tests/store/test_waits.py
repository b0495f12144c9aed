"""One answer to what a task waits for, whoever asks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import queries as q
from layby.core.codes import Refusals
from layby.core.model import Promise, Task
from layby.core.stats import GetStats
from layby.core.waits import WAIT_KINDS, WaitingOn, backing_off, shown_state, waiting_of
from layby.store.sql import SqlStore
from layby.workflow.reasons import reason_of
from layby.workflow.status import NodeRow, task_execution
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World
from tests.store.test_by_time import NOW, prepared


def kinds_told(world: World, task_id: str) -> dict[str, str | None]:
    """By everybody who says what this task waits for."""
    state = world.dump()
    row = NodeRow(state.promises[task_id], state.tasks[task_id])
    status = task_execution(row, world.now).waiting_on
    listed = [
        kind
        for kind in WAIT_KINDS
        for entry in world.ok(q.ListWaiting(wait_kind=kind)).entries
        if entry.promise.id == task_id
    ]
    return {
        "status": status and status.kind,
        "why": reason_of(world.ok(q.ExplainPromise(id=task_id)), world.now).kind,
        "list": ", ".join(listed),
        "gauge": ", ".join(sorted(world.ok(GetStats()).oldest_waits)),
    }


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_task_that_failed_once_and_waits_for_a_promise_now_is_not_backing_off(backend):
    """The failure is over: what it waits for now is the promise."""
    with World(backend) as world:
        world.ok(r.run(a=""))
        world.ok(r.take(1))
        world.ok(r.fail("run/a:a", 1, retry_in=1))
        assert set(kinds_told(world, "run/a:a").values()) == {"backoff"}
        world.tick(5)
        world.ok(r.take(1))
        world.ok(r.promise("x"))
        world.ok(r.suspend("run/a:a", 2, "x"))
        assert set(kinds_told(world, "run/a:a").values()) == {"promise"}


TOLD = WaitingOn("condition", "until it holds", 1, 99).to_text()
PROMISE = Promise("x", "x", "{}", "{}", 10**9, 1)
TASK = Task("x", "poll://any@layby.g", "g", "n", "node", ready_at=5, waiting_since=2)
REFUSED = Refusals("n", ("v1",)).to_text()
SUSPENDED = replace(TASK, state="suspended", ready_at=None)
TIMER = replace(PROMISE, timer=True)


@pytest.mark.parametrize(
    ("promise", "task", "form", "kind", "since", "until"),
    [
        (PROMISE, None, "open", "promise", 1, None),
        (TIMER, None, "timer", "sleep", 1, 10**9),
        (TIMER, TASK, "timer", "sleep", 1, 10**9),
        (PROMISE, replace(TASK, ready_at=1), "untaken", "worker", 2, None),
        (PROMISE, TASK, "untaken", "worker", 5, None),
        (PROMISE, replace(TASK, ready_at=6), "delayed", "sleep", 2, 6),
        (PROMISE, replace(TASK, waits_left=1), "dependency", "dependency", 1, None),
        (PROMISE, replace(TASK, ready_at=None, holder="h"), "kept", "worker", 2, None),
        (PROMISE, replace(TASK, state="halted"), "halted", "manual", 2, None),
        (PROMISE, replace(TASK, state="halted", waits_left=1), "halted", "manual", 2, None),
        (PROMISE, replace(TASK, state="acquired", waiting_on=TOLD), "in_slot", "condition", 2, 99),
        (
            PROMISE,
            replace(TASK, state="acquired", sub_status="Deferred", waiting_on=TOLD),
            *("parked", "condition", 2, 99),
        ),
        (PROMISE, SUSPENDED, "suspended", "promise", 2, None),
        (PROMISE, replace(SUSPENDED, failures=1), "suspended", "promise", 2, None),
        (PROMISE, replace(TASK, refused=REFUSED), "blocked", "code", 2, None),
        (PROMISE, replace(TASK, refused=REFUSED, ready_at=6), "delayed", "sleep", 2, 6),
        (PROMISE, replace(TASK, refused=REFUSED, state="halted"), "halted", "manual", 2, None),
        (PROMISE, replace(SUSPENDED, group=None), "suspended", "promise", 2, None),
        (PROMISE, replace(SUSPENDED, waiting_on=TOLD), "suspended", "condition", 2, 99),
        (PROMISE, replace(SUSPENDED, waits_left=1), "dependency", "dependency", 1, None),
        (
            PROMISE,
            replace(SUSPENDED, waiting_on=backing_off(1, 77, 2)),
            *("backoff", "backoff", 2, 77),
        ),
    ],
)
def test_each_form_of_a_wait(promise, task, form, kind, since, until):
    """Worked out from the rows alone."""
    found = waiting_of(promise, task, now=5)
    assert found is not None
    assert (found.form, found.kind, found.since, found.until) == (form, kind, since, until)


@pytest.mark.parametrize(
    ("promise", "task"),
    [
        (PROMISE.timed_out(), TASK.fulfilled()),
        (PROMISE, replace(TASK, state="acquired")),
        (PROMISE, replace(TASK, state="acquired", waiting_on="{}")),
    ],
    ids=["settled", "running", "told what cannot be read"],
)
def test_what_does_not_wait(promise, task):
    """It is over, or it runs."""
    assert waiting_of(promise, task, now=5) is None


@given(seed=st.integers(0, 20))
@settings(max_examples=21)
def test_whoever_is_asked_names_the_same_kind(seed: int):
    """Lists, `why` and the status of each task."""
    world = prepared(seed)[1]
    state = world.dump()
    for kind in WAIT_KINDS:
        for entry in world.ok(q.ListWaiting(wait_kind=kind, limit=1_000)).entries:
            assert reason_of(entry, NOW).kind == kind
            task = state.tasks.get(entry.promise.id)
            if task is not None and task.kind == "node":
                told = task_execution(NodeRow(entry.promise, task), NOW).waiting_on
                assert told is not None
                assert told.kind == kind


@given(seed=st.integers(0, 20))
@settings(max_examples=21)
def test_the_view_follows_the_rule(seed: int):
    """SQL cannot ask core, so that its CASE is compared with core's answer, row by row."""
    world = prepared(seed)[1]
    assert isinstance(world.store, SqlStore)
    query = "SELECT id, state, sub_status FROM task_executions"
    shown = {key: (state, sub) for key, state, sub in world.store._connection.execute(query)}
    state = world.dump()
    assert shown == {
        key: expected_in_view(state.promises[key], task) for key, task in state.tasks.items()
    }


def expected_in_view(promise: Promise, task: Task) -> tuple[str, str | None]:
    if task.state == "acquired":
        return "acquired", task.sub_status or "Active"
    waiting = waiting_of(promise, task, NOW)
    if waiting is not None and waiting.form == "blocked":
        return "blocked", None
    state = shown_state(task)
    return state, "Deferred" if state == "deferred" else None
