"""Checks of priorities and slots, where somebody writes them."""

from typing import TYPE_CHECKING

from layby.core.fields import MAX_PRIORITY, MAX_SLOTS
from layby.errors import UsageError, WorkflowError

if TYPE_CHECKING:
    from layby.workflow.workflow import Workflow


def check_priority(given: object, what: str, refusal: type[UsageError] = UsageError) -> int:
    """A whole number; True is not one."""
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) > MAX_PRIORITY:
        raise refusal(
            f"{what} must be a whole number between -{MAX_PRIORITY} and {MAX_PRIORITY}, "
            f"got {given!r}"
        )
    return given


def check_slots(given: object, task_id: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_SLOTS:
        raise WorkflowError(
            f"slots of task '{task_id}' must be a whole number between 1 and {MAX_SLOTS}, "
            f"got {given!r}"
        )
    return given


def check_fits(flow: "Workflow", slots: int, group: str) -> None:
    """Whether a worker of this group with so many slots can run every task it would take."""
    for task in flow.tasks.values():
        if task.slots > slots and task.group in (None, group):
            raise UsageError(
                f"task '{task.id}' of workflow '{flow.name}' needs {task.slots} slots at once, but "
                f"this worker has {slots}: give the worker more slots, or the task fewer, or a "
                "group= of workers that have enough"
            )
