"""What people see of a run and its tasks, derived from rows; nothing is decided here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core import joins
from layby.core.birth import awaited_runs, run_priority_of, schedule_of
from layby.core.children import caller_of
from layby.core.held_exits import HeldExit, exit_of, exit_task
from layby.core.model import NEVER, Millis, Promise, Task
from layby.core.questions import settled_by
from layby.core.replies import Explanation
from layby.core.waits import (
    Form,
    Polling,
    Waiting,
    WaitingOn,
    WaitKind,
    waiting_of,
)
from layby.errors import WireError
from layby.wire import json_values
from layby.workflow import outcome
from layby.workflow.by_hand import by_hand
from layby.workflow.child_states import ChildState
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
from layby.workflow.merge import MergeConflict
from layby.workflow.plan import (
    life_of,
    parse_node_id,
    parse_root_id,
    read_root_param,
    run_id_of,
)
from layby.workflow.shape import Shape
from layby.workflow.wait_sentences import (
    items_left,
    mapped_name,
    old_body_sentence,
    queued_sentence,
    sentence_of,
)

__all__ = [
    "ChildState",
    "History",
    "MapStatus",
    "NodeRow",
    "Polling",
    "Progress",
    "RunStatus",
    "Span",
    "TaskExecution",
    "TaskHistory",
    "Try",
    "WaitExit",
    "WaitKind",
    "WaitingOn",
    "exits_by_task",
    "joins_by_caller",
    "run_status",
    "task_execution",
]

TaskStatus = Literal[
    "Pending", "Ready", "Running", "Completed", "Failed", "Skipped", "Cancelled", "Halted"
]
SubStatus = Literal["Active", "Deferred"]
ParkedIn = Literal["memory", "store"]
RunStateName = Literal["Pending", "Running", "Completed", "Failed", "Cancelled", "Halted"]
_STATUS: Final[dict[Form, TaskStatus]] = {
    "in_slot": "Running",
    "parked": "Running",
    "suspended": "Running",
    "untaken": "Ready",
    "halted": "Halted",
}
"""A task that waits in any other form is Pending."""


class Progress(Struct, frozen=True):
    """The progress that the body last reported."""

    fraction: float | None = None
    text: str = ""
    at: Millis = 0


class MapStatus(Struct, frozen=True, kw_only=True):
    """One call of `map` by a task: how far it is."""

    id: str
    """The promise that waits for its items."""
    task: str
    """The function that is run for each item."""
    items: int | None = None
    """How many there are; None while they are still being added."""
    left: int = 0
    """How many of those that are there have not ended."""
    settled_at: Millis | None = None

    @property
    def done(self) -> int:
        """How many have ended, well or not; 0 while items are still being added."""
        return max(0, (self.items or 0) - self.left)


class WaitExit(Struct, frozen=True, kw_only=True):
    """A person has ended or prolonged a wait by hand."""

    what: Literal["ended", "failed", "extended"]
    wait: str
    """What the end of that wait is stored as."""
    at: Millis
    until: Millis | None = None
    """Of one that was extended: when it ends now; None for never."""
    by: str = ""
    reason: str = ""


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
    result: Any = None
    """What it returned, if that was not a mapping: those are merged into the context."""
    error: str | None = None
    """Why it failed or was cancelled; while it is tried again, its last failure."""
    traceback: str = ""
    """Where its last failure was raised, without layby's own frames."""
    reason: str | None = None
    """Why it was skipped."""
    conflicts: tuple[MergeConflict, ...] = ()
    progress: Progress | None = None
    worker: str | None = None
    priority: int = 0
    """What counts: that of its run is part of it."""
    slots: int = 1
    """How many slots of its worker its body holds."""
    settled_at: Millis | None = None
    stuck: bool = False
    """Whether a body still runs although the task has settled or was halted."""
    life: int = 1
    """The life of the run in which it ran, or runs."""
    maps: tuple[MapStatus, ...] = ()
    """Its calls of `map`, in the order of their ids."""
    by_hand: tuple[str, ...] = ()
    """Commands that end its wait by hand, or give it more time."""
    exits: tuple[WaitExit, ...] = ()
    """What people have decided about the waits of its bodies, in the order in which they did."""


class RunStatus(Struct, frozen=True, kw_only=True):
    run_id: str
    flow: str
    state: RunStateName
    tasks: Mapping[str, TaskExecution]
    """By task id, in the order of the workflow."""
    created_at: Millis
    settled_at: Millis | None = None
    deadline: Millis | None = None
    priority: int = 0
    failed: Mapping[str, str] = {}
    by: str = ""
    reason: str = ""
    codes: tuple[str, ...] = ()
    """Names of the codes that its tasks have run with, in the order of its tasks."""
    pin: str | None = None
    """The code it is pinned to, if it is."""
    is_cleaning_up: bool = False
    """Whether tasks with `rule="finally"` are still to end, and everything else has: the run
    itself, or all its other tasks.
    """
    life: int = 1
    """Which life of the run this is."""
    lives: int = 1
    """How many the run has had: one more each time it is run again."""
    caller: str | None = None
    """Of a child run: the `task_execution_id` of the task that has started it."""
    children: tuple[ChildState, ...] = ()
    """The runs that its tasks have started, by id."""


class NodeRow(Struct, frozen=True):
    """The rows of one task of a run, with what else is known of it."""

    promise: Promise
    task: Task
    polling: Polling | None = None
    stuck: bool = False
    """Whether this process still runs a body of it that should have ended."""
    runnable: Explanation | None = None
    """Who could run it, as the store explains any task with the same code; None: not known."""
    old_body: Task | None = None
    """The same task in an earlier life of the run, if a body of that still runs."""
    joins: tuple[tuple[Promise, Task], ...] = ()
    """Of its calls of `map`."""
    exits: tuple[WaitExit, ...] = ()


def run_status(
    root: Promise,
    root_task: Task | None,
    nodes: Sequence[NodeRow],
    now: Millis,
    lives: int = 1,
) -> RunStatus:
    """`nodes`: all tasks of the run, in any order; with those of earlier lives that are kept."""
    if root_task is None:
        raise WireError(f"the task of {root.id} is missing from the answer: every run has one")
    root = root.at(now)
    param = read_root_param(root.param)
    tasks = _executions(nodes, param.shape, now, _queued(root))
    over = None if root.is_pending else outcome.read_run(root)
    is_over = over is not None or all(
        tasks[each].settled_at is not None for each in tasks.keys() - param.shape.cleanups
    )
    is_clean = all(
        tasks[each].settled_at is not None for each in tasks.keys() & param.shape.cleanups
    )
    return RunStatus(
        run_id=parse_root_id(root.id) or root.id,
        flow=param.flow,
        state=_pending_state(root_task, tasks) if over is None else over.status,
        tasks=tasks,
        created_at=root.created_at,
        settled_at=root.settled_at,
        deadline=None if root.timeout_at == NEVER else root.timeout_at,
        priority=run_priority_of(root.tags),
        failed={} if over is None else over.failed,
        by="" if over is None else over.by,
        reason="" if over is None else over.reason,
        codes=_codes(tasks.values()),
        pin=root_task.pin,
        is_cleaning_up=is_over and not is_clean,
        life=param.life,
        lives=lives,
        caller=caller_of(root),
    )


def _queued(root: Promise) -> str:
    """What the first tasks of a run wait for that was queued behind others; empty if it was not."""
    schedule_id, previous = schedule_of(root.tags), awaited_runs(root.tags)
    if schedule_id is None or not previous:
        return ""
    return queued_sentence(schedule_id, [run_id_of(each) for each in previous])


def task_execution(
    row: NodeRow, now: Millis, before: Sequence[NodeRow] = (), queued: str = ""
) -> TaskExecution:
    """`before`: dependencies that have not settled, as far as they are known.

    `queued`: what it says of a task without dependencies that others hold up nevertheless.
    """
    promise, task = row.promise.at(now), row.task
    if not promise.is_pending:
        return _settled(row, promise)
    waiting = waiting_of(promise, task, now)
    if task.state == "acquired":
        parked_in: ParkedIn | None = "memory" if task.sub_status == "Deferred" else None
        sub_status: SubStatus | None = "Active" if parked_in is None else "Deferred"
    else:
        parked_in = "store" if waiting is not None and waiting.form == "suspended" else None
        sub_status = None if parked_in is None else "Deferred"
    return replace(
        _shown(row, "Running" if waiting is None else _STATUS.get(waiting.form, "Pending")),
        sub_status=sub_status,
        parked_in=parked_in,
        waiting_on=waiting and _waiting_on(row, waiting, before, now, queued),
        by_hand=() if waiting is None else by_hand(promise.id, waiting),
    )


def _waiting_on(
    row: NodeRow, waiting: Waiting, before: Sequence[NodeRow], now: Millis, queued: str
) -> WaitingOn:
    """As the worker reported it, unless only the store knows about the wait."""
    if waiting.told is not None and waiting.form != "backoff":
        told = replace(waiting.told, since=waiting.since) if waiting.is_held else waiting.told
        return _with_count(row, told.polled(row.polling))
    awaited = [(each.promise, each.task) for each in before]
    about = Explanation(row.promise, row.task, awaited)
    if row.runnable is not None:
        able, workers = row.runnable.able_workers, row.runnable.workers
        about = replace(about, able_workers=able, workers=workers)
    if waiting.form == "dependency" and not awaited and row.old_body is not None:
        return WaitingOn(waiting.kind, old_body_sentence(row.old_body), waiting.since)
    if waiting.form == "dependency" and not awaited and queued:
        return WaitingOn(waiting.kind, queued, waiting.since)
    sentence = sentence_of(about, waiting, now, knows_workers=row.runnable is not None)
    return WaitingOn(waiting.kind, sentence, waiting.since, waiting.until)


def _with_count(row: NodeRow, told: WaitingOn) -> WaitingOn:
    """How many items a task waits for, as its join counts them."""
    for promise, task in row.joins if told.kind == "map" else ():
        if promise.id == told.awaited:
            return replace(told, sentence=f"waiting for {items_left(promise, task)}")
    return told


def joins_by_caller(
    rows: Iterable[tuple[Promise, Task | None]],
) -> dict[str, tuple[tuple[Promise, Task], ...]]:
    """The calls of `map` among the rows of a run, by the promises of the tasks that made them."""
    found: dict[str, tuple[tuple[Promise, Task], ...]] = {}
    for promise, task in rows:
        if task is not None and task.is_join:
            caller = joins.caller_of(promise.id)
            found[caller] = (*found.get(caller, ()), (promise, task))
    return found


def exits_by_task(rows: Iterable[tuple[Promise, Task | None]]) -> dict[str, tuple[WaitExit, ...]]:
    """What people have decided about waits, among the rows of a run, by the promises of tasks."""
    found: dict[str, tuple[WaitExit, ...]] = {}
    told = ((promise, exit_of(promise)) for promise, _ in rows)
    for promise, decided in sorted(
        ((promise, each) for promise, each in told if each is not None),
        key=lambda pair: (pair[0].created_at, pair[0].id),
    ):
        task_id = exit_task(promise)
        found[task_id] = (*found.get(task_id, ()), _wait_exit(promise, decided))
    return found


def _wait_exit(promise: Promise, decided: HeldExit) -> WaitExit:
    by, reason = settled_by(promise)
    is_extended = decided.until is not None
    return WaitExit(
        what="extended" if is_extended else "ended" if promise.state == "resolved" else "failed",
        wait=decided.wait,
        at=promise.created_at,
        until=None if decided.until == NEVER else decided.until,
        by=by,
        reason=reason,
    )


def _map_status(promise: Promise, join: Task) -> MapStatus:
    return MapStatus(
        id=promise.id,
        task=mapped_name(promise),
        items=join.items,
        left=join.waits_left,
        settled_at=promise.settled_at,
    )


def _executions(
    nodes: Sequence[NodeRow], shape: Shape, now: Millis, queued: str
) -> dict[str, TaskExecution]:
    rows = {_task_id(row): row for row in nodes}
    unsettled = {each: row for each, row in rows.items() if row.promise.at(now).is_pending}
    unended = unsettled | {each: row for each, row in rows.items() if row.task.is_kept}
    return {
        each: task_execution(rows[each], now, _open(each, shape, unsettled, unended), queued)
        for each in shape.after
        if each in rows
    }


def _codes(tasks: Iterable[TaskExecution]) -> tuple[str, ...]:
    tried = (each.code for task in tasks for each in task.tries if each.code is not None)
    return tuple(dict.fromkeys(tried))


def _open(
    task_id: str,
    shape: Shape,
    unsettled: Mapping[str, NodeRow],
    unended: Mapping[str, NodeRow],
) -> list[NodeRow]:
    """What a task still waits for; one that cleans up also waits for the ends of bodies."""
    awaited = unended if task_id in shape.cleanups else unsettled
    return [awaited[each] for each in shape.after[task_id] if each in awaited]


def _pending_state(root: Task, tasks: Mapping[str, TaskExecution]) -> RunStateName:
    if root.state == "halted":
        return "Halted"
    untouched = all(
        each.status in ("Pending", "Ready") and each.try_number == 0 for each in tasks.values()
    )
    return "Pending" if untouched else "Running"


def _settled(row: NodeRow, promise: Promise) -> TaskExecution:
    """A try that was still running (the run was cancelled, say) ended at that moment."""
    told, failure = outcome.read(promise), outcome.failure_of(promise, row.task)
    settled_at = promise.settled_at or 0
    history = read_history(row.task.history)
    is_lost = told.error is not None and told.error.startswith("WorkerLost")
    if is_lost:
        history = without_gap(ended(history, settled_at, "Lost"), row.task.tries + 1)
    history = ended(history, settled_at, told.status, told.error)
    return replace(
        _shown(row, told.status),
        tries=history.tries,
        result=None if told.result is None else json_values.decode(told.result),
        error=told.error,
        traceback="" if failure is None else failure.stack,
        reason=told.reason,
        conflicts=told.conflicts,
        settled_at=promise.settled_at,
    )


def _shown(row: NodeRow, status: TaskStatus) -> TaskExecution:
    task = row.task
    return TaskExecution(
        id=_task_id(row),
        task_execution_id=task.id,
        status=status,
        try_number=task.try_number,
        failures=task.failures,
        crashes=task.crashes,
        tries=_tries(task),
        error=_last_error(task),
        traceback=json_values.read_error(task.error).stack if task.error else "",
        progress=_progress(task),
        worker=task.pid if task.state == "acquired" else None,
        priority=task.priority,
        slots=task.slots,
        stuck=row.stuck or task.is_kept,
        life=life_of(task.id),
        maps=tuple(_map_status(*each) for each in row.joins),
        exits=row.exits,
    )


def _tries(task: Task) -> tuple[Try, ...]:
    """A worker writes nothing when it claims: a try it has not reported yet is added.

    A try that has not ended, of a task that nobody holds any more, was lost.
    """
    history = read_history(task.history)
    told = 0 if history.last is None else history.last.number
    if task.state == "acquired":
        history = without_gap(history, task.try_number)
        is_untold = told < task.try_number
        now = (_resumed(Try(task.try_number, why_next(history)), task),) if is_untold else ()
        return (*history.tries, *now)
    if task.is_kept or task.state == "fulfilled":
        return history.tries
    lost = ended(history, task.waiting_since or 0, "Lost")
    return without_gap(lost, task.tries + 1).tries


def _resumed(begun: Try, task: Task) -> Try:
    """What it was resumed with is stored with the task until it has reported anything."""
    waited = task.resumption
    if waited is None:
        return begun
    return replace(begun, callback=waited.name, event=waited.won)


def _progress(task: Task) -> Progress | None:
    try:
        return msgspec.json.decode(task.progress, type=Progress) if task.progress else None
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _last_error(task: Task) -> str | None:
    return str(json_values.read_error(task.error)) if task.error else None


def _task_id(row: NodeRow) -> str:
    node = parse_node_id(row.promise.id)
    return row.promise.id if node is None else node.task_id
