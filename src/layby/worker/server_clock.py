"""Estimates store time, for a worker whose own clock may be wrong.

A worker sends only lengths of time; but what it writes about its tries, and how much is left of a
wait that began elsewhere, is in store time. The answer to each heartbeat says what that was, at
some moment between the request and the answer. While the correction agrees with that, it stays as
it is: clocks that agree are left alone, and time does not jitter with the network. In between, the
estimate is carried by elapsed time: setting the clock of this machine changes nothing.
"""

from typing import Final

from layby.client.interface import Client
from layby.clock import Clock
from layby.core.commands import HeartbeatWorker
from layby.core.model import Millis
from layby.core.queries import GetNow
from layby.core.replies import HeartbeatData, NowData, Reply

DRIFT_MS: Final[Millis] = 2
"""Clocks that run at the same rate differ by less between two readings."""


class SteadyClock:
    """Wall time carried by elapsed time; it follows the wall clock unless somebody sets that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.elapsed()

    def now(self) -> Millis:
        wall, elapsed = self._clock.now(), self._clock.elapsed()
        if abs(wall - elapsed - self._offset) > DRIFT_MS:
            return elapsed + self._offset
        self._offset = wall - elapsed
        return wall


class ServerClock:
    def __init__(self, own: Clock) -> None:
        self._own = SteadyClock(own)
        self._ahead_ms = 0
        """How far the server's clock is ahead of this one; below 0 when it is behind."""

    def now(self) -> Millis:
        return self._own.now() + self._ahead_ms

    async def beat(self, client: Client, beat: HeartbeatWorker) -> Reply:
        """Send a heartbeat, and learn from its answer, which may come after those to later ones."""
        asked_at = self._own.now()
        reply = await client.send(beat)
        if isinstance(reply.data, HeartbeatData) and reply.data.now is not None:
            self._learn(asked_at, reply.data.now, self._own.now())
        return reply

    async def read(self, client: Client) -> Reply:
        """Learn what time it is without being known to the server."""
        asked_at = self._own.now()
        reply = await client.send(GetNow())
        if isinstance(reply.data, NowData):
            self._learn(asked_at, reply.data.now, self._own.now())
        return reply

    def _learn(self, asked_at: Millis, told: Millis, heard_at: Millis) -> None:
        """Either clock may be up to a millisecond ahead of what it shows."""
        least, most = told - heard_at - 1, told - asked_at + 1
        if not least <= self._ahead_ms <= most:
            self._ahead_ms = (least + most) // 2
