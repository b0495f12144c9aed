"""A task's function ready to run: for a node of a run, or for a call from another language."""

from collections.abc import Callable
from functools import partial
from typing import Any

from layby.core.commands import Value
from layby.core.replies import Claim
from layby.program import Failure, Mode
from layby.wire import json_values
from layby.workflow.context import Context
from layby.workflow.history import ClaimHistory
from layby.workflow.task import TaskDefinition


class LoadedBody:
    """What both have in common: all but the meaning of the result."""

    __slots__ = ("_context", "_definition", "_random", "code", "history")

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
        self.history = ClaimHistory(claim.task, claim.ready_at or None, code)

    @property
    def mode(self) -> Mode:
        return self._definition.mode

    @property
    def timeout(self) -> float | None:
        return self._definition.timeout

    def body(self, handle: Any) -> Callable[[], Any]:
        if self._definition.process:
            return partial(self.in_process, self._definition, self._context.for_process())
        return partial(self._definition.call, self._context, handle)

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

    def callback(self, error: BaseException | None) -> Callable[[], Any] | None:
        return self._definition.callback(self._context, error)
