"""One body as the worker runs it: what contends for its slot, and the Task of its code."""

import asyncio
from typing import Any, Protocol

from layby.core.model import Task
from layby.core.queries import Execute
from layby.core.replies import Claim
from layby.worker.attempt import Attempt
from layby.worker.credit import ENDING, HELD, OUT, Contender


class BodyHost(Protocol):
    """What a body needs from the worker it runs in."""

    def park(self, body: "Body") -> bool: ...

    def join_line(self, body: "Body") -> None: ...

    def step_back(self, body: "Body") -> None: ...

    def ended(self, body: "Body") -> None: ...


class Body(Contender):
    """From the claim (or the execute message of a call) to the end of its code.

    It is also the slot that its handle releases and reclaims.
    """

    __slots__ = ("_granted", "_host", "attempt", "call", "claim", "task")

    def __init__(
        self, host: BodyHost, claim: Claim | None = None, call: Execute | None = None
    ) -> None:
        if claim is None:
            super().__init__(is_call=call is not None)
        else:
            task = claim.task
            super().__init__(
                priority=task.priority, slots=task.slots, is_limited=task.limits is not None
            )
        self._host = host
        self.claim = claim
        """Kept until the body begins."""
        self.call = call
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[Any] | None = None
        self._granted: asyncio.Future[None] | None = None

    @property
    def id(self) -> str:
        return self._task.id

    @property
    def version(self) -> int:
        return self._task.version

    @property
    def _task(self) -> "Attempt | Task":
        if self.attempt is not None:
            return self.attempt
        assert self.claim is not None
        return self.claim.task

    # --- the slot, as its handle sees it -------------------------------------------------

    def is_held(self) -> bool:
        return self.slot_state is HELD

    def release(self) -> bool:
        return self._host.park(self)

    async def reclaim(self) -> None:
        """Stand in line from now on until the slot is held."""
        if self.slot_state is HELD:
            return
        self._refuse_if_ending()
        if self._granted is not None:
            raise RuntimeError("this body is already waiting for its slot somewhere else")
        self._granted = asyncio.get_running_loop().create_future()
        try:
            if self.attempt is not None and self.attempt.is_limited:
                await self.attempt.regain_permits()
                self._refuse_if_ending()
            self._host.join_line(self)
            if self.slot_state is not HELD:
                await self._granted
        except asyncio.CancelledError:
            self._host.step_back(self)
            raise
        finally:
            self._granted = None

    def _refuse_if_ending(self) -> None:
        if self.slot_state in (OUT, ENDING):
            raise asyncio.CancelledError("the body is being ended: there is no slot for it")

    @property
    def is_resuming(self) -> bool:
        return self._granted is not None

    def resume(self) -> None:
        """It holds its slot again."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    # --- its code ------------------------------------------------------------------------

    def run(self, task: "asyncio.Task[Any]") -> None:
        self.task = task
        task.add_done_callback(self._ended)

    def _ended(self, _: "asyncio.Task[Any]") -> None:
        self._host.ended(self)
