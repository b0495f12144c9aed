"""The slot of one body, shared by its strands: released when all wait, held before one goes on.

`strands` has the rules; here they are carried out on the loop and written to the store: `Deferred`
before the slot is released, `Active` after it has been reclaimed. Of several waits, the first that
has not ended is shown.
"""

import asyncio
import threading
from typing import Any, Protocol, cast

from layby.core.model import Promise
from layby.core.waits import WaitingOn
from layby.worker.annotations import PollState, ShownWait
from layby.worker.attempt import Attempt
from layby.worker.replay import Record
from layby.worker.slot_reclaim import SlotReclaim
from layby.worker.strands import LEND_AFTER_S, MAIN, Strand, Strands
from layby.worker.tell import FOR_A_SLOT

PLAIN_AWAIT = (
    f"its slot is lent, because another part of it waits for more than {LEND_AFTER_S:g} s "
    "without the handle"
)
PARKING_FULL = "its slot is lent, because it waits though max_parked is reached"

SlotFuture = asyncio.Future[None]


class Slot(Protocol):
    """The right to run, as its owner gives it out."""

    def is_held(self) -> bool: ...

    def release(self) -> bool: ...

    async def reclaim(self) -> None: ...


class SharedSlot:
    __slots__ = (
        "_attempt",
        "_callers",
        "_is_closed",
        "_lend_timer",
        "_main",
        "_reclaim",
        "_slot_futures",
        "_strands",
        "_waits",
        "slot",
    )

    def __init__(self, slot: Slot, attempt: Attempt | None, *, is_driven: bool) -> None:
        self.slot = slot
        self._attempt = attempt
        self._strands = Strands(is_driven=is_driven)
        self._main: asyncio.Task[Any] | None = None
        self._callers: dict[asyncio.Task[Any] | None, Strand] | None = None
        """Tasks that make a call for a thread, which waits for them."""
        self._waits: tuple[ShownWait, ...] = ()
        self._slot_futures: tuple[SlotFuture, ...] = ()
        """One for each strand that waits for the slot; they share one reclaim."""
        self._reclaim: SlotReclaim | None = None
        self._lend_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # --- whose it is ---------------------------------------------------------------------

    def set_main(self, main: "asyncio.Task[Any] | None" = None) -> None:
        """This Task is the main strand; the current one unless given."""
        self._main = main or asyncio.current_task()

    def set_main_thread(self) -> None:
        """The main strand is a thread, which no driver resumes."""
        self._callers = {}
        self._strands.register(MAIN)

    def close(self, error: BaseException | None = None) -> None:
        """The body has ended: none of its strands may still wait for the slot."""
        if error is not None and self._attempt is not None:
            self._attempt.error = error
        self._is_closed = True
        self._main = None
        self._update_lend_timer()
        if self._reclaim is not None:
            self._reclaim.cancel()
            self._reclaim_done(None)

    def begin_call(self, strand: Strand) -> None:
        """The current Task calls the handle for a thread."""
        if self._callers is not None:
            self._callers[asyncio.current_task()] = strand

    def end_call(self) -> None:
        if self._callers is not None:
            self._callers.pop(asyncio.current_task(), None)

    def register(self) -> Strand:
        """The strand that calls now; it is registered from now on."""
        strand = self._caller()
        if self._strands.register(strand) and isinstance(strand, asyncio.Task):
            cast("asyncio.Task[Any]", strand).add_done_callback(self._ended)
        return cast("Strand", strand)

    def _caller(self) -> Strand:
        task = asyncio.current_task()
        if task is self._main:
            return MAIN
        return task if self._callers is None else self._callers.get(task, task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._strands.end(task)
        self._release_if_unneeded()

    def _forget_dead_threads(self) -> None:
        for strand in list(self._strands):
            if isinstance(strand, threading.Thread) and not strand.is_alive():
                self._strands.end(strand)

    # --- what is shown -------------------------------------------------------------------

    @property
    def shown(self) -> ShownWait | None:
        first = self._first
        return first.with_slot() if first is not None and self.slot.is_held() else first

    @property
    def _first(self) -> ShownWait | None:
        return self._waits[0] if self._waits else None

    # --- waits through the handle --------------------------------------------------------

    def begin_wait(self, waiting: WaitingOn, poll: PollState | None) -> ShownWait:
        """The calling strand begins to wait; the slot is released if nobody needs it."""
        self._strands.begin_wait(self.register())
        attempt = self._attempt
        wait = (
            ShownWait(waiting, "Deferred", poll)
            if attempt is None
            else attempt.new_wait(waiting, poll)
        )
        self._waits = (*self._waits, wait)
        is_kept = self._strands.is_slot_needed and self.slot.is_held()
        if is_kept and attempt is not None and wait is self._waits[0]:
            attempt.annotations.show(wait.with_slot())
        self._release_if_unneeded()
        return wait

    async def end_wait(
        self,
        wait: ShownWait,
        record_id: str | None = None,
        record: Record | None = None,
        *,
        is_ending: bool = False,
    ) -> Promise | None:
        """The wait has ended: its strand goes on with the slot; a body being ended needs none.

        Returns the record of its end that is stored, if there is to be one: ours, or that of a
        person who was first.
        """
        strand = self._caller()
        self._waits = tuple(each for each in self._waits if each is not wait)
        self._strands.end_wait(strand)
        if is_ending:
            self._strands.resume(strand)
            if self._attempt is not None and self._waits:
                self._attempt.annotations.show(self.shown)
            return None
        return await self._go_on(strand, record_id, record)

    async def ensure_held(self) -> None:
        """Before a strand works: if the body does not hold its slot, the strand waits for it."""
        strand = self.register()
        if not self.slot.is_held():
            await self._go_on(strand)

    async def _go_on(
        self, strand: Strand, record_id: str | None = None, record: Record | None = None
    ) -> Promise | None:
        """The record is written with what is shown next: that it stands in line, or that it runs.

        Nothing runs before it is stored: whoever ends the wait otherwise meanwhile is refused.
        """
        attempt, stored = self._attempt, None
        if attempt is not None and record_id is not None and record is not None:
            stored = attempt.annotations.carry(record_id, record)
        interrupted = await self._wait_for_slot()
        self._strands.resume(strand)
        if attempt is not None:
            attempt.resume(self._first)
        self._update_lend_timer()
        if interrupted is not None:
            raise interrupted
        return None if stored is None else await asyncio.shield(stored)

    async def _wait_for_slot(self) -> asyncio.CancelledError | None:
        """Wait until the slot is held; returns a cancellation that came meanwhile."""
        interrupted: asyncio.CancelledError | None = None
        while (slot_future := self._reclaim_slot()) is not None:
            try:
                await slot_future
            except asyncio.CancelledError as error:
                if self._attempt is None or self._attempt.is_ending:
                    self.abandon(slot_future)
                    raise
                interrupted = error
        return interrupted

    # --- the main strand, as its driver asks ---------------------------------------------

    def slot_future_of_main(self) -> SlotFuture | None:
        """What main has to wait for before it goes on; None when it may go on."""
        if self._strands.may_main_resume or self.is_ending():
            return None
        self._strands.join_line(MAIN)
        slot_future = self._reclaim_slot()
        if slot_future is None:
            self._strands.resume(MAIN)
            if self._attempt is not None and self._attempt.is_parked:
                self._attempt.resume(self._first)
            self._update_lend_timer()
        return slot_future

    def is_ending(self) -> bool:
        """Whether the body has ended or is being ended from outside: it needs no slot for that."""
        return self._is_closed or (self._attempt is not None and self._attempt.is_ending)

    # --- reclaiming it -------------------------------------------------------------------

    def _reclaim_slot(self) -> SlotFuture | None:
        """What to wait for; None when the slot is held."""
        if self.slot.is_held():
            return None
        if self._attempt is not None and self.is_ending():
            self._attempt.check_open()
        slot_future: SlotFuture = asyncio.get_running_loop().create_future()
        try:
            if self._reclaim is None and self._start_reclaim():
                return None
        except Exception as refusal:  # noqa: BLE001 - raised where the future is awaited
            slot_future.set_exception(refusal)
            return slot_future
        self._slot_futures = (*self._slot_futures, slot_future)
        return slot_future

    def _start_reclaim(self) -> bool:
        """Only one reclaim for a body; True when a slot was free."""
        reclaim = SlotReclaim(self.slot.reclaim(), self._reclaim_done)
        if reclaim.begin():
            return True
        self._reclaim = reclaim
        if self._attempt is not None:
            self._attempt.annotations.show_waiting(FOR_A_SLOT)
        return False

    def _reclaim_done(self, refusal: BaseException | None) -> None:
        self._reclaim = None
        slot_futures, self._slot_futures = self._slot_futures, ()
        for slot_future in slot_futures:
            if slot_future.done():
                continue
            if refusal is None:
                slot_future.set_result(None)
            else:
                slot_future.set_exception(refusal)

    def abandon(self, slot_future: SlotFuture) -> None:
        """A strand no longer waits for the slot; the last one gives up the body's place in line."""
        self._slot_futures = tuple(each for each in self._slot_futures if each is not slot_future)
        if not self._slot_futures and self._reclaim is not None:
            self._reclaim.cancel()
            self._reclaim = None

    # --- releasing it ---------------------------------------------------------------------

    def _release_if_unneeded(self) -> None:
        """After a change: release the slot if no strand needs it; else keep it for a while."""
        if self._callers is not None:
            self._forget_dead_threads()
        if not self._strands.is_slot_needed and self.slot.is_held() and not self.is_ending():
            self._park()
        self._update_lend_timer()

    def _park(self) -> bool:
        """False at max_parked: then the slot is kept for a while."""
        if self._attempt is not None and not self._attempt.park(self._waits[0]):
            return False
        return self.slot.release()

    def _update_lend_timer(self) -> None:
        """Start or stop the timer after which the slot is lent."""
        is_kept = self._strands.is_lendable and self.slot.is_held() and not self.is_ending()
        if is_kept and self._lend_timer is None:
            loop = asyncio.get_running_loop()
            self._lend_timer = loop.call_later(LEND_AFTER_S, self._lend_or_park)
        elif not is_kept and self._lend_timer is not None:
            self._lend_timer.cancel()
            self._lend_timer = None

    def _lend_or_park(self) -> None:
        self._lend_timer = None
        self._forget_dead_threads()
        if not self._strands.is_lendable or not self.slot.is_held() or self.is_ending():
            return
        if self._strands.is_slot_needed:
            self._lend(PLAIN_AWAIT)
        elif not self._park():
            self._lend(PARKING_FULL)
        self._update_lend_timer()

    def _lend(self, why: str) -> None:
        """At max_parked the slot may be kept for another while."""
        if self._attempt is None or self._attempt.lend(self._waits[0], why):
            self.slot.release()
