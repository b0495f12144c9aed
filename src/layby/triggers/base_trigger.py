"""What every trigger is: a small value that can be stored, and run or awaited elsewhere."""

from typing import Any

import msgspec
from msgspec import Struct


class Trigger(Struct, frozen=True):
    """Its fields are its arguments, and are stored as JSON; `kind` is the name it is stored by."""

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def arguments(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    def on_cancels(self) -> bool:
        """Whether `on_cancel` has to be called when it is cancelled or times out."""
        return hasattr(self, "on_cancel")

    def sentence(self) -> str:
        """What it waits for, in words; completes "waits for"."""
        return "its event"
