"""How a try ended, from what its code did and why it was ended: a report, or none."""

import asyncio
from typing import Any, Literal, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from layby.core.commands import Value
from layby.errors import ContextError, ProcessFailed, ReplayMismatch, TaskTimeout
from layby.wire.json_values import error_text
from layby.worker.attempt import Attempt
from layby.worker.callbacks import Callback
from layby.worker.child_stack import EndedInChild, traceback_text
from layby.worker.deferring import Deferral, Deferred


class Completed(Struct, frozen=True):
    value: Value


class Failed(Struct, frozen=True):
    """`delay`: seconds until the next try; None if there is none."""

    error: BaseException
    value: Value
    delay: float | None
    then: Callback | None

    @property
    def text(self) -> str:
        return error_text(self.error)


class Deferring(Struct, frozen=True):
    """`context`: what the body had changed, if the next try begins elsewhere."""

    deferral: Deferral
    context: Raw | UnsetType


Ending = Completed | Failed | Deferring | Literal["taken away", "blocked"]


def classify(attempt: Attempt, task: "asyncio.Task[Any] | None") -> Ending:
    """`task` is None for a body that goes on though it was ended: its try is over all the same."""
    if attempt.replay.mismatch is not None and attempt.reason != "lost":
        return _mismatched(attempt, attempt.replay.mismatch)
    if attempt.reason == "timeout":
        return failed(attempt, timeout_error(attempt))
    if attempt.reason is not None:
        return "taken away"
    if attempt.deferral is not None and task is not None and _has_only_deferred(task):
        return _deferring(attempt, attempt.deferral)
    if task is None or task.cancelled() or task.exception() is not None:
        return failed(attempt, attempt.error or asyncio.CancelledError("cancelled"))
    try:
        return Completed(attempt.loaded.completed(task.result()))
    except Exception as error:  # noqa: BLE001 - a result that cannot be stored is a failure
        return failed(attempt, error, may_retry=False)


def _has_only_deferred(task: "asyncio.Task[Any]") -> bool:
    """Whether nothing else went wrong while the body ended; it may even have swallowed that."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(Deferred)[1] is None
    return not task.cancelled() and (error is None or isinstance(error, Deferred))


def _deferring(attempt: Attempt, deferral: Deferral) -> Ending:
    """Whoever begins at the function again begins with its original input."""
    try:
        context = UNSET if deferral.name is None else attempt.loaded.carried()
    except Exception as error:  # noqa: BLE001 - a context that cannot be stored is a failure
        return failed(attempt, error, may_retry=False)
    return Deferring(deferral, context)


def _mismatched(attempt: Attempt, mismatch: ReplayMismatch) -> Ending:
    """A task of a run waits for other code; a call has a caller who waits for an answer."""
    return failed(attempt, mismatch) if attempt.loaded.code is None else "blocked"


def failed(attempt: Attempt, error: BaseException, *, may_retry: bool = True) -> Failed:
    """What cannot be stored is not worth another try: the code has done its work."""
    may_retry = may_retry and not is_unstorable(error)
    failure = attempt.loaded.failed(error, attempt.failures + 1, may_retry=may_retry)
    return Failed(error, failure.error, failure.delay, attempt.loaded.callback(error))


def is_unstorable(error: BaseException) -> bool:
    """Whether code made a value that cannot be stored, in a child process or a TaskGroup too.

    An error that the code raises in its place is its own business, and that of its retry policy.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(ContextError) is not None
    told = error.__cause__ if isinstance(error, ProcessFailed) else error
    return isinstance(told, ContextError)


def timeout_error(attempt: Attempt) -> TaskTimeout:
    """It names the place where the body was ended, if that is known."""
    error = TaskTimeout(
        f"{attempt.id} held its slot longer than its timeout of {attempt.loaded.timeout:g} s"
    )
    if isinstance(attempt.error, EndedInChild):
        error.traceback = traceback_text(attempt.error.stack, error)
    return error.with_traceback(attempt.error and attempt.error.__traceback__)
