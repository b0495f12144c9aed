"""One try of one task in this worker: its claim, its clock and what it tells the store.

Writes are fenced by the claim's version. A refusal means that the task is no longer ours:
the body is cancelled and nothing it does later is written.
"""

import asyncio
from typing import Any, Protocol

import msgspec

from layby.client.api import Client
from layby.core.commands import NOTHING, AnnotateTask, Command, FenceTask, Value
from layby.core.model import Millis
from layby.core.replies import AnnotateData, Claim, Reply
from layby.errors import StoreError, UsageError
from layby.worker.program import Job
from layby.worker.replay import Record, Replay, encoded
from layby.worker.tell import Waiting

_WAIT_ENDED = encoded(Record("defer_until"))
RECANCEL_S = 0.1
"""A body that swallows its cancellation is cancelled again, this often, until it ends."""


class Host(Protocol):
    """What an attempt needs of the worker it runs in."""

    client: Client

    def now(self) -> Millis: ...

    def may_park(self) -> bool: ...

    def cancel_body(self, attempt: "Attempt") -> None: ...

    def credit_changed(self) -> None: ...

    def spawn(self, coroutine: Any) -> None: ...


class PollState(Protocol):
    polls: int
    next_poll_at: float | None
    last_error: str | None


class Attempt:
    __slots__ = (
        "_armed_at",
        "_host",
        "_left",
        "_progress",
        "_timer",
        "claim",
        "error",
        "is_open",
        "job",
        "poll",
        "reason",
        "replay",
        "task_number",
        "waiting",
    )

    def __init__(self, host: Host, claim: Claim, job: Job) -> None:
        self._host = host
        self.claim = claim
        self.job = job
        self.replay = Replay(claim.task.id, claim.task.failures)
        self.task_number = 0
        self.error: BaseException | None = None
        self.is_open = True
        self.reason: str | None = None
        """Why the body is being ended from outside: timeout, lost, shutdown; None while it runs."""
        self.waiting: Waiting | None = None
        self.poll: PollState | None = None
        self._left = job.timeout
        self._armed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._progress: str | None = None

    # --- what it is ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.claim.task.id

    @property
    def version(self) -> int:
        return self.claim.task.version

    @property
    def is_ending(self) -> bool:
        return self.reason is not None

    def now(self) -> Millis:
        return self._host.now()

    def check_open(self) -> None:
        if not self.is_open:
            raise UsageError(f"{self.id}: its handle was used after the task had ended")
        if self.reason is not None:
            raise asyncio.CancelledError(f"{self.id}: {self.reason}")

    # --- the clock of holding a slot -----------------------------------------------------

    def start_clock(self) -> None:
        if self._left is not None:
            loop = asyncio.get_running_loop()
            self._armed_at = loop.time()
            self._timer = loop.call_later(self._left, self.end, "timeout")

    def stop_clock(self) -> None:
        if self._timer is not None and self._left is not None:
            self._timer.cancel()
            self._timer = None
            self._left = max(0.0, self._left - (asyncio.get_running_loop().time() - self._armed_at))

    def end(self, reason: str) -> None:
        """End the body from outside, and go on until it has ended."""
        if not self.is_open:
            return
        self.reason = self.reason or reason
        self._host.cancel_body(self)
        self._timer = asyncio.get_running_loop().call_later(RECANCEL_S, self.end, reason)

    def close(self) -> None:
        """The body has ended: its handle is of no use any more."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()

    # --- parking -------------------------------------------------------------------------

    def park(self, waiting: Waiting, poll: PollState | None) -> bool:
        """Tell `Deferred` before the slot is given up. False: too many are parked, keep it."""
        self.waiting, self.poll = waiting, poll
        if not self._host.may_park():
            self._tell(waiting, None)
            return False
        self.stop_clock()
        self.job.history.parked(self.now())
        self._tell(waiting, "Deferred")
        return True

    def waits_for_slot(self) -> None:
        """Woken, but every slot is taken: that is what it waits for now."""
        self.waiting, self.poll = Waiting("slot", "ready to go on, waiting for a slot"), None

    def resume(self, record_id: str | None) -> None:
        """Tell `Active` after the slot has been reclaimed, with the record of the wait's end."""
        self.waiting, self.poll = None, None
        if self._timer is None:
            self.start_clock()
            self.job.history.resumed(self.now())
        self._annotate(record_id=record_id, record=_WAIT_ENDED if record_id else NOTHING)
        self._host.credit_changed()

    def progress(self, fraction: float | None, text: str) -> None:
        told = {"fraction": fraction, "text": text, "at": self.now()}
        self._progress = msgspec.json.encode(told).decode()
        self._annotate()

    # --- fenced writes -------------------------------------------------------------------

    async def send(self, command: Command) -> Reply:
        return await self._host.client.send(command)

    async def fenced(self, command: FenceTask) -> Reply:
        reply = await self.send(command)
        self._heed(reply)
        return reply

    async def record(self, record_id: str, value: Value) -> None:
        annotate = self._annotation(record_id=record_id, record=value)
        self._heed(await self.send(annotate))

    def _tell(self, waiting: Waiting, sub_status: str | None) -> None:
        self._annotate(sub_status=sub_status, waiting_on=waiting.told(self.now()))
        self._host.credit_changed()

    def _annotate(self, **fields: Any) -> None:
        """Handed to the writer now, in order; nobody waits for the commit."""
        self._host.spawn(self._annotated(self._annotation(**fields)))

    def _annotation(self, **fields: Any) -> AnnotateTask:
        history, progress = self.job.history.text, self._progress
        return AnnotateTask(
            id=self.id, version=self.version, history=history, progress=progress, **fields
        )

    async def _annotated(self, command: AnnotateTask) -> None:
        try:
            self._heed(await self.send(command))
        except StoreError:
            return  # an annotation is told again with the next one; the store's own log has it

    def _heed(self, reply: Reply) -> None:
        """A refused version: somebody else has the task now."""
        if reply.status in (404, 409) and not isinstance(reply.data, AnnotateData):
            self.end("lost")
