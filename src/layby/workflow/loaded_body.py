"""A task's function ready to run: for a node of a run, or for a call from another language."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw

from layby.core.commands import Value
from layby.core.fields import MAX_PRIORITY
from layby.core.replies import Claim, Resumed
from layby.errors import UsageError
from layby.program import Failure, Mapped, Mode, UnfitCode, function_named
from layby.wire import json_values
from layby.wire.trigger_events import payload_of
from layby.workflow.context import Context
from layby.workflow.history import ClaimHistory
from layby.workflow.mapped_tasks import is_same_context, mapped_as_stored
from layby.workflow.task import TaskDefinition, is_async


class LoadedBody:
    """What both have in common: all but the meaning of the result."""

    __slots__ = (
        "_context",
        "_definition",
        "_random",
        "_resumed",
        "_then",
        "code",
        "history",
        "run_priority",
    )

    is_pinned = False
    """Whether its run stays on the code that began it."""

    def __init__(
        self,
        definition: TaskDefinition[..., Any],
        context: Context,
        claim: Claim,
        random: Callable[[], float],
        code: str | None = None,
    ) -> None:
        self.code = code
        self._definition = definition
        self._context = context
        self._random = random
        self._resumed = claim.resumed
        self.run_priority = _within_bounds(claim.task.priority - definition.priority)
        self._then = _function_of(claim.resumed, definition, code)
        """What it is resumed at; None when its own function runs."""
        if claim.resumed is not None and claim.resumed.context is not None:
            context.restore(claim.resumed.context)
        self.history = ClaimHistory(claim.task, claim.ready_at or None, code, claim.resumed)

    @property
    def mode(self) -> Mode:
        if self._then is not None:
            return "async" if is_async(self._then) else "thread"
        return self._definition.mode

    @property
    def timeout(self) -> float | None:
        return self._definition.timeout

    def body(self, handle: Any) -> Callable[[], Any]:
        if self._then is not None:
            return partial(self._go_on, self._then, handle)
        if self._definition.process:
            return partial(self.in_process, self._definition, self._context.for_process())
        return partial(self._definition.call, self._context, handle, **self._given())

    def _given(self) -> dict[str, Any]:
        """What the function gets by name, besides the handle."""
        return {}

    def _go_on(self, then: Callable[..., Any], handle: Any) -> Any:
        """A trigger that failed, or came too late, fails the try that it would have begun."""
        assert self._resumed is not None
        event = payload_of(self._resumed.event, self._definition.id)
        kwargs = json_values.decode(self._resumed.kwargs.encode())
        return then(self._context, handle, event=event, **kwargs)

    @property
    def event_id(self) -> str | None:
        """The promise whose value it was resumed with, if it was."""
        event = None if self._resumed is None else self._resumed.event
        return event.id if event is not None and event.state == "resolved" else None

    def carried(self) -> Raw:
        return self._context.carried()

    @staticmethod
    def in_process(definition: TaskDefinition[..., Any], context: Context) -> Any:
        """Runs in the child process; returns what `completed` is given."""
        raise NotImplementedError

    def completed(self, result: Any) -> Value:
        raise NotImplementedError

    def failed(self, error: BaseException, failures: int, *, may_retry: bool = True) -> Failure:
        delay = None
        if may_retry:
            delay = self._definition.retry.next_delay(failures, error, self._random)
        return Failure(json_values.error_value(error), delay)

    def mapped(self, task: object) -> Mapped:
        if self.code is None:
            raise UsageError(f"map: '{self._definition.id}' serves a call; only tasks of runs map")
        return mapped_as_stored(task, self._context, self.run_priority, is_pinned=self.is_pinned)

    def is_same_input(self, join_param: str, other: str) -> bool:
        return is_same_context(join_param, other)

    def callback(self, error: BaseException | None) -> Callable[[], Any] | None:
        return self._definition.callback(self._context, error)


def _within_bounds(priority: int) -> int:
    """The code may give the task another priority than it had when its run was started."""
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))


def _function_of(
    resumed: Resumed | None, definition: TaskDefinition[..., Any], code: str | None
) -> Callable[..., Any] | None:
    """The function to go on with. Where there is none of that name, the code does not fit."""
    if resumed is None or resumed.name is None:
        return None
    found = function_named(resumed.name, definition.function)
    if found is not None:
        return found
    why = f"there is no function '{resumed.name}' for task '{definition.id}' to be resumed at"
    raise UsageError(why) if code is None else UnfitCode(why, code)
