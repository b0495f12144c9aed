"""Owns who holds a slot and who waits for one; it does not know how loops and threads wait.

A slot may be released from anywhere: by a coroutine, by a thread that shares the pool, and by the
garbage collector, which runs in whatever thread happens to allocate, at any point, even inside the
methods below. Four rules keep the count exact:

1. `claim.held` and the count of held slots change together, under the lock. A freed slot is
   handed to the oldest waiter in that same step, so nobody can slip in between, and a waiter
   that is cancelled in the turn in which it was granted still knows that it holds a slot.
2. Nobody is woken under the lock. A step decides whom to wake, and does so afterwards.
3. The collector never waits for the lock: the thread it interrupted may be the one that holds it.
   It leaves a mark in `_dropped` and tries the lock; if that fails, the holder looks at the marks
   after releasing it. Each side writes first and looks second, so one of them always sees it.
4. The collector grants no slot either, since it may interrupt any code. It calls `wake_soon` of
   the oldest waiter, which then asks again.

`_hand_out` is the only place that knows that a claim takes one slot.
"""

import threading
from collections import OrderedDict, deque
from typing import Protocol


class PoolClosed(Exception):
    """The slot pool was closed; no more slots are given out."""


class SlotWaker(Protocol):
    """How the ledger wakes somebody in line."""

    def wake(self) -> bool:
        """The slot is held now. False declines it, so that the next in line gets it."""
        ...

    def wake_soon(self) -> None:
        """Asking again is worthwhile: a slot was found, or the pool was closed."""
        ...


class SlotClaim:
    """One party's claim on one slot: held, waiting in line, or neither."""

    __slots__ = ("held", "ledger")

    def __init__(self, ledger: "SlotLedger") -> None:
        self.held = False
        self.ledger = ledger

    def is_held(self) -> bool:
        return self.held

    def release(self) -> bool:
        """Release the slot. False when none was held."""
        return self.ledger.give_back(self)

    def __del__(self) -> None:
        if self.held:
            self.ledger.give_back_from_collector()


class SlotLedger:
    def __init__(self, slots: int) -> None:
        self._size = _at_least_one(slots)
        self._held = 0
        self._closed = False
        self._waiting: OrderedDict[SlotClaim, SlotWaker] = OrderedDict()
        self._dropped: deque[None] = deque()
        self._lock = threading.Lock()

    # -- taking

    def take(self, claim: SlotClaim) -> bool:
        """Take a slot if one is free: the fast path, for the common case.

        It overtakes nobody, since no slot stays free while somebody waits. It ignores the marks of
        the collector: `request`, which is called next, counts them.
        """
        self._lock.acquire()  # half the cost of `with`, on the one path where that shows
        try:
            if self._held >= self._size or claim.held or self._closed:
                return claim.held
            self._held += 1
            claim.held = True
            return True
        finally:
            self._lock.release()

    def request(self, claim: SlotClaim, waker: SlotWaker, *, first: bool = False) -> bool:
        """Take a slot, or stand in line until woken; True when it is held now."""
        with self._lock:
            self._join_line(claim, waker, first=first)
            granted = self._hand_out()
            granted.pop(claim, None)  # it learns it from the return value
        self._wake(granted)
        self._settle_dropped()
        return claim.held

    def withdraw(self, claim: SlotClaim) -> bool:
        """Leave the line. False when not in it, for instance because the slot was just granted."""
        with self._lock:
            was_waiting = claim in self._waiting
            if was_waiting:
                del self._waiting[claim]
        self._settle_dropped()
        return was_waiting

    # -- giving back

    def give_back(self, claim: SlotClaim) -> bool:
        self._lock.acquire()  # see `take`
        try:
            if not claim.held:
                return False
            claim.held = False
            self._held -= 1
            granted = self._hand_out() if self._waiting else None
        finally:
            self._lock.release()
        if granted:
            self._wake(granted)
        if self._dropped:
            self._settle_dropped()
        return True

    def give_back_from_collector(self) -> None:
        self._dropped.append(None)
        if not self._lock.acquire(blocking=False):
            return
        oldest = next(iter(self._waiting.values()), None)
        self._lock.release()
        if oldest is not None:
            oldest.wake_soon()

    # -- the pool

    def resize(self, slots: int) -> None:
        """A smaller size takes nothing away: it is reached as slots are released."""
        with self._lock:
            self._size = _at_least_one(slots)
            granted = self._hand_out()
        self._wake(granted)
        self._settle_dropped()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            refused = list(self._waiting.values())
            self._waiting.clear()
        for waker in refused:
            waker.wake_soon()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def size(self) -> int:
        return self._size

    @property
    def held(self) -> int:
        self.settle()
        return self._held

    @property
    def free(self) -> int:
        return max(0, self._size - self.held)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def settle(self) -> None:
        """Count the slots that the collector gave back, and hand them out."""
        with self._lock:
            granted = self._hand_out()
        self._wake(granted)

    # -- steps under the lock

    def _join_line(self, claim: SlotClaim, waker: SlotWaker, *, first: bool) -> None:
        if claim.held:
            return
        if self._closed:
            raise PoolClosed("the slot pool is closed: no slot can be acquired or reclaimed")
        if self._waiting.setdefault(claim, waker) is not waker:
            raise RuntimeError("this token is already waiting for a slot somewhere else")
        if first:
            self._waiting.move_to_end(claim, last=False)

    def _hand_out(self) -> dict[SlotClaim, SlotWaker]:
        while self._dropped:
            self._dropped.popleft()
            self._held -= 1
        granted: dict[SlotClaim, SlotWaker] = {}
        while self._waiting and self._held < self._size:
            claim, waker = self._waiting.popitem(last=False)
            claim.held = True
            self._held += 1
            granted[claim] = waker
        return granted

    # -- after the lock

    def _settle_dropped(self) -> None:
        while self._dropped and self._waiting:
            self.settle()

    def _wake(self, granted: dict[SlotClaim, SlotWaker]) -> None:
        """A declined slot goes to the next in line. A loop, since many may decline one by one."""
        while granted:
            declined = [claim for claim, waker in granted.items() if not waker.wake()]
            granted = self._take_back(declined) if declined else {}

    def _take_back(self, declined: list[SlotClaim]) -> dict[SlotClaim, SlotWaker]:
        with self._lock:
            for claim in declined:
                self._held -= claim.held
                claim.held = False
            return self._hand_out()


class LedgerPool:
    """What the pools for coroutines and for threads have in common."""

    def __init__(self, slots: int) -> None:
        self.ledger = SlotLedger(slots)

    def resize(self, slots: int) -> None:
        self.ledger.resize(slots)

    def close(self) -> None:
        """Waiters raise `PoolClosed`; slots already held are kept until they are released."""
        self.ledger.close()

    @property
    def closed(self) -> bool:
        return self.ledger.closed

    @property
    def size(self) -> int:
        return self.ledger.size

    @property
    def held(self) -> int:
        return self.ledger.held

    @property
    def free(self) -> int:
        return self.ledger.free

    @property
    def waiting(self) -> int:
        return self.ledger.waiting


def _at_least_one(slots: int) -> int:
    if slots < 1:
        raise ValueError(f"a slot pool needs at least one slot, got {slots}")
    return slots
