"""What a task waits for, as people and programs read it."""

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import Millis

WaitKind = Literal[
    "condition",  # parked in defer_until
    "sleep",  # parked in sleep, or not due yet
    "promise",  # parked in wait_for, or in the result of another run
    "rpc",  # parked in rpc: a function elsewhere has to answer
    "slot",  # woken, and waiting for a slot of its worker
    "trigger",  # suspended by defer
    "approval",  # a person has to answer
    "backoff",  # failed, and will be tried again
    "dependency",  # other tasks of the run have to settle first
    "worker",  # ready, and nobody has taken it yet
    "manual",  # halted: somebody has to continue it
]


class WaitingOn(Struct, frozen=True, omit_defaults=True, gc=False):
    """The worker stores this; polls are added from its memory when asked for."""

    kind: WaitKind
    sentence: str
    since: Millis = 0
    """Set when the wait begins."""
    deadline: Millis | None = None
    polls: int | None = None
    next_poll_at: Millis | None = None
    last_error: str | None = None
    awaited: str | None = None
    """The promise it waits for, if it is one."""
    asked_since: Millis | None = None
    """Since when its condition is being asked, if it is."""

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    def polled(self, polling: "Polling | None") -> "WaitingOn":
        if polling is None:
            return self
        return replace(
            self,
            polls=polling.polls,
            next_poll_at=polling.next_poll_at,
            last_error=polling.last_error,
            asked_since=polling.asked_since,
        )


class Polling(Struct, frozen=True, omit_defaults=True):
    """What only the worker's memory knows of a wait: never one write per poll."""

    polls: int = 0
    next_poll_at: Millis | None = None
    last_error: str | None = None
    asked_since: Millis | None = None


_decoder = msgspec.json.Decoder(WaitingOn)


def read_waiting_on(text: str | None) -> WaitingOn | None:
    """What a worker wrote; None for nothing, and for what another version wrote."""
    try:
        return _decoder.decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeError):
        return None
