"""What the settled promises of a run say about each task, and about the run."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from layby.core.birth import encoded
from layby.core.commands import Value
from layby.core.model import Millis, Promise, PromiseState, Task
from layby.errors import RunCancelled, RunFailed
from layby.program import Verdict
from layby.wire import json_values
from layby.wire.json_values import ErrorText
from layby.workflow import plan
from layby.workflow.context import Context
from layby.workflow.merge import UNCHANGED, Delta, Merge, MergeConflict, View
from layby.workflow.rules import Skip
from layby.workflow.run_ending import OutcomeStatus, RunEnding, RunState
from layby.workflow.task_results import TaskResults

RunFilter = Literal["Running", "Completed", "Failed", "Cancelled"]
"""What runs can be listed by. `Running` is every run that has not ended, halted ones too."""
ROOT_STATES: Final[Mapping[RunFilter, tuple[PromiseState, ...]]] = {
    "Running": ("pending",),
    "Completed": ("resolved",),
    "Failed": ("rejected", "rejected_timedout"),
    "Cancelled": ("rejected_canceled",),
}
"""The states of the promise of such a run."""
MAX_RESULTS_IN_ROOT: Final = 16_000
"""Bytes of results that a root repeats, so that nobody has to read the tasks for them."""


class NodeOutcome(Struct, frozen=True):
    """How a task of a run ended."""

    status: OutcomeStatus
    delta: Delta = UNCHANGED
    conflicts: tuple[MergeConflict, ...] = ()
    """Keys to which concurrent tasks before it gave different values."""
    result: bytes | None = None
    """What it returned beside the context, as JSON."""
    event: str | None = None
    """The promise whose value it was resumed with, if it was deferred."""
    error: str | None = None
    """For Failed and Cancelled: what happened, in one line."""
    reason: str | None = None
    """For Skipped: why."""
    blocked: bool = False
    """Skipped because something before it failed."""


class RunOutcome(Struct, frozen=True):
    """How a run ended."""

    status: RunState
    context: Context | None = None
    """The final context of a completed run."""
    conflicts: tuple[MergeConflict, ...] = ()
    results: TaskResults | None = None
    """What `context.result` reads."""
    elsewhere: tuple[str, ...] = ()
    """Tasks whose results are not among them: together they were too large for the root."""
    failed: Mapping[str, str] = {}
    """Task ids and their errors."""
    by: str = ""
    reason: str = ""

    def result(self, run_id: str) -> Context:
        """The final context; a run without one raises the error that ended it."""
        if self.status == "Cancelled":
            raise RunCancelled(run_id, self.by, self.reason)
        if self.context is None:
            raise RunFailed(run_id, self.failed, self.reason)
        return self.context


class _NodeValue(Struct, frozen=True, omit_defaults=True):
    """What a finished node's promise holds."""

    status: Literal["Completed", "Skipped"]
    changed: dict[str, Raw] = {}
    removed: tuple[str, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    reason: str | None = None
    blocked: bool = False
    result: Raw | UnsetType = UNSET
    event: str | None = None


class _RunValue(Struct, frozen=True, omit_defaults=True):
    """What a completed root's promise holds."""

    status: Literal["Completed"]
    context: dict[str, Raw]
    conflicts: tuple[MergeConflict, ...] = ()
    results: dict[str, Raw] = {}
    elsewhere: tuple[str, ...] = ()


def encode_completed(
    delta: Delta,
    conflicts: tuple[MergeConflict, ...] = (),
    result: bytes | None = None,
    event: str | None = None,
) -> Value:
    changed = {key: Raw(value) for key, value in delta.changed.items()}
    kept = UNSET if result is None else Raw(result)
    value = _NodeValue("Completed", changed, delta.removed, conflicts, result=kept, event=event)
    return _wrapped(value)


def encode_skipped(skip: Skip) -> Value:
    return _wrapped(_NodeValue("Skipped", reason=skip.reason, blocked=skip.blocked))


def read(promise: Promise) -> NodeOutcome:
    """The outcome of a node whose promise has settled, no matter who settled it."""
    if promise.is_pending:
        raise ValueError(f"'{promise.id}' has not settled yet")
    if promise.state == "resolved":
        return _read_node(promise.value)
    if promise.state == "rejected_timedout":
        return NodeOutcome("Failed", error=_too_late(promise.timeout_at))
    told = json_values.read_error(promise.value)
    if promise.state == "rejected_canceled":
        return NodeOutcome("Cancelled", error=told.message or "cancelled")
    return _failed(promise.value)


def read_as(state: PromiseState, value: Value) -> NodeOutcome:
    """The outcome of a node that its worker is about to settle like this."""
    text = encoded(value)
    return _read_node(text) if state == "resolved" else _failed(text)


def failure_of(promise: Promise, task: Task | None) -> ErrorText | None:
    """How a task failed; if the run's deadline ended it, how its last try did."""
    if promise.state == "rejected":
        return json_values.read_error(promise.value)
    is_too_late = promise.state == "rejected_timedout"
    error = task.error if task is not None and is_too_late else None
    return None if error is None else json_values.read_error(error)


def _failed(text: str) -> NodeOutcome:
    return NodeOutcome("Failed", error=str(json_values.read_error(text)))


def conclude(outcomes: Mapping[str, NodeOutcome], final: Merge) -> Verdict:
    """A run has its result unless a task failed or was cancelled; `final` merges the leaves."""
    failed = _errors(outcomes)
    if failed:
        told = "; ".join(f"task '{task_id}': {error}" for task_id, error in failed.items())
        return Verdict("rejected", json_values.named_error_value("RunFailed", told, failed=failed))
    context = {key: Raw(value) for key, value in final.view.items()}
    results = {each: told.result for each, told in outcomes.items() if told.result is not None}
    is_small = sum(map(len, results.values())) <= MAX_RESULTS_IN_ROOT
    value = _RunValue(
        "Completed",
        context,
        final.conflicts,
        {each: Raw(result) for each, result in results.items()} if is_small else {},
        () if is_small else tuple(results),
    )
    return Verdict("resolved", _wrapped(value))


def ending(root: Promise, outcomes: Mapping[str, NodeOutcome]) -> RunEnding:
    """What those that clean up are told; the root has settled if the run ended early."""
    statuses: dict[str, OutcomeStatus] = {
        task_id: outcome.status for task_id, outcome in outcomes.items()
    }
    failed = _errors(outcomes)
    if root.is_pending:
        return RunEnding("Failed" if failed else "Completed", statuses, failed)
    over = read_run(root)
    return RunEnding(over.status, statuses, failed, over.by, over.reason)


def read_run(root: Promise) -> RunOutcome:
    """The outcome of a run whose root promise has settled, no matter who settled it."""
    if root.is_pending:
        raise ValueError(f"'{root.id}' has not settled yet")
    if root.state == "resolved":
        return _read_completed_run(root)
    if root.state == "rejected_timedout":
        return RunOutcome("Failed", reason=_too_late(root.timeout_at))
    if root.state == "rejected_canceled":
        return _read_cancelled_run(root.value)
    return _read_failed_run(root.value)


def _errors(outcomes: Mapping[str, NodeOutcome]) -> dict[str, str]:
    return {
        task_id: outcome.error or outcome.status
        for task_id, outcome in outcomes.items()
        if outcome.status in ("Failed", "Cancelled")
    }


def _wrapped(value: Struct) -> Value:
    return json_values.wrap(msgspec.json.encode(value))


def _read_node(text: str) -> NodeOutcome:
    """A node resolved by anybody but its worker is completed and changed nothing."""
    try:
        told = msgspec.json.decode(json_values.bytes_of(text), type=_NodeValue)
    except (msgspec.MsgspecError, ValueError):
        return NodeOutcome("Completed")
    changed = {key: bytes(value) for key, value in told.changed.items()}
    delta = Delta(changed, told.removed) if changed or told.removed else UNCHANGED
    return NodeOutcome(
        told.status,
        delta,
        told.conflicts,
        None if told.result is UNSET else bytes(told.result),
        told.event,
        reason=told.reason,
        blocked=told.blocked,
    )


def _read_completed_run(root: Promise) -> RunOutcome:
    try:
        told = msgspec.json.decode(json_values.bytes_of(root.value), type=_RunValue)
    except (msgspec.MsgspecError, ValueError):
        return RunOutcome("Completed", Context(_mapping(json_values.from_text(root.value))))
    final = View.initial({key: bytes(value) for key, value in told.context.items()})
    results = {each: bytes(value) for each, value in told.results.items()}
    kept = TaskResults(partial(plan.shape_of, root.param), results)
    context = Context.over(final, kept)
    return RunOutcome("Completed", context, told.conflicts, kept, told.elsewhere)


def _read_cancelled_run(text: str) -> RunOutcome:
    told = json_values.read_error(text)
    by, reason = (str(told.details.get(each) or "") for each in ("by", "reason"))
    return RunOutcome("Cancelled", by=by, reason=reason)


def _read_failed_run(text: str) -> RunOutcome:
    told = json_values.read_error(text)
    failed = {key: str(error) for key, error in _mapping(told.details.get("failed")).items()}
    return RunOutcome("Failed", failed=failed, reason="" if failed else str(told))


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _too_late(deadline: Millis) -> str:
    return f"the run's deadline passed ({moment(deadline)})"


def moment(at: Millis) -> str:
    """An instant as people read it."""
    try:
        return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "the end of time"
