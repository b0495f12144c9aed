"""One try of one task in this worker: its claim, its timeout, its slot, and its end.

What it asks of the store is fenced by the claim's version. A refusal means that the task is no
longer ours: the body is cancelled, and nothing it does later is written. What it writes about its
waits is kept by `annotations`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from layby.client.interface import WatchingClient
from layby.client.patience import send_until_answered
from layby.core.blocks import MAX_WHY_CHARS
from layby.core.commands import (
    AddItems,
    BlockTask,
    Command,
    CreateBelow,
    FenceTask,
    GetPromise,
    RegainPermits,
    Released,
    Tags,
    Value,
)
from layby.core.model import Millis, Promise
from layby.core.queries import Query
from layby.core.replies import Claim, JoinData, PromiseData, RegainData, Reply
from layby.core.waits import WaitingOn
from layby.errors import UsageError, error_for
from layby.program import LoadedTask, Mapped
from layby.worker import tell
from layby.worker.annotations import Annotations, PollState, ShownWait
from layby.worker.deferring import Deferral, Deferred
from layby.worker.lineage import lineage_of
from layby.worker.promise_watches import DeadlineWatch, PromiseWatch, PromiseWatches
from layby.worker.replay import NEW, Recalled, Replay, body_of
from layby.worker.wait_deadlines import WaitDeadline

if TYPE_CHECKING:
    from layby.worker.child_run import RunStarter
    from layby.worker.map_calls import GivenItems

CLEAN_UP_S = 5.0
"""How long a cancelled body may clean up before it is cancelled again."""
RECANCEL_S = 1.0
"""How often a body that does not end is cancelled again."""


class AttemptHost(Protocol):
    """What an attempt needs from the worker it runs in."""

    client: WatchingClient

    @property
    def is_stopping(self) -> bool: ...

    @property
    def watches(self) -> PromiseWatches: ...

    @property
    def starter(self) -> "RunStarter | None": ...

    def now(self) -> Millis: ...

    def why_not_park(self) -> str | None: ...

    def slots_for(self, group: str | None) -> int | None: ...

    def may_lend(self) -> bool: ...

    def cancel_body(self, attempt: "Attempt") -> None: ...

    def give_up(self, attempt: "Attempt") -> None: ...

    async def let_others_in(self) -> None: ...

    def ended_by_hand(self, record_id: str, exit_: Promise) -> None: ...

    def moved_by_hand(self, record_id: str, until: Millis) -> None: ...

    def lent(self, attempt: "Attempt", why: str) -> None: ...

    def is_leased(self, attempt: "Attempt") -> bool: ...

    async def renew_lease(self, attempt: "Attempt") -> None: ...

    def is_loop_ending(self) -> bool: ...

    def spawn(self, coroutine: Any) -> Any: ...


class Unasked(msgspec.Struct, frozen=True):
    """An approval that was made, and where."""

    prompt: str
    place: str


class Attempt:
    __slots__ = (
        "_armed_at",
        "_checkpoints",
        "_host",
        "_is_hard_end",
        "_place",
        "_timeout_left",
        "_timer",
        "annotations",
        "body",
        "deferral",
        "error",
        "failures",
        "has_begun",
        "has_kept",
        "id",
        "is_limited",
        "is_open",
        "is_reported",
        "lineage",
        "loaded",
        "map_items",
        "outlasted",
        "ready_at",
        "reason",
        "replay",
        "resumed",
        "thread_waits",
        "try_number",
        "unasked",
        "version",
    )

    def __init__(
        self,
        host: AttemptHost,
        claim: Claim,
        loaded: LoadedTask,
        recalled: Recalled = NEW,
    ) -> None:
        self._host = host
        self.id = claim.task.id
        self.version = claim.task.version
        self.map_items: dict[str, GivenItems] | None = None
        """What calls of map with a key were given in this run of the body, by key."""
        self.failures = claim.task.failures
        self.lineage = lineage_of(claim.promise)
        self.loaded = loaded
        self.ready_at = claim.ready_at
        awaited = claim.task.awaited_by_key
        self.resumed = claim.resumed
        self.deferral: Deferral | None = None
        """What the body waits for once it has ended, if it has asked for that."""
        self.replay = Replay(
            claim.task.id,
            claim.task.failures,
            recalled,
            awaited,
            self._end_after_mismatch,
            body_of(claim.resumed),
        )
        self.unasked: dict[str, Unasked] | None = None
        """Approvals that this run of the body has made, and nobody was asked yet."""
        self.body: Any = None
        """The `Body` that runs it, which is also its slot."""
        self.try_number = claim.task.tries + claim.task.ahead
        self.error: BaseException | None = None
        self.is_open = True
        self.has_begun = False
        """Whether user code may have run."""
        self.has_kept = recalled is not NEW
        """Whether there may be something below its id for a later run of the body to recall."""
        self.thread_waits = 0
        """Waits that the thread of a plain `def` is in: there it can be cancelled."""
        self.is_limited = claim.task.limits is not None
        """Whether it needs permits to go on after it was parked."""
        self._place: Millis = 0
        """When it last stood in line for them."""
        self._checkpoints = 0
        self._is_hard_end = False
        self.is_reported = False
        self.outlasted = False
        """Whether its timeout was reported while its body went on: its end has to be said."""
        self.reason: str | None = None
        """Why the body is being ended from outside: timeout, lost, …; else None."""
        self._timeout_left = loaded.timeout
        self._armed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.annotations = Annotations(host, self, claim.task.deadlines_by_id, recalled)

    # --- what it is ----------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        return self.reason is not None

    @property
    def waiting(self) -> WaitingOn | None:
        shown = self.annotations.shown
        return None if shown is None else shown.waiting

    @property
    def poll(self) -> PollState | None:
        shown = self.annotations.shown
        return None if shown is None else shown.poll

    @property
    def is_parked(self) -> bool:
        shown = self.annotations.shown
        return shown is not None and shown.sub_status is not None

    @property
    def starter(self) -> "RunStarter":
        """Who starts child runs for it."""
        starter = self._host.starter
        if starter is None:
            raise UsageError(f"{self.id}: child runs can be started only by tasks of a Runner")
        return starter

    def now(self) -> Millis:
        return self._host.now()

    def check_open(self) -> None:
        """Raise when the body may no longer use its handle."""
        if self.deferral is not None and self.is_open:
            raise Deferred(f"{self.id} is deferred: its body has to end")
        if self.replay.mismatch is not None:
            raise self.replay.mismatch
        if self.reason is not None and not self._is_end_deferred:
            raise asyncio.CancelledError(f"{self.id}: {self.reason}")
        if not self.is_open:
            raise UsageError(
                f"{self.id}: its handle was used after the task had ended: "
                "await everything that the task starts before it returns"
            )

    # --- beginning and ending ------------------------------------------------------------

    @property
    def is_leased(self) -> bool:
        """Whether the task is certainly ours now. May be called from any thread."""
        return self._host.is_leased(self)

    async def hold_lease(self) -> None:
        """Renew the lease if it may have expired; raises when it has."""
        while not self._host.is_leased(self):
            await self._host.renew_lease(self)
            self.check_open()

    def begin(self) -> None:
        """The body starts: it holds its slot now."""
        self.loaded.history.started(self.now())
        self._start_clock()

    def end(self, reason: str) -> None:
        """End the body from outside; the first reason counts."""
        if self.is_open and self.reason is None:
            self._stop_clock()
            self.reason = reason
            self._cancel_again_in(CLEAN_UP_S)
            if not self._is_end_deferred:
                self._host.cancel_body(self)  # one that has not begun is closed in this call
        elif reason == "lost" and self._is_end_deferred:
            self.end_hard()  # what its checkpoint returns could not be stored

    def _end_after_mismatch(self) -> None:
        """A body that swallows the error, or waits in another strand, is ended all the same.

        A thread cannot be; there, whatever it asks of its handle from now on raises.
        """
        with suppress(RuntimeError):  # this is not the loop's thread
            asyncio.get_running_loop().call_later(CLEAN_UP_S, self.end, "code")

    # --- the worker stops ----------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Ends coroutines, and bodies that have not begun or wait. A plain `def` and a body in a
        process go on: they cannot be cancelled, and their results count.
        """
        if self.loaded.mode == "async" or not self.has_begun or self.thread_waits:
            self.end("shutdown")

    def heeds_stop(self) -> bool:
        """Whether a plain `def` that asks should end; what it returns then is not a result.

        Called in the body's own thread.
        """
        if self.reason is None and self._host.is_stopping:
            self.reason = "shutdown"
        return self.reason is not None

    def check_may_park(self) -> None:
        """A plain `def` that goes on while the worker stops is ended where it would wait."""
        if self._host.is_stopping and not self._is_end_deferred:
            self.end("shutdown")
            self.check_open()

    def end_hard(self) -> None:
        """End it without waiting for a checkpoint."""
        self._is_hard_end = True
        if self.reason is None:
            self.end("shutdown")
        else:
            self._host.cancel_body(self)

    def begin_checkpoint(self) -> None:
        """From here on the worker waits for the checkpoint's function, and stores its result."""
        self._checkpoints += 1

    async def end_checkpoint(self) -> None:
        was_put_off = self._is_end_deferred
        self._checkpoints -= 1
        if was_put_off and not self._is_end_deferred:
            self._host.cancel_body(self)
            await asyncio.sleep(0)  # the body is cancelled here

    @property
    def _is_end_deferred(self) -> bool:
        """Whether the end has to wait for a checkpoint."""
        return self.reason == "shutdown" and self._checkpoints > 0 and not self._is_hard_end

    def released(self) -> Released:
        """How it is handed back. For a lost task this counts only if it was halted."""
        history = None
        if self.has_begun:
            outcome = "Halted" if self.reason == "lost" else "Released"
            history = self.loaded.history.handed_back(self.now(), outcome)
        return Released(self.id, self.version, begun=self.has_begun, history=history)

    def blocked(self) -> BlockTask:
        """How it is handed back when the code does not fit what it has done before."""
        why = str(self.replay.mismatch).removeprefix(f"{self.id}: ")[:MAX_WHY_CHARS]
        return BlockTask(
            id=self.id,
            version=self.version,
            code=self.loaded.code or "",
            why=why,
            ready_at=self.ready_at,
            history=self.loaded.history.blocked(self.now(), why),
        )

    def close(self) -> None:
        """The body has ended: its handle cannot be used any more."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()

    def _cancel_again(self) -> None:
        """It should have ended long ago: it is given up, but cancelled again."""
        if not self._is_end_deferred:
            self._host.give_up(self)
            self._host.cancel_body(self)
        self._cancel_again_in(RECANCEL_S)

    def _cancel_again_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._cancel_again)

    # --- the timeout, while a slot is held -----------------------------------------------

    def _start_clock(self) -> None:
        if self._timeout_left is not None and self._timer is None and self.reason is None:
            loop = asyncio.get_running_loop()
            self._armed_at = loop.time()
            self._timer = loop.call_later(self._timeout_left, self.end, "timeout")

    def _stop_clock(self) -> None:
        if self._timer is not None and self._timeout_left is not None:
            self._timer.cancel()
            self._timer = None
            self._timeout_left = max(
                0.0, self._timeout_left - (asyncio.get_running_loop().time() - self._armed_at)
            )

    # --- parking -------------------------------------------------------------------------

    def new_wait(self, waiting: WaitingOn, poll: PollState | None) -> ShownWait:
        """A wait that begins now, as shown for a body without a slot."""
        return ShownWait(tell.begun(waiting, self.now()), "Deferred", poll)

    def check_fits(self, mapped: Mapped) -> None:
        """Refuse items that need more slots than this worker has, if it would take them."""
        slots = self._host.slots_for(mapped.group)
        if slots is not None and mapped.slots > slots:
            raise UsageError(
                f"map: task '{mapped.task_id}' needs {mapped.slots} slots at once, but this worker "
                f"has {slots}: give the worker more slots, or the task fewer, or a group= of "
                "workers that have enough"
            )

    def park(self, shown: ShownWait) -> bool:
        """Write `Deferred` before the slot is released. False when the slot must be kept."""
        why_not = self._host.why_not_park()
        if why_not is not None:
            kept = shown.with_slot(why_not)
            if kept != self.annotations.shown:  # asked again every second
                self.annotations.show(kept)
            return False
        self._give_up_slot(shown)
        return True

    def lend(self, shown: ShownWait, why: str) -> bool:
        """Write `Deferred` though the body may go on, or too many are parked. False as above."""
        if not self._host.may_lend():
            return False
        self._give_up_slot(shown.with_note(why))
        self._host.lent(self, why)
        return True

    def _give_up_slot(self, shown: ShownWait) -> None:
        self._stop_clock()
        self.loaded.history.parked(self.now())
        self.annotations.show(shown)

    def resume(self, still: ShownWait | None) -> None:
        """Write `Active` after the slot has been reclaimed.

        `still` is what another strand of the body waits for.
        """
        self._start_clock()
        self.loaded.history.resumed(self.now())
        self.annotations.show(still and still.with_slot())

    async def regain_permits(self) -> None:
        """Parking gave them up: the body goes on when it has them again."""
        regaining: asyncio.Task[None] = self._host.spawn(self._regain())
        try:
            await regaining
        except asyncio.CancelledError:
            regaining.cancel()
            raise

    async def _regain(self) -> None:
        """After `Deferred` has been handed to the writer: whatever is spawned keeps its order."""
        self._place = max(self.now(), self._place + 1)
        regain = RegainPermits(id=self.id, version=self.version, place=self._place)
        reply = await self.send(regain)
        self.check_fence(reply)
        data = reply.data
        if isinstance(data, RegainData) and data.promise is not None:
            await self.watch(data.promise.id)

    async def let_others_in(self) -> None:
        await self._host.let_others_in()

    # --- what it asks of the store --------------------------------------------------------

    def watch(self, promise_id: str) -> PromiseWatch:
        return self._host.watches.watch(promise_id)

    def watch_until(
        self, promise_id: str, deadline: WaitDeadline, timeout: Callable[[], str]
    ) -> PromiseWatch:
        watches = self._host.watches
        watch = watches.watch_until(promise_id, deadline, timeout)
        deadline.moved = partial(watches.move, watch)
        return watch

    def watch_deadline(self, record_id: str, length: Millis) -> DeadlineWatch:
        """The deadline of several waits together."""
        deadline = self.annotations.begin_wait(record_id, length)
        watches = self._host.watches
        watch = watches.watch_deadline(deadline)
        deadline.moved = partial(watches.move, watch)
        return watch

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._host.spawn(coroutine)

    async def send(self, request: Command | Query) -> Reply:
        return await send_until_answered(self._host.client, request)

    async def fenced(self, command: FenceTask) -> Reply:
        self.has_kept = True
        return self.checked(await self.send(command))

    async def create(
        self, promise_id: str, length: Millis, param: Value, tags: Tags, *, capped: bool = False
    ) -> Promise:
        """A promise that times out after `length`, or the one that exists already."""
        self.has_kept = True
        command = CreateBelow(
            id=self.id,
            version=self.version,
            promise_id=promise_id,
            timeout=length,
            param=param,
            tags=tags,
            capped=capped,
        )
        reply = self.checked(await self.send(command))
        assert isinstance(reply.data, PromiseData)
        return reply.data.promise

    async def add_items(self, command: AddItems) -> JoinData:
        self.has_kept = True
        reply = self.checked(await self.send(command))
        assert isinstance(reply.data, JoinData)
        return reply.data

    async def read(self, promise_id: str) -> Promise | None:
        """The promise with this id, if there is one."""
        reply = await self.send(GetPromise(id=promise_id))
        return reply.data.promise if isinstance(reply.data, PromiseData) else None

    def checked(self, reply: Reply) -> Reply:
        """Return the reply if the request was carried out, else raise why not."""
        self.check_fence(reply)
        self.check_open()
        if not reply.is_ok:
            why = f"{self.id}: the store refused a request of this task: {reply.data}"
            raise error_for(reply.status, why)
        return reply

    def check_fence(self, reply: Reply) -> None:
        """A refused version means that somebody else has the task now."""
        if reply.status in (404, 409):
            self.end("lost")
