"""What people see of a run and its tasks, worked out from rows; it decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import NEVER, Millis, Promise, Task
from layby.core.waits import Polling, WaitingOn, WaitKind, read_waiting_on
from layby.wire import encoding
from layby.workflow import outcome
from layby.workflow.history import (
    History,
    Span,
    TaskHistory,
    Try,
    ended,
    read_history,
    why_next,
    without_gap,
)
from layby.workflow.merge import Conflict
from layby.workflow.outcome import moment
from layby.workflow.plan import parse_node_id, parse_root_id, read_root_param

__all__ = [
    "History",
    "NodeRow",
    "Polling",
    "Progress",
    "RunStatus",
    "Span",
    "TaskExecution",
    "TaskHistory",
    "Try",
    "WaitKind",
    "WaitingOn",
    "run_status",
    "task_execution",
]

TaskStatus = Literal[
    "Pending", "Ready", "Running", "Completed", "Failed", "Skipped", "Cancelled", "Halted"
]
SubStatus = Literal["Active", "Deferred"]
ParkedIn = Literal["memory", "store"]
RunStateName = Literal["Pending", "Running", "Completed", "Failed", "Cancelled", "Halted"]
LISTED_DEPENDENCIES = 5


class Progress(Struct, frozen=True):
    """What the body last said of how far it has come."""

    fraction: float | None = None
    text: str = ""
    at: Millis = 0


class TaskExecution(Struct, frozen=True, kw_only=True):
    """One task of a run. Times are milliseconds since 1970."""

    id: str
    task_execution_id: str
    """The id of its promise."""
    status: TaskStatus
    sub_status: SubStatus | None = None
    parked_in: ParkedIn | None = None
    try_number: int = 0
    failures: int = 0
    crashes: int = 0
    tries: tuple[Try, ...] = ()
    waiting_on: WaitingOn | None = None
    error: str | None = None
    """Why it failed or was cancelled; while it is tried again, its last failure."""
    reason: str | None = None
    """Why it was skipped."""
    conflicts: tuple[Conflict, ...] = ()
    progress: Progress | None = None
    worker: str | None = None
    settled_at: Millis | None = None
    stuck: bool = False
    """Whether a body of it goes on that should have ended: it is over, or was halted."""


class RunStatus(Struct, frozen=True, kw_only=True):
    run_id: str
    flow: str
    state: RunStateName
    tasks: Mapping[str, TaskExecution]
    """By task id, in the order of the workflow."""
    created_at: Millis
    settled_at: Millis | None = None
    deadline: Millis | None = None
    failed: Mapping[str, str] = {}
    by: str = ""
    reason: str = ""


class NodeRow(Struct, frozen=True):
    """The rows of one task of a run, with what else is known of it."""

    promise: Promise
    task: Task
    polling: Polling | None = None
    retry_at: Millis | None = None
    """When its back-off ends, if the caller has looked that up."""
    stuck: bool = False
    """Whether this process runs a body of it that should have ended."""


def run_status(root: Promise, root_task: Task, nodes: Sequence[NodeRow], now: Millis) -> RunStatus:
    """`nodes`: all tasks of the run, in any order."""
    root = root.at(now)
    param = read_root_param(root.param)
    tasks = _executions(nodes, param.shape.after, now)
    over = None if root.is_pending else outcome.read_run(root)
    return RunStatus(
        run_id=parse_root_id(root.id) or root.id,
        flow=param.flow,
        state=_pending_state(root_task, tasks) if over is None else over.status,
        tasks=tasks,
        created_at=root.created_at,
        settled_at=root.settled_at,
        deadline=None if root.timeout_at == NEVER else root.timeout_at,
        failed={} if over is None else over.failed,
        by="" if over is None else over.by,
        reason="" if over is None else over.reason,
    )


def task_execution(row: NodeRow, now: Millis, unsettled: Sequence[str] = ()) -> TaskExecution:
    """`unsettled`: task ids of dependencies that have not settled, as far as they are known."""
    promise = row.promise.at(now)
    if not promise.is_pending:
        return _settled(row, promise)
    task = row.task
    if task.state == "acquired":
        return _running(row)
    if task.state == "halted":
        return _waiting(row, "Halted", _halted(row))
    if task.waits_left > 0:
        return _waiting(row, "Pending", _behind(row, unsettled))
    if task.state == "suspended":
        return _suspended(row)
    if task.is_kept:
        return _waiting(row, "Pending", _old_body(row))
    if task.ready_at is not None and task.ready_at > now:
        return _waiting(row, "Pending", _not_due(row, task.ready_at))
    return _waiting(row, "Ready", _untaken(row))


def _executions(
    nodes: Sequence[NodeRow], after: Mapping[str, tuple[str, ...]], now: Millis
) -> dict[str, TaskExecution]:
    rows = {_task_id(row): row for row in nodes}
    settled = {each for each, row in rows.items() if not row.promise.at(now).is_pending}
    return {
        each: task_execution(
            rows[each], now, [before for before in dependencies if before not in settled]
        )
        for each, dependencies in after.items()
        if each in rows
    }


def _pending_state(root: Task, tasks: Mapping[str, TaskExecution]) -> RunStateName:
    if root.state == "halted":
        return "Halted"
    untouched = all(
        each.status in ("Pending", "Ready") and each.try_number == 0 for each in tasks.values()
    )
    return "Pending" if untouched else "Running"


def _settled(row: NodeRow, promise: Promise) -> TaskExecution:
    """A try that was running then (the run was cancelled, say) ended with it."""
    told = outcome.read(promise)
    settled_at = promise.settled_at or 0
    history = read_history(row.task.history)
    is_lost = told.error is not None and told.error.startswith("WorkerLost")
    if is_lost:
        history = without_gap(ended(history, settled_at, "Lost"), row.task.tries + 1)
    history = ended(history, settled_at, told.status, told.error)
    return replace(
        _waiting(row, told.status, None),
        tries=history.tries,
        error=told.error,
        reason=told.reason,
        conflicts=told.conflicts,
        settled_at=promise.settled_at,
    )


def _running(row: NodeRow) -> TaskExecution:
    deferred = row.task.sub_status == "Deferred"
    waiting_on = read_waiting_on(row.task.waiting_on)  # without a parking place: not Deferred
    return replace(
        _waiting(row, "Running", waiting_on and waiting_on.polled(row.polling)),
        sub_status="Deferred" if deferred else "Active",
        parked_in="memory" if deferred else None,
    )


def _suspended(row: NodeRow) -> TaskExecution:
    """After a failure it backs off; otherwise its body asked to be woken by a trigger."""
    last = read_history(row.task.history).last
    failed = row.task.failures > 0 if last is None else last.outcome == "Failed"
    if failed:
        return _waiting(row, "Pending", _backing_off(row, last))
    since = _last_change(row)
    stored = read_waiting_on(row.task.waiting_on)
    waiting_on = stored or WaitingOn("trigger", "waits in the store for its trigger", since)
    return replace(_waiting(row, "Running", waiting_on), sub_status="Deferred", parked_in="store")


def _waiting(row: NodeRow, status: TaskStatus, waiting_on: WaitingOn | None) -> TaskExecution:
    task = row.task
    return TaskExecution(
        id=_task_id(row),
        task_execution_id=task.id,
        status=status,
        try_number=task.try_number,
        failures=task.failures,
        crashes=task.crashes,
        tries=_tries(task),
        waiting_on=waiting_on,
        error=_last_error(task),
        progress=_progress(task),
        worker=task.pid if task.state == "acquired" else None,
        stuck=row.stuck or task.is_kept,
    )


def _tries(task: Task) -> tuple[Try, ...]:
    """The claim itself is no write of the worker: a try it has not told of yet is added.

    One that nobody holds any more and that has not ended was lost.
    """
    history = read_history(task.history)
    told = 0 if history.last is None else history.last.number
    if task.state == "acquired":
        history = without_gap(history, task.try_number)
        is_untold = told < task.try_number
        now = (Try(task.try_number, why_next(history)),) if is_untold else ()
        return (*history.tries, *now)
    if task.is_kept or task.state == "fulfilled":
        return history.tries
    lost = ended(history, task.waiting_since or 0, "Lost")
    return without_gap(lost, task.tries + 1).tries


def _halted(row: NodeRow) -> WaitingOn:
    told = read_waiting_on(row.task.waiting_on)
    sentence = "is halted until somebody continues it"
    return told or WaitingOn("manual", sentence, _last_change(row))


def _old_body(row: NodeRow) -> WaitingOn:
    sentence = f"goes on when worker {row.task.pid} has ended the body that was halted"
    return WaitingOn("worker", sentence, row.task.waiting_since or row.promise.created_at)


def _behind(row: NodeRow, unsettled: Sequence[str]) -> WaitingOn:
    names = ", ".join(f"'{each}'" for each in unsettled[:LISTED_DEPENDENCIES])
    more = len(unsettled) - LISTED_DEPENDENCIES
    told = names + (f" and {more} more" if more > 0 else "")
    sentence = f"waits for {told or f'{row.task.waits_left} dependencies'}"
    return WaitingOn("dependency", sentence, row.promise.created_at)


def _backing_off(row: NodeRow, last: Try | None) -> WaitingOn:
    until = row.retry_at or (last and last.retry_at)
    when = "backs off" if until is None else f"backs off until {moment(until)}"
    sentence = f"{when} after failure {row.task.failures}: {_last_error(row.task) or 'unknown'}"
    return WaitingOn("backoff", sentence, _last_change(row), until)


def _not_due(row: NodeRow, ready_at: Millis) -> WaitingOn:
    since = row.promise.created_at
    return WaitingOn("sleep", f"is due at {moment(ready_at)}", since, ready_at)


def _untaken(row: NodeRow) -> WaitingOn:
    task = row.task
    sentence = (
        f"is ready: no worker of group '{task.group}' that has the code of '{task.name}' "
        "had a free slot yet"
    )
    return WaitingOn("worker", sentence, task.ready_at or row.promise.created_at)


def _last_change(row: NodeRow) -> Millis:
    """When its last try ended, as far as that is known."""
    last = read_history(row.task.history).last
    end = last.spans[-1].end if last is not None and last.spans else None
    return row.promise.created_at if end is None else end


def _progress(task: Task) -> Progress | None:
    try:
        return msgspec.json.decode(task.progress, type=Progress) if task.progress else None
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _last_error(task: Task) -> str | None:
    return str(encoding.read_error(task.error)) if task.error else None


def _task_id(row: NodeRow) -> str:
    node = parse_node_id(row.promise.id)
    return row.promise.id if node is None else node.task_id
