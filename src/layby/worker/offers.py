"""What this worker has offered the store: slots, by one take that waits there.

A take that waits may have been answered without our knowing. So before another number is offered
it is replaced by one of 0, and the new offer goes out when that is known: no slot is offered twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from layby.core.commands import Take
from layby.core.replies import Reply

Answered = Callable[[Take, Reply, bool], None]
"""Told the take, its answer, and whether no newer one has replaced it meanwhile."""


class Offers:
    """`send` gives None when there is nobody any more to ask."""

    def __init__(
        self,
        send: Callable[[Take], Awaitable[Reply | None]],
        answered: Answered,
        spawn: Callable[[Any], Any],
    ) -> None:
        self.offered = 0
        self._send = send
        self._answered = answered
        self._spawn = spawn
        self._standing: Take | None = None
        self._lowered = asyncio.Event()

    def offer(self, wanted: Take) -> None:
        standing = self._standing
        if standing == wanted:
            return
        if standing is not None and standing.free > 0:
            self._send_to_stand(replace(wanted, free=0))
        elif self.offered == 0:
            self._send_to_stand(wanted)

    async def at_most(self, room: Callable[[], int]) -> None:
        """Returns when no more is offered than there is room."""
        while self.offered > 0 and room() < self.offered:
            await self._lowered.wait()

    def _send_to_stand(self, take: Take) -> None:
        self._standing = take
        self.offered += take.free
        self._spawn(self._stand(take))

    async def _stand(self, take: Take) -> None:
        """The one take that waits. A newer one replaces it, and it is answered with nothing."""
        try:
            reply = await self._send(take)
        finally:
            self.offered -= take.free
            self._lowered.set()
            self._lowered.clear()
        is_latest = self._standing is take
        if is_latest:
            self._standing = None
        if reply is not None:
            self._answered(take, reply, is_latest)
