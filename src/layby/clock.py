"""Where `now` comes from. Nothing below the engine reads a clock.

Wall time can be put back and forward by anybody; elapsed time only passes. Store time is wall time
carried by elapsed time: it follows the wall, but never goes back. When it is ahead of the wall it
runs a little slower until they meet, so that nothing that lasts a given time ends too early.
"""

import threading
import time
from contextvars import ContextVar
from typing import Final, Protocol

from layby.core.model import Millis

SLOWER: Final = 16
"""When ahead of the wall, store time runs at 15/16 of normal speed."""
ALIKE_MS: Final[Millis] = 1
"""Two clocks read one after the other, in whole milliseconds, may differ by this much."""
_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Keeps going while the machine is suspended, if the system has such a clock."""


class Clock(Protocol):
    def now(self) -> Millis:
        """What the clock on the wall shows."""
        ...

    def elapsed(self) -> Millis:
        """How much time has passed since some moment, whatever the wall shows."""
        ...


class SystemClock:
    def now(self) -> Millis:
        return time.time_ns() // 1_000_000

    def elapsed(self) -> Millis:
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000


class StoreClock:
    """Store time, derived from a clock. May be read from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._elapsed = clock.elapsed()
        self._shares: int = clock.now() * SLOWER
        """Store time in sixteenths of a millisecond, so that slow time adds up exactly."""

    def now(self) -> Millis:
        with self._lock:
            return self._read(self._clock.now()) // SLOWER

    def ahead(self) -> Millis:
        """How far store time is ahead of the wall; 0 when they agree."""
        return self.now_and_ahead()[1]

    def now_and_ahead(self) -> tuple[Millis, Millis]:
        with self._lock:
            wall = self._clock.now()
            now = self._read(wall) // SLOWER
        ahead = now - wall
        return now, ahead if ahead > ALIKE_MS else 0

    def wall(self) -> Millis:
        return self._clock.now()

    def begin_at(self, stored: Millis) -> None:
        """Continue where an earlier process stopped, if that was later than now."""
        with self._lock:
            self._shares = max(self._shares, stored * SLOWER)

    def _read(self, wall: Millis) -> int:
        elapsed = self._clock.elapsed()
        passed = max(0, elapsed - self._elapsed)
        self._elapsed = elapsed
        carried = self._shares + passed * (SLOWER - 1)
        if carried <= (wall + ALIKE_MS) * SLOWER:
            carried = max(self._shares, wall * SLOWER)
        self._shares = carried
        return carried


virtual_clock: ContextVar[Clock | None] = ContextVar("layby_virtual_clock", default=None)
"""The clock of a virtual-time test; a Runner opened under it runs its engine inline on it."""
