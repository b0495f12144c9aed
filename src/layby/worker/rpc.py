"""Making calls: each is a promise below the task that makes it.

A call that ended well stands for good, as a checkpoint does. One that did not is made again by
the next try after a failure, under another id; within a try, and after a crash, it stands too.
"""

from itertools import count
from typing import Any, Final

from layby.core.model import Millis, Promise
from layby.errors import DeferTimeout
from layby.worker.attempt import Attempt
from layby.worker.call_format import Call, read_call
from layby.worker.lineage import tags_below
from layby.worker.rejections import value_of
from layby.worker.replay import Record

DEFAULT_TARGET: Final = "poll://any@default"


async def make_call(attempt: Attempt, key: str, call: Call, target: str, length: Millis) -> Promise:
    """The promise of the call: as an earlier life left it, or new."""
    param = call.to_value()
    for making in count(1):
        call_id = attempt.replay.call_id(key, making)
        tags = tags_below(attempt.id, attempt.lineage, call_id, target)
        promise = await attempt.create(call_id, length, param, tags, capped=True)
        attempt.replay.check(call_id, _record_of(promise), call.record)
        if not attempt.replay.is_spent(promise):
            return promise
    raise AssertionError  # there is always another making


def result_of(promise: Promise, told: str) -> Any:
    """The call's deadline is the timeout of whoever waits for it."""
    if promise.state == "rejected_timedout":
        raise DeferTimeout(f"{told} was not answered in time (promise {promise.id})")
    return value_of(promise)


def _record_of(promise: Promise) -> Record:
    call = read_call(promise)
    return Record("something else") if call is None else call.record
