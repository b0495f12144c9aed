"""Calls as the SDKs write them: a promise that says which function, with which arguments, where.

A call that ended well stands for good, as a checkpoint does. One that did not is made again by
the next try after a failure, under another id; within a try, and after a crash, it stands too.
"""

from itertools import count
from typing import Any, Final

import msgspec
from msgspec import Struct

from layby.core import address
from layby.core.commands import CreatePromise, FenceTask, Value
from layby.core.model import Millis, Promise
from layby.core.replies import FenceData, PromiseData
from layby.errors import DeferTimeout, UsageError
from layby.worker import encoding
from layby.worker.attempt import Attempt
from layby.worker.lineage import tags_below
from layby.worker.rejections import value_of
from layby.worker.replay import Record, check_key, digest_of

DEFAULT_TARGET: Final = "poll://any@default"


class Call(Struct, frozen=True):
    """`kwargs` only some SDKs have; whatever else they write is theirs."""

    func: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    version: int = 1

    @property
    def record(self) -> Record:
        """What must be the same in every life of the task that makes it."""
        return Record("rpc", digest_of(self.func, self.version, *self.args))

    def to_value(self) -> Value:
        told = {"func": self.func, "args": list(self.args), "version": self.version}
        return encoding.to_value(told, f"rpc('{self.func}'): its arguments")


_decoder = msgspec.json.Decoder(Call)


def read_call(promise: Promise) -> Call | None:
    """None when the promise is no call: a timer, or something with a param of its own."""
    if promise.timer:
        return None
    try:
        return _decoder.decode(encoding.bytes_of(promise.param))
    except (msgspec.MsgspecError, ValueError):
        return None


def new_call(func: object, args: tuple[Any, ...], version: object) -> Call:
    check_key(func, "rpc: the name of a function")
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise UsageError(f"rpc: the version of a function is a whole number, got {version!r}")
    assert isinstance(func, str)
    return Call(func, args, version=version)


def check_target(target: object) -> str:
    if not isinstance(target, str) or not address.is_valid(target):
        raise UsageError(
            f"rpc: {target!r} is no address: write poll://any@GROUP for a worker of that group, "
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


async def make_call(
    attempt: Attempt, key: str, call: Call, target: str, timeout_at: Millis
) -> Promise:
    """The promise of the call: as an earlier life left it, or new."""
    param = call.to_value()
    for making in count(1):
        call_id = attempt.replay.call_id(key, making)
        tags = tags_below(attempt.id, attempt.lineage, call_id, target)
        create = CreatePromise(id=call_id, timeout_at=timeout_at, param=param, tags=tags)
        promise = await _created(attempt, create)
        attempt.replay.check(call_id, _record_of(promise), call.record)
        if not attempt.replay.is_spent(promise):
            return promise
    raise AssertionError  # there is always another making


def result_of(promise: Promise, told: str) -> Any:
    """The call's deadline is the timeout of whoever waits for it."""
    if promise.state == "rejected_timedout":
        raise DeferTimeout(f"{told} was not answered in time (promise {promise.id})")
    return value_of(promise)


async def _created(attempt: Attempt, create: CreatePromise) -> Promise:
    fence = FenceTask(id=attempt.id, version=attempt.version, inner=create)
    data = (await attempt.fenced(fence)).data
    if isinstance(data, FenceData) and isinstance(data.reply.data, PromiseData):
        return data.reply.data.promise
    raise UsageError(f"rpc: {create.id} cannot be created: {data}")


def _record_of(promise: Promise) -> Record:
    call = read_call(promise)
    return Record("something else") if call is None else call.record
