"""Owns slots for threads, which block on the same ledger. It must not know asyncio."""

from types import TracebackType
from typing import Self

from layby.executors.deadline import Deadline
from layby.executors.slot_ledger import LedgerPool, SlotClaim
from layby.executors.slots import SlotPool
from layby.executors.wakers import ThreadWaker


class ThreadSlotToken(SlotClaim):
    """As `SlotToken`, for plain `def` work in a thread."""

    __slots__ = ()

    def reclaim(self, timeout: float | None = None) -> bool:
        """Hold a slot again; False if none came in time. Does nothing when held."""
        return self.ledger.take(self) or self._wait_in_line(timeout)

    def _wait_in_line(self, timeout: float | None) -> bool:
        waker = ThreadWaker()
        deadline = Deadline(timeout)
        while not self.ledger.request(self, waker):
            try:
                woken = waker.wait(deadline.remaining())
            except BaseException:
                if not self.ledger.withdraw(self):
                    self.release()
                raise
            if not woken:
                # Out of time, but the slot may have been granted at the last moment.
                return not self.ledger.withdraw(self) and self.held
        return True

    def __enter__(self) -> Self:
        self.reclaim()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class ThreadSlotPool(LedgerPool):
    """N slots for threads. Made by `sharing`, it gives out the slots of a `SlotPool`, so that
    threads and coroutines stand in one line.
    """

    @classmethod
    def sharing(cls, pool: SlotPool) -> Self:
        shared = cls(1)
        shared.ledger = pool.ledger
        return shared

    def acquire(self, timeout: float | None = None) -> ThreadSlotToken | None:
        """Wait for a slot; None if none came in time."""
        token = ThreadSlotToken(self.ledger)
        return token if token.reclaim(timeout) else None

    def token(self) -> ThreadSlotToken:
        """Make a token that holds nothing yet, for `with pool.token():`."""
        return ThreadSlotToken(self.ledger)
