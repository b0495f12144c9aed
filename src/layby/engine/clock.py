"""Where `now` comes from. Nothing below the engine reads a clock."""

import time
from contextvars import ContextVar
from typing import Protocol

from layby.core.model import Millis


class Clock(Protocol):
    def now(self) -> Millis: ...


class SystemClock:
    def now(self) -> Millis:
        return time.time_ns() // 1_000_000


class ManualClock:
    """Time that passes only when told to: for tests and simulation."""

    def __init__(self, now: Millis = 0) -> None:
        self._now = now

    def now(self) -> Millis:
        return self._now

    def advance(self, by_ms: Millis) -> Millis:
        self._now += by_ms
        return self._now

    def set(self, now: Millis) -> None:
        self._now = now


virtual_clock: ContextVar[Clock | None] = ContextVar("layby_virtual_clock", default=None)
"""The clock of a virtual-time test; a Runner opened under it runs its engine inline on it."""
