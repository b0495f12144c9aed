"""A call as the SDKs write it: which function, with which arguments, at which address."""

from typing import Any

import msgspec
from msgspec import Struct

from layby.core import address
from layby.core.commands import Value
from layby.core.model import Promise
from layby.errors import UsageError
from layby.worker import encoding
from layby.worker.replay import Record, check_key, digest_of


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
