"""Giving up a body until a trigger fires: what `handle.defer` checks, sends and returns.

The body is ended by an exception that `except Exception` does not catch. What it asked for is kept
with the attempt, so code that swallows the exception is deferred all the same when it ends.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Raw, Struct, UnsetType

from layby.core.commands import ResumeSpec, TriggerSpec
from layby.core.model import NEVER, Millis, Promise
from layby.core.replies import Resumed, TriggerEvent
from layby.errors import ContextError, ResultExpired, UsageError
from layby.program import function_name
from layby.triggers import Trigger
from layby.triggers.registry import is_unregistered
from layby.wire import json_values
from layby.wire.durations import limit_of, millis_of
from layby.wire.trigger_events import payload_of
from layby.worker.annotations import Annotations
from layby.worker.replay import Record, Replay, encoded

logger = logging.getLogger(__name__)

MAX_ARGS_BYTES = 2**16
MAX_KWARGS_BYTES = 1_000_000
_TOLD: Final[set[str]] = set()


class Deferred(BaseException):
    """Ends the body of a task that is deferred. Let it pass: nothing of the body goes on."""


class Deferral(Struct, frozen=True):
    """What a body asked for before it ended."""

    trigger: TriggerSpec
    name: str | None
    """The function that the next try begins with; None for that of the task."""
    kwargs: Raw
    timeout: Millis | None
    key: str = ""

    def resume(self, context: Raw | UnsetType, *, bare: bool) -> ResumeSpec:
        return ResumeSpec(self.name, self.kwargs, context, self.key, bare)


class DeferringAttempt(Protocol):
    """What deferring needs of the try that defers."""

    id: str
    replay: Replay
    resumed: Resumed | None
    deferral: Deferral | None
    annotations: Annotations

    async def read(self, promise_id: str) -> Promise | None: ...


def new_deferral(
    trigger: object,
    resume: Callable[..., Any] | None,
    kwargs: Mapping[str, Any] | None,
    timeout: object,
) -> Deferral:
    """Checked at the call: later there is nobody to tell."""
    if not isinstance(trigger, Trigger):
        raise UsageError(f"defer() needs a trigger such as triggers.Delay(60), got {trigger!r}")
    if resume is None and kwargs:
        raise UsageError("defer() takes kwargs= for its resume= function: give that, too")
    _check_kwargs(kwargs)
    name = None if resume is None else function_name(resume, tuple(sorted(kwargs or {})))
    length = millis_of(limit_of(timeout, "timeout of defer()"))
    spec = TriggerSpec(
        trigger.kind(),
        _object(trigger.arguments(), f"the arguments of {trigger.kind()}", MAX_ARGS_BYTES),
        trigger.on_cancels(),
    )
    given = _object(dict(kwargs or {}), "kwargs of defer()", MAX_KWARGS_BYTES)
    return Deferral(spec, name, given, None if length == NEVER else length)


async def event_or_defer(attempt: DeferringAttempt, asked: Deferral, record_id: str) -> Any:
    """The payload, if this very call has deferred before and its trigger has fired since."""
    call = Record("defer", asked.trigger.kind)
    found = attempt.replay.found(record_id, call)
    if found is not None:
        return payload_of(await _event_again(attempt, found), attempt.id)
    key, resumed = record_id.removeprefix(f"{attempt.id}."), attempt.resumed
    if resumed is not None and resumed.name is None and resumed.key == key:
        before = Record("defer", resumed.kind)
        attempt.replay.check(record_id, before, call, is_earlier=True)
        event = resumed.event
        told = Record("defer", resumed.kind, [event.id, event.state, event.by, event.reason])
        await attempt.annotations.record(record_id, encoded(told))
        return payload_of(event, attempt.id)
    if is_unregistered(asked.trigger.kind):
        _tell_unregistered(asked.trigger.kind, attempt.id)
    attempt.deferral = msgspec.structs.replace(asked, key=key)
    raise Deferred(f"{attempt.id} is deferred until {asked.trigger.kind} fires")


def _tell_unregistered(kind: str, task_id: str) -> None:
    """Once for each class: another process may have it, but a forgotten line waits for ever."""
    if kind not in _TOLD:
        _TOLD.add(kind)
        logger.warning(
            "%s waits for trigger %s, which this process does not run, as it is not registered: "
            "write @triggers.register above class %s, unless another process has it",
            task_id,
            kind,
            kind,
        )


async def _event_again(attempt: DeferringAttempt, record: Record) -> TriggerEvent:
    """Which promise it was is recorded; what it said is in the promise, and nowhere else."""
    promise_id, state, by, reason = msgspec.convert(record.value, tuple[str, Any, str, str])
    promise = await attempt.read(promise_id) if state != "rejected_timedout" else None
    if promise is None and state != "rejected_timedout":
        raise ResultExpired(f"the event of '{promise_id}'", state)
    value = "{}" if promise is None else promise.value
    return TriggerEvent(promise_id, state, value, 0, by, reason)


def _check_kwargs(kwargs: object) -> None:
    """Callers may not check types."""
    if kwargs is None:
        return
    if not isinstance(kwargs, Mapping) or not all(
        isinstance(each, str) for each in cast("Mapping[object, object]", kwargs)
    ):
        raise UsageError(f"kwargs of defer() must be a dict with names as keys, got {kwargs!r}")


def _object(given: dict[str, Any], what: str, most: int) -> Raw:
    try:
        encoded_json = json_values.encode(given, what)
    except ContextError as error:
        raise UsageError(f"{error}; what outlives the process is stored as JSON") from None
    if len(encoded_json) > most:
        size = f"{len(encoded_json):,} bytes, more than {most:,}"
        raise UsageError(f"{what}: {size}; store it elsewhere and pass its address")
    return Raw(encoded_json)
