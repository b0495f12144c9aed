"""A call as the SDKs write it: which function, with which arguments."""

from typing import Any

import msgspec
from msgspec import Struct

from layby.core.commands import Value
from layby.core.model import Promise
from layby.wire import json_values


class Call(Struct, frozen=True):
    """Only some SDKs have `kwargs`; anything else they write is ignored."""

    func: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    version: int = 1

    def to_value(self) -> Value:
        told = {"func": self.func, "args": list(self.args), "version": self.version}
        return json_values.to_value(told, f"rpc('{self.func}'): its arguments")


_decoder = msgspec.json.Decoder(Call)


def read_call(promise: Promise) -> Call | None:
    """None when the promise is not a call: a timer, or something with a param of its own."""
    if promise.timer:
        return None
    try:
        return _decoder.decode(json_values.bytes_of(promise.param))
    except (msgspec.MsgspecError, ValueError):
        return None
