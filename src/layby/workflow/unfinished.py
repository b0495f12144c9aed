"""What a run without a result leaves: the context it had made, and how its tasks failed."""

from collections.abc import Iterable, Mapping

from layby.core.model import Millis, Promise, Task
from layby.errors import RunFailed, TaskFailed
from layby.wire.json_values import ErrorText
from layby.workflow import outcome, plan
from layby.workflow.context import Context
from layby.workflow.task_results import TaskResults
from layby.workflow.views import RunViews

Rows = Mapping[str, tuple[Promise, Task]]
"""The promise and task of each task of a run, by task id, as they are now."""


def rows_of(rows: Iterable[tuple[Promise, Task | None]], now: Millis) -> Rows:
    """The tasks among the rows of a run, or of one of its lives."""
    found: dict[str, tuple[Promise, Task]] = {}
    for promise, task in rows:
        node = plan.parse_node_id(promise.id)
        if node is not None and task is not None and task.is_node:
            found[node.task_id] = promise.at(now), task
    return found


def context_so_far(root: Promise, rows: Rows) -> Context:
    """Everything that settled tasks have changed, and what they returned."""
    param = plan.read_root_param(root.param)
    views = RunViews(param.shape, param.initial)
    results = TaskResults(param.shape)
    for task_id in param.shape.after:
        promise = rows[task_id][0] if task_id in rows else None
        if promise is None or promise.is_pending:
            views.leave_open(task_id)
            continue
        told = outcome.read(promise)
        settled_at = None if task_id in param.reused else promise.settled_at
        views.learn(task_id, told.delta, settled_at)
        if told.result is not None:
            results.learn(task_id, told.result)
    return Context.over(views.so_far(), results)


def run_failed(root: Promise, rows: Rows) -> RunFailed:
    over = outcome.read_run(root)
    shape = plan.shape_of(root.param)
    told = {each: _task_failed(each, *rows[each], over) for each in shape.after if each in rows}
    errors = {each: error for each, error in told.items() if error is not None}
    run_id = plan.run_id_of(root.id)
    return RunFailed(run_id, over.failed, over.reason, errors, context_so_far(root, rows))


def _task_failed(
    task_id: str, promise: Promise, task: Task, over: outcome.RunOutcome
) -> TaskFailed | None:
    """None for a task that did not fail, or only because the run ended without it."""
    told = outcome.failure_of(promise, task)
    if told is None and task_id in over.failed:
        is_cancelled = promise.state == "rejected_canceled"
        kind = "Cancelled" if is_cancelled else "TimeoutError"
        told = ErrorText(kind, over.failed[task_id])
    if told is None:
        return None
    return TaskFailed(task_id, told.name, told.message, told.stack, task.try_number)
