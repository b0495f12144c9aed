"""A body inside its child process: what it raises is told as text, since it may not be sendable."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from layby.errors import ProcessFailed
from layby.wire.json_values import describe


class Raised(Struct, frozen=True):
    """What the body raised, with the traceback that only its own process has."""

    type: str
    message: str
    traceback: str

    def as_error(self) -> ProcessFailed:
        return ProcessFailed(self.message, self.type, self.traceback)


def run_in_child(call: Callable[[], Any]) -> Any:
    """Its result, or a `Raised`."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the process is ours
        told = describe(error)
        return Raised(told.name, told.message, told.stack)
