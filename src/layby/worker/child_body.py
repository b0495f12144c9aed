"""A body inside its child process: what it raises is told as text, since it may not be sendable."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from layby.errors import ContextError, ProcessFailed
from layby.wire.json_values import describe


class Raised(Struct, frozen=True):
    """What the body raised, with the traceback that only its own process has."""

    type: str
    message: str
    traceback: str
    is_unstorable: bool = False
    """It was a ContextError of ours, and not one that only has its name."""

    def as_error(self) -> ProcessFailed:
        error = ProcessFailed(self.message, self.type, self.traceback)
        if self.is_unstorable:
            error.__cause__ = ContextError(self.message)
        return error


def run_in_child(call: Callable[[], Any]) -> Any:
    """Its result, or a `Raised`."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the process is ours
        told = describe(error)
        return Raised(told.name, told.message, told.stack, isinstance(error, ContextError))
