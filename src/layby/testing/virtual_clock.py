"""The clock of a virtual-time test: whole microseconds, moved only by the idle loop."""

import asyncio
import math
from contextlib import suppress

from layby.core.model import Millis
from layby.errors import UsageError
from layby.worker.real_work import RealWork

MICROS = 1_000_000


class VirtualClock:
    """What time it is under `virtual_time()`. It moves only when the loop is idle."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Millis) -> None:
        self._loop = loop
        self._base = loop.time()
        self._micros = 0
        self._idle: list[asyncio.Future[None]] = []
        self.start = start
        self.work = RealWork(self._wake)
        """Counts threads and processes at work; above zero the clock stands still."""

    def now(self) -> Millis:
        return self.start + self._micros // 1000

    def time(self) -> float:
        """What `loop.time()` returns."""
        return self._base + self._micros / MICROS

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the start."""
        return self._micros / MICROS

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back; no time passes."""
        self.start += round(seconds * 1000)

    async def advance(self, seconds: float) -> None:
        """Let that much time pass, and let everything that is due by then happen."""
        if not seconds >= 0:
            raise UsageError(f"time cannot go back: advance({seconds!r})")
        await asyncio.sleep(seconds)
        await self.settled()

    async def settled(self) -> None:
        """Wait until nothing more can happen at this instant."""
        idle = self._loop.create_future()
        self._idle.append(idle)
        await idle

    def jump(self, seconds: float) -> None:
        self._micros += max(0, math.ceil(seconds * MICROS - 0.25))

    def tell_idle(self) -> bool:
        """Wake those who wait for this instant to be over; whether there were any."""
        waiting = [idle for idle in self._idle if not idle.done()]
        self._idle.clear()
        for idle in waiting:
            idle.set_result(None)
        return bool(waiting)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_nothing)


class VirtualEngineClock:
    """The same clock as engines read it: wall time and elapsed time move together."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def now(self) -> Millis:
        return self.clock.now()

    def elapsed(self) -> Millis:
        return self.clock.now() - self.clock.start  # what `step` added is in both


def _nothing() -> None:
    """Being called is enough: the loop has woken up."""
