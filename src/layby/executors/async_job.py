"""Owns one task of the asynchronous executor: its state, and its slot while it has one.

The job is also the slot token that its work parks with. It only reports changes of its state; the
executor keeps the counts.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from typing import Any, Protocol

from layby.executors.slot_ledger import SlotLedger
from layby.executors.slots import SlotToken
from layby.executors.task_records import AdmittedTask, CompletionCallback, Metadata
from layby.executors.wakers import LoopWaker, call_soon_on, is_running_here


class JobState(Enum):
    QUEUED = auto()
    ACTIVE = auto()
    PARKED = auto()
    ENDED = auto()


QUEUED, ACTIVE, PARKED, ENDED = JobState


class JobOwner(Protocol):
    loop: asyncio.AbstractEventLoop

    def seek_slot(self, job: "AsyncJob") -> None: ...

    def seat(self, job: "AsyncJob") -> bool: ...

    def unseat(self, job: "AsyncJob") -> None: ...

    def granted(self, job: "AsyncJob") -> bool: ...

    def park(self, job: "AsyncJob") -> None: ...

    def vanished(self, job: "AsyncJob") -> None: ...


class AsyncJob(SlotToken, AdmittedTask):
    __slots__ = (
        "body",
        "completion",
        "context",
        "elapsed",
        "metadata",
        "owner",
        "parks",
        "since",
        "state",
        "task_id",
        "waker",
        "work",
    )

    def __init__(
        self,
        owner: JobOwner,
        ledger: SlotLedger,
        work: Callable[..., Any] | None,
        completion: CompletionCallback | None,
        metadata: Metadata | None,
        parks: bool,  # noqa: FBT001 - built in one place, for every task
    ) -> None:
        self.held = False
        self.ledger = ledger
        self.owner = owner
        self.work = work
        self.completion = completion
        self.metadata = metadata
        self.parks = parks
        self.state = QUEUED
        # The submitter's context: a queued body is started from wherever a slot is released.
        self.context: Context = copy_context()
        self.body: asyncio.Task[None] | None = None
        self.waker: LoopWaker | None = None
        self.since = self.elapsed = 0.0

    # -- the token, as the work sees it

    def release(self) -> bool:
        """Park: release the slot until `reclaim`."""
        if self.state is not ACTIVE:
            return False
        self.owner.park(self)
        return True

    async def reclaim(self) -> None:
        if self.state is ENDED:
            raise RuntimeError(f"task {self.task_id} has ended: its token cannot be used any more")
        if self.waker is not None:
            raise RuntimeError("this token is already waiting for a slot somewhere else")
        try:
            while not self.owner.seat(self):
                self.waker = LoopWaker()
                await self.waker.wait()
        except asyncio.CancelledError:
            self.owner.unseat(self)
            raise
        finally:
            self.waker = None

    # -- the waker, as the ledger calls it

    def wake(self) -> bool:
        if is_running_here(self.owner.loop):
            return self.owner.granted(self)
        return call_soon_on(self.owner.loop, self._accept_or_give_back)

    def wake_soon(self) -> None:
        """Retry in a callback of the loop: the garbage collector may be the caller."""
        call_soon_on(self.owner.loop, self.retry)

    def _accept_or_give_back(self) -> None:
        if not self.owner.granted(self):
            self.ledger.give_back(self)

    def retry(self) -> None:
        if self.waker is not None:
            self.waker.wake()
        elif self.state is QUEUED:
            self.owner.seek_slot(self)

    def ended_before_it_began(self, _body: asyncio.Task[None]) -> None:
        self.owner.vanished(self)
