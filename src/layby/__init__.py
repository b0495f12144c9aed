"""layby runs Python tasks that hold no slot while they wait.

This module is the front door: every public name is imported from here, none is defined here.
Most are loaded when somebody first asks for them: a server, or a command that asks one, needs
neither workers nor workflows, and starts in half the time without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from layby.errors import (
    ConditionError,
    Conflict,
    ContextError,
    DeferTimeout,
    ItemFailed,
    LaybyError,
    NoneSucceeded,
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

if TYPE_CHECKING:
    from layby import waits
    from layby.runner import LimitStanding, Retention, Run, Runner, Schedule, Settlement
    from layby.runner.blocking_runner import BlockingRunner, run
    from layby.trigger_manager.trigger_access import NamedSecret, TriggerAccess
    from layby.worker.approval_requests import Approval, ApprovalAnswer
    from layby.worker.blocking_handle import BlockingHandle
    from layby.worker.child_run import BlockingChildRun, ChildRun
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
    "Approval",
    "ApprovalAnswer",
    "BlockingChildRun",
    "BlockingHandle",
    "BlockingRunner",
    "ChildRun",
    "ConditionError",
    "Conflict",
    "Context",
    "ContextError",
    "DeferTimeout",
    "ItemFailed",
    "LaybyError",
    "LimitStanding",
    "NamedSecret",
    "NoneSucceeded",
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
    "TriggerAccess",
    "TriggerError",
    "Unavailable",
    "UsageError",
    "WorkerLost",
    "Workflow",
    "WorkflowError",
    "current_handle",
    "run",
    "task",
    "waits",
]

_HOMES: Final = {
    "AnyTask": "layby.workflow.workflow",
    "Approval": "layby.worker.approval_requests",
    "ApprovalAnswer": "layby.worker.approval_requests",
    "BlockingChildRun": "layby.worker.child_run",
    "BlockingHandle": "layby.worker.blocking_handle",
    "BlockingRunner": "layby.runner.blocking_runner",
    "ChildRun": "layby.worker.child_run",
    "Context": "layby.workflow.context",
    "LimitStanding": "layby.runner",
    "NamedSecret": "layby.trigger_manager.trigger_access",
    "Retention": "layby.runner",
    "RetryPolicy": "layby.workflow.retry",
    "Run": "layby.runner",
    "RunEnding": "layby.workflow.run_ending",
    "RunStatus": "layby.workflow.status",
    "Runner": "layby.runner",
    "Schedule": "layby.runner",
    "Settlement": "layby.runner",
    "TaskExecution": "layby.workflow.status",
    "TaskHandle": "layby.worker.handle",
    "TriggerAccess": "layby.trigger_manager.trigger_access",
    "Workflow": "layby.workflow.workflow",
    "current_handle": "layby.worker.handle",
    "run": "layby.runner.blocking_runner",
    "task": "layby.workflow.task",
}
_PACKAGES: Final = ("executors", "waits", "workflow")
"""Public as well, and there without an import of their own."""

if not TYPE_CHECKING:  # or a name that does not exist would be of any type

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"layby.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'layby' has no attribute '{name}'")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PACKAGES})
