"""Owns slots for coroutines: the pool and its tokens. It must not know what runs with them."""

import asyncio
from types import TracebackType
from typing import Self

from layby.executors.slot_ledger import LedgerPool, SlotClaim
from layby.executors.wakers import LoopWaker


class SlotToken(SlotClaim):
    """The right to run: release it while waiting, reclaim it before going on."""

    __slots__ = ()

    async def reclaim(self) -> None:
        """Hold a slot again, first come, first served with new work. Does nothing when held."""
        if not self.ledger.take(self):
            await self._wait_in_line()

    async def _wait_in_line(self) -> None:
        waker = LoopWaker()
        try:
            while not self.ledger.request(self, waker):
                await waker.wait()
        except asyncio.CancelledError:
            # Leave the line, or return what was granted in this same turn of the loop.
            if not self.ledger.withdraw(self):
                self.release()
            raise

    async def __aenter__(self) -> Self:
        await self.reclaim()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class SlotPool(LedgerPool):
    """N slots for any number of coroutines and executors, first come, first served.

    Acquire, release and reclaim on the loop; a token that is lost gives its slot back from
    whatever thread the garbage collector runs in.
    """

    async def acquire(self) -> SlotToken:
        token = SlotToken(self.ledger)
        if not self.ledger.take(token):
            await token.reclaim()
        return token

    def token(self) -> SlotToken:
        """Make a token that holds nothing yet, for `async with pool.token():`."""
        return SlotToken(self.ledger)
