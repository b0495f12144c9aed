from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import values, waits
from layby.core.model import NEVER, Promise, Task
from layby.core.waits import read_waiting_on
from layby.errors import WireError
from layby.wire.json_values import error_value, text_of
from layby.workflow.history import TaskHistory
from layby.workflow.merge import Delta, Merge, MergeConflict, View
from layby.workflow.outcome import conclude, encode_completed, encode_skipped
from layby.workflow.plan import plan
from layby.workflow.rules import Skip
from layby.workflow.status import (
    NodeRow,
    Polling,
    Progress,
    Try,
    WaitingOn,
    run_status,
    task_execution,
)
from layby.workflow.task import task
from layby.workflow.workflow import Workflow

TARGET = "poll://any@layby.default"
NODE = Task("run/r:t", TARGET, "default", "flow/t", "node")
NOW = 100_000
FAILED = text_of(error_value(ValueError("bad")))


def promise(**fields: Any) -> Promise:
    return replace(Promise("run/r:t", "run/r", "{}", "{}", NEVER, 1_000), **fields)


def execution(promise_: Promise | None = None, unsettled=(), **fields: Any):
    row_fields = {name: fields.pop(name) for name in ("polling",) if name in fields}
    fields.setdefault("tries", fields.get("version", 0))
    row = NodeRow(promise_ or promise(), replace(NODE, **fields), **row_fields)
    return task_execution(row, NOW, [node(each) for each in unsettled])


def history(version: int = 1, *, outcome: str | None = None, **ended: Any) -> str:
    written = TaskHistory(replace(NODE, version=version, tries=version), 500)
    written.started(2_000)
    if outcome is not None:
        written.ended(3_000, outcome, **ended)
    return written.text


WAITING = WaitingOn("condition", "waits for the job", 5_000, 9_000)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"state": "suspended", "waits_left": 2}, ("Pending", None, None, "dependency")),
        (
            {"state": "pending", "ready_at": 5, "waits_left": 1},
            ("Pending", None, None, "dependency"),
        ),
        ({"state": "pending", "ready_at": 5}, ("Ready", None, None, "worker")),
        ({"state": "pending", "ready_at": NOW + 1}, ("Pending", None, None, "sleep")),
        ({"state": "acquired", "version": 1}, ("Running", "Active", None, None)),
        (
            {
                "state": "acquired",
                "version": 1,
                "sub_status": "Deferred",
                "waiting_on": WAITING.to_text(),
            },
            ("Running", "Deferred", "memory", "condition"),
        ),
        (
            {
                "state": "acquired",
                "version": 1,
                "waiting_on": WAITING.to_text(),
            },  # no place to park
            ("Running", "Active", None, "condition"),
        ),
        (
            {"state": "acquired", "version": 1, "sub_status": "Deferred", "waiting_on": "nonsense"},
            ("Running", "Deferred", "memory", None),
        ),
        (
            {"state": "suspended", "version": 1, "waiting_on": waits.backing_off(1, 60_000, 3_000)},
            ("Pending", None, None, "backoff"),
        ),
        (
            {
                "state": "suspended",
                "version": 2,
                "failures": 1,
                "history": history(2, outcome="Suspended"),
            },
            ("Running", "Deferred", "store", "promise"),
        ),
        ({"state": "suspended", "version": 1}, ("Running", "Deferred", "store", "promise")),
        ({"state": "halted", "version": 1}, ("Halted", None, None, "manual")),
        ({"state": "halted", "waits_left": 1}, ("Halted", None, None, "manual")),
    ],
)
def test_a_task_that_has_not_settled(fields, shown):
    found = execution(**fields)
    kind = found.waiting_on and found.waiting_on.kind
    assert (found.status, found.sub_status, found.parked_in, kind) == shown
    assert found.settled_at is None


@pytest.mark.parametrize(
    ("settled", "shown"),
    [
        (promise(state="resolved", settled_at=7), ("Completed", None, None)),
        (
            promise(state="rejected", value=FAILED, settled_at=7),
            ("Failed", "ValueError: bad", None),
        ),
        (
            promise(state="rejected_canceled", value=values.cancelled("ann", "why"), settled_at=7),
            ("Cancelled", "cancelled by ann: why", None),
        ),
        (
            promise(state="resolved", value=text_of(encode_skipped(Skip("no"))), settled_at=7),
            ("Skipped", None, "no"),
        ),
        (
            promise(timeout_at=7),  # nobody has swept it yet
            ("Failed", "the run's deadline passed (1970-01-01 00:00:00 UTC)", None),
        ),
    ],
)
def test_a_task_that_has_settled(settled, shown):
    found = execution(settled, state="fulfilled", version=3)
    assert (found.status, found.error, found.reason) == shown
    assert (found.settled_at, found.sub_status, found.waiting_on) == (7, None, None)
    assert found.try_number == 3


def test_a_completed_task_does_not_show_an_earlier_failure_as_its_error():
    found = execution(promise(state="resolved"), state="fulfilled", failures=1, error=FAILED)
    assert (found.error, found.failures) == (None, 1)


def test_conflicts_are_shown():
    conflict = MergeConflict("k", "b", "a")
    value = text_of(encode_completed(Delta(), (conflict,)))
    assert execution(promise(state="resolved", value=value)).conflicts == (conflict,)


@pytest.mark.parametrize(
    ("unsettled", "sentence"),
    [
        (["a"], "waits for 'a'"),
        (["a", "b"], "waits for 'a', 'b'"),
        (list("abcdefg"), "waits for 'a', 'b', 'c' and 4 others"),
        ([], "waits for 3 tasks"),
    ],
)
def test_what_a_pending_task_waits_for(unsettled, sentence):
    found = execution(unsettled=unsettled, state="suspended", waits_left=3)
    assert found.waiting_on == WaitingOn("dependency", sentence, 1_000)


def test_backing_off_says_until_when_and_after_what():
    told = waits.backing_off(1, 160_000, 3_000)
    found = execution(state="suspended", error=FAILED, waiting_on=told, waiting_since=3_000)
    sentence = "backs off after failure 1: ValueError: bad; it is tried again in 1 min"
    assert found.waiting_on == WaitingOn("backoff", sentence, 3_000, 160_000)


def test_ready_names_the_group_and_the_code():
    waiting_on = execution(state="pending", ready_at=5_000).waiting_on
    assert waiting_on is not None
    assert waiting_on.since == 5_000
    assert "group 'default'" in waiting_on.sentence
    assert "code of 'flow/t'" in waiting_on.sentence


def test_halted_says_what_helps_and_since_when():
    waiting_on = execution(state="halted", version=1, waiting_since=3_000).waiting_on
    assert waiting_on == WaitingOn("manual", "is halted until somebody continues it", 3_000)


def test_polls_come_from_the_workers_memory():
    polling = Polling(polls=12, next_poll_at=6_000, last_error="ValueError: bad")
    fields: Any = {"state": "acquired", "sub_status": "Deferred", "waiting_since": 5_000}
    fields["waiting_on"] = WAITING.to_text()
    found = execution(polling=polling, **fields).waiting_on
    assert found == WaitingOn(
        "condition", "waits for the job", 5_000, 9_000, 12, 6_000, "ValueError: bad"
    )
    assert execution(**fields).waiting_on == WAITING


def test_what_the_worker_writes_is_read():
    text = '{"kind":"slot","sentence":"ready to go on, waiting for a slot","since":7}'
    assert read_waiting_on(text) == WaitingOn("slot", "ready to go on, waiting for a slot", 7)
    assert read_waiting_on(None) is None


def test_tries_and_the_one_not_told_yet():
    told = history(outcome="Failed")
    found = execution(state="acquired", version=2, failures=1, history=told, pid="w1")
    assert [(each.number, each.why, each.outcome) for each in found.tries] == [
        (1, "first", "Failed"),
        (2, "retry", None),
    ]
    assert (found.try_number, found.worker) == (2, "w1")
    assert execution(state="acquired", version=1).tries == (Try(1, "first"),)


def test_the_try_of_a_cancelled_task_ended_with_it():
    """Its worker has nothing to report any more."""
    cancelled = promise(state="rejected_canceled", settled_at=9_000)
    (last,) = execution(cancelled, state="fulfilled", version=1, history=history()).tries
    assert (last.outcome, last.spans[-1].end) == ("Cancelled", 9_000)


def test_progress():
    text = '{"fraction":0.5,"text":"half","at":7}'
    assert execution(state="acquired", progress=text).progress == Progress(0.5, "half", 7)
    assert execution(state="acquired", progress="nonsense").progress is None


# --- the run --------------------------------------------------------------------------------


@task
def first(context): ...


@task(dependencies=[first])
def second(context): ...


START = plan(Workflow("flow", [first, second]), "r", {"order": 7}, "default", NEVER)
ROOT_TASK = Task("run/r", TARGET, "default", "flow", "root", state="suspended", waits_left=2)


def root(**fields: Any) -> Promise:
    born = Promise("run/r", "run/r", text_of(START.param), "{}", NEVER, 1_000)
    return replace(born, **fields)


def node(task_id: str, promise_fields: dict | None = None, **fields: Any) -> NodeRow:
    node_id = f"run/r:{task_id}"
    return NodeRow(
        promise(id=node_id, **(promise_fields or {})),
        replace(NODE, id=node_id, name=f"flow/{task_id}", **fields),
    )


WAITS = node("second", state="suspended", waits_left=1)


@pytest.mark.parametrize(
    ("first_row", "root_task", "state"),
    [
        (node("first", state="pending", ready_at=1), ROOT_TASK, "Pending"),
        (node("first", state="acquired", version=1), ROOT_TASK, "Running"),
        (node("first", state="pending", ready_at=1, tries=1), ROOT_TASK, "Running"),
        (node("first", {"state": "resolved"}, state="fulfilled", version=1), ROOT_TASK, "Running"),
        (node("first", state="halted"), replace(ROOT_TASK, state="halted"), "Halted"),
    ],
)
def test_the_state_of_a_run_that_goes_on(first_row, root_task, state):
    found = run_status(root(), root_task, [WAITS, first_row], NOW)
    assert (found.run_id, found.flow, found.state) == ("r", "flow", state)
    assert list(found.tasks) == ["first", "second"]
    assert (found.created_at, found.settled_at, found.deadline) == (1_000, None, None)


def test_a_waiting_task_names_the_dependency_that_is_missing():
    found = run_status(root(), ROOT_TASK, [node("first", state="pending"), WAITS], NOW)
    waiting_on = found.tasks["second"].waiting_on
    assert waiting_on is not None
    assert waiting_on.sentence == "waits for 'first'"


COMPLETED = text_of(conclude({}, Merge(View())).value)
FAILED_RUN = values.error("RunFailed", "x", failed={"first": "ValueError: bad"})


@pytest.mark.parametrize(
    ("ended", "state", "failed", "by", "reason"),
    [
        ({"state": "resolved", "value": COMPLETED}, "Completed", {}, "", ""),
        (
            {"state": "rejected", "value": FAILED_RUN},
            "Failed",
            {"first": "ValueError: bad"},
            "",
            "",
        ),
        (
            {"state": "rejected_canceled", "value": values.cancelled("ann", "why")},
            "Cancelled",
            {},
            "ann",
            "why",
        ),
        (
            {"timeout_at": 7},
            "Failed",
            {},
            "",
            "the run's deadline passed (1970-01-01 00:00:00 UTC)",
        ),
    ],
)
def test_a_run_that_has_ended(ended, state, failed, by, reason):
    found = run_status(root(**ended), ROOT_TASK, [], NOW)
    assert (found.state, found.failed, found.by, found.reason) == (state, failed, by, reason)


def test_a_run_without_its_task_is_the_error_of_whoever_showed_it():
    with pytest.raises(WireError, match="task of run/r is missing from the answer"):
        run_status(promise(id="run/r"), None, [], 5)
