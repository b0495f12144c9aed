"""The one take of this worker that waits at the store.

A newer one replaces it there. It is replaced at once when it offers nothing although there is
room; other changes are sent after a moment, since most of them are undone by then. A claim that
came by an outdated offer stands in line, and goes back if that takes long.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from layby.core.commands import Take
from layby.core.replies import Reply
from layby.worker.credit import Credit, Offer

UPDATE_DELAY_S: Final = 0.005
"""How long an offer may be out of date."""

Answered = Callable[[Take, Reply, bool], None]
"""Called with the take, its answer, and whether no newer one has replaced it meanwhile."""


class StandingTake:
    """`send` returns None when the engine has been stopped."""

    def __init__(
        self,
        credit: Credit,
        take_of: Callable[[Offer], Take],
        send: Callable[[Take], Awaitable[Reply | None]],
        answered: Answered,
        spawn: Callable[[Any], Any],
    ) -> None:
        self._credit = credit
        self._take_of = take_of
        self._send = send
        self._answered = answered
        self._spawn = spawn
        self._offer: Offer | None = None
        self._take: Take | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._must_be_replaced = False

    def update(self) -> None:
        """Something has changed: send a new take if the offer is outdated."""
        wanted = self._credit.offer()
        if self._offer is None or (self._offer.free == 0 and wanted.free > 0):
            self.send_now()
        elif self._offer != wanted:
            self._send_after_a_moment()

    def send_now(self) -> None:
        """Send the current offer, in place of the one that waits."""
        self._disarm()
        self._offer = self._credit.offer()
        self._take = self._take_of(self._offer)
        self._spawn(self._wait_at_store(self._take))

    def replace_soon(self) -> None:
        """Have what waits at the store answered, though its offer is not outdated."""
        self._must_be_replaced = True
        self._send_after_a_moment()

    def withdraw(self) -> None:
        """Replace it by one that takes nothing, not even roots, and is not replaced itself."""
        self._disarm()
        if self._take is not None:
            self._offer, self._take = Offer(), replace(self._take_of(Offer()), names=(), codes=())
            self._spawn(self._wait_at_store(self._take))

    def close(self) -> None:
        self._disarm()

    def _send_after_a_moment(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(UPDATE_DELAY_S, self._send_if_changed)

    def _send_if_changed(self) -> None:
        self._timer = None
        if self._must_be_replaced or self._offer != self._credit.offer():
            self.send_now()

    def _disarm(self) -> None:
        self._must_be_replaced = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait_at_store(self, take: Take) -> None:
        """When a newer one replaces it, it is answered with nothing."""
        reply = await self._send(take)
        is_latest = self._take is take
        if is_latest:
            self._take = self._offer = None
        if reply is not None:
            self._answered(take, reply, is_latest)
