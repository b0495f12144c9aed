"""What users write, and the pure rules of a workflow: no I/O, no clock, no randomness."""

from layby.workflow.context import Context
from layby.workflow.merge import MergeConflict
from layby.workflow.retry import RetryPolicy
from layby.workflow.status import (
    ChildState,
    Progress,
    RunStatus,
    Span,
    TaskExecution,
    Try,
    WaitExit,
    WaitingOn,
)
from layby.workflow.task import TaskDefinition, task
from layby.workflow.workflow import AnyTask, Workflow

__all__ = [
    "AnyTask",
    "ChildState",
    "Context",
    "MergeConflict",
    "Progress",
    "RetryPolicy",
    "RunStatus",
    "Span",
    "TaskDefinition",
    "TaskExecution",
    "Try",
    "WaitExit",
    "WaitingOn",
    "Workflow",
    "task",
]
