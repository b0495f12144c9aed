"""Calls of functions elsewhere: each is a promise below the task that makes it.

The result of a call that succeeded is kept for good, like a checkpoint. One that failed is made
again, under another id, by the next try after a failure; within a try and after a crash it is kept.
A new life of the run uses what succeeded in earlier ones, and makes all other calls again.
"""

from datetime import timedelta
from itertools import count
from typing import Any, Final, TypedDict

from layby.core import address
from layby.core.model import NEVER, Millis, Promise
from layby.core.tag_names import MOVABLE
from layby.errors import DeferTimeout, UsageError
from layby.program import Served
from layby.wire import json_values
from layby.wire.call_format import Call, read_call
from layby.wire.durations import whole_number
from layby.wire.typed_values import Misfit, read_typed
from layby.worker.attempt import Attempt
from layby.worker.lineage import tags_below
from layby.worker.rejections import value_of
from layby.worker.replay import Record, check_key, digest_of, is_same_call

DEFAULT_TARGET: Final = "poll://any@default"


class CallOptions(TypedDict, total=False):
    """What `rpc` takes by name, whatever it calls."""

    target: str
    timeout: float | timedelta | None
    version: int
    key: str | None


def name_called(func: str | Served[Any]) -> Any:
    """The name of a function; anything that is not one is refused by `new_call`."""
    if isinstance(func, str) or not callable(func):
        return func
    name = getattr(func, "rpc", None)
    if name is None:
        shown = getattr(func, "id", None) or getattr(func, "__name__", repr(func))
        raise UsageError(f"rpc: '{shown}' serves no calls: write @task(rpc='name'), or give a name")
    return name


def new_call(func: object, args: tuple[Any, ...], version: object) -> Call:
    check_key(func, "rpc: the name of a function")
    assert isinstance(func, str)
    return Call(func, args, version=whole_number(version, "rpc: the version of a function", 0))


def check_target(target: object) -> str:
    if not isinstance(target, str) or not address.is_valid(target):
        raise UsageError(
            f"rpc: {target!r} is not an address: write poll://any@GROUP for a worker of GROUP, "
            "or the http:// URL of one that is pushed to"
        )
    place = address.parse_poll(target)
    if place is not None and place.group.startswith(address.OWN_GROUP):
        plain = place.group.removeprefix(address.OWN_GROUP)
        raise UsageError(
            f"rpc: at {target!r} the tasks of runs are taken, and no calls: "
            f"functions of that group are called at poll://any@{plain}"
        )
    return target


async def make_call(attempt: Attempt, key: str, call: Call, target: str, length: Millis) -> Promise:
    """The promise of the call, from an earlier life, an earlier run of the body, or new."""
    reused = await _reused(attempt, key, call)
    if reused is not None:
        return reused
    param = call.to_value()
    for number in count(1):
        call_id = attempt.replay.call_id(key, number)
        tags = tags_below(attempt.id, attempt.lineage, call_id, target)
        if length < NEVER:
            tags[MOVABLE] = "true"
        promise = await attempt.create(call_id, length, param, tags, capped=True)
        made, wanted = _record_of(read_call(promise)), _record_of(call)
        attempt.replay.check(call_id, made, wanted, is_earlier=attempt.try_number > 1)
        if not attempt.replay.must_be_repeated(promise):
            return promise
    raise AssertionError  # the loop never ends


async def _reused(attempt: Attempt, key: str, call: Call) -> Promise | None:
    """The same call, if it succeeded in an earlier life of the run."""
    for task_id in attempt.replay.earlier:
        for number in count(1):
            promise = await attempt.read(attempt.replay.call_id(key, number, task_id))
            if promise is None:
                break
            is_same = is_same_call(_record_of(read_call(promise)), _record_of(call))
            if is_same and attempt.replay.succeeded_before(promise):
                return promise
    return None


def result_of(promise: Promise, what: str) -> Any:
    """Its value; a call past its deadline raises as a timeout of the wait."""
    if promise.is_timed_out:
        raise DeferTimeout(f"{what} was not answered in time (promise {promise.id})")
    return value_of(promise)


def answer_of_type(answer: Any, kind: type[Any] | None, what: str) -> Any:
    if kind is None:
        return answer
    try:
        return read_typed(kind, json_values.encode(answer), "its answer")
    except Misfit as misfit:
        raise UsageError(f"{what} did not return {kind.__name__}: {misfit}") from None


def _record_of(call: Call | None) -> Record:
    """What must be the same in every try of the task that makes the call."""
    if call is None:
        return Record("something else")
    return Record("rpc", digest_of(call.func, call.version, *call.args))
