"""layby runs Python tasks that hold no slot while they wait.

This module is the front door: every public name is imported from here, none is defined here.
"""

from layby.errors import (
    ConditionError,
    Conflict,
    ContextError,
    DeferTimeout,
    LaybyError,
    NotAllowed,
    NotFound,
    PromiseCancelled,
    PromiseRejected,
    PromiseTimedOut,
    ReplayMismatch,
    ResultExpired,
    RunCancelled,
    RunFailed,
    StoreError,
    StoreUnavailable,
    TaskFailed,
    TaskTimeout,
    TriggerError,
    Unavailable,
    UsageError,
    WorkerLost,
    WorkflowError,
)
from layby.runner import BlockingRunner, Retention, Run, Runner, Schedule, Settlement, run
from layby.worker.blocking_handle import BlockingHandle
from layby.worker.handle import TaskHandle, current_handle
from layby.workflow.context import Context
from layby.workflow.retry import RetryPolicy
from layby.workflow.run_ending import RunEnding
from layby.workflow.status import RunStatus, TaskExecution
from layby.workflow.task import task
from layby.workflow.workflow import AnyTask, Workflow

__version__ = "0.1.0.dev0"

__all__ = [
    "AnyTask",
    "BlockingHandle",
    "BlockingRunner",
    "ConditionError",
    "Conflict",
    "Context",
    "ContextError",
    "DeferTimeout",
    "LaybyError",
    "NotAllowed",
    "NotFound",
    "PromiseCancelled",
    "PromiseRejected",
    "PromiseTimedOut",
    "ReplayMismatch",
    "ResultExpired",
    "Retention",
    "RetryPolicy",
    "Run",
    "RunCancelled",
    "RunEnding",
    "RunFailed",
    "RunStatus",
    "Runner",
    "Schedule",
    "Settlement",
    "StoreError",
    "StoreUnavailable",
    "TaskExecution",
    "TaskFailed",
    "TaskHandle",
    "TaskTimeout",
    "TriggerError",
    "Unavailable",
    "UsageError",
    "WorkerLost",
    "Workflow",
    "WorkflowError",
    "current_handle",
    "run",
    "task",
]
