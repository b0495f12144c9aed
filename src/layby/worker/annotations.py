"""What one try writes to the store about itself while its body runs: what it waits for and until
when, how waits have ended, what was given up, and how far it has got.

All of it goes in one kind of request, in order. What the store has not acknowledged is written
again with the next one; a wait that ends carries its record along.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from layby.client.patience import PAUSES, known
from layby.core import waits
from layby.core.commands import NOTHING, AnnotateTask, ExpireWait, Value
from layby.core.held_exits import moved_waits
from layby.core.model import NEVER, Millis, Promise
from layby.core.replies import AnnotateData, Reply
from layby.core.waits import WaitingOn
from layby.errors import StoreError, WireError
from layby.wire.json_values import shortened
from layby.worker import tell
from layby.worker.replay import Recalled, Record, encoded
from layby.worker.thread_call import on_loop
from layby.worker.wait_deadlines import WaitDeadline, WaitDeadlines

if TYPE_CHECKING:
    from layby.worker.attempt import Attempt, AttemptHost


MAX_PROGRESS_CHARS: Final = 8_000
"""Whatever they are, the store takes them: each has six bytes in JSON at most."""


class PollState(Protocol):
    polls: int
    next_poll_at: float | None
    last_error: str | None
    asked_at: float | None


class ShownWait(msgspec.Struct, frozen=True):
    """What status shows of one wait."""

    waiting: WaitingOn
    sub_status: str | None
    poll: PollState | None

    def with_slot(self, note: str = "") -> "ShownWait":
        """As shown for a body that holds its slot."""
        return ShownWait(tell.with_aside(self.waiting, note), None, self.poll)

    def with_note(self, note: str) -> "ShownWait":
        """With a remark for the reader."""
        return ShownWait(tell.with_aside(self.waiting, note), self.sub_status, self.poll)


StoredRecord = asyncio.Future[Promise | None]
"""The record of a wait's end that the store has; None if it does not say."""


class CarriedRecord(NamedTuple):
    """The end of a wait, on its way to the store."""

    record_id: str
    record: Record
    stored: StoredRecord

    @property
    def value(self) -> Value:
        return encoded(self.record)

    async def stored_by(self, sending: Awaitable[Promise | None]) -> None:
        """Tell whoever waits for it what is stored; cancel the wait if that will never be known."""
        try:
            found = await sending
        except BaseException:
            self.stored.cancel()
            raise
        if not self.stored.done():
            self.stored.set_result(found)


class Annotations:
    __slots__ = (
        "_attempt",
        "_awaits",
        "_carried",
        "_deadlines",
        "_host",
        "_progress",
        "_sent",
        "_withdrawn",
        "shown",
    )

    def __init__(
        self,
        host: "AttemptHost",
        attempt: "Attempt",
        fixed: Mapping[str, Millis],
        recalled: Recalled,
    ) -> None:
        """`fixed`: deadlines of waits that earlier runs of the body began."""
        self._host = host
        self._attempt = attempt
        self.shown: ShownWait | None = None
        """What the body waits for; None while it runs."""
        self._carried: CarriedRecord | None = None
        """The end of a wait that is to be written with whatever is written next."""
        self._awaits: dict[str, str] | None = None
        """What its waits for promises are for, as far as the store does not know it yet."""
        self._withdrawn: tuple[str, ...] = ()
        """Promises of waits that were given up; cancelled with whatever is written next."""
        self._progress: str | None = None
        self._sent = 0
        self._deadlines: WaitDeadlines | None = None
        if fixed:
            moved = moved_waits(recalled.records)
            self._deadlines = WaitDeadlines(fixed, self._annotate_soon, moved)

    # --- what it waits for now --------------------------------------------------------

    def show(self, shown: ShownWait | None) -> None:
        """Write what the body waits for now, with the record of a wait that has ended."""
        self.shown = shown
        self._annotate()

    def show_waiting(self, waiting: WaitingOn) -> None:
        """It still has no slot, but what it waits for has changed."""
        self.show(ShownWait(tell.begun(waiting, self._attempt.now()), "Deferred", None))

    async def show_running(self) -> None:
        """Write that it waits for nothing, and return when that is stored."""
        self.shown = None
        self._sent += 1
        self._attempt.checked(await self._attempt.send(self._annotation(None, None)))

    def progress(self, fraction: float | None, text: str) -> None:
        text = shortened(str(text), MAX_PROGRESS_CHARS)
        progress = {"fraction": fraction, "text": text, "at": self._attempt.now()}
        self._progress = msgspec.json.encode(progress).decode()
        on_loop(self._annotate)  # a plain condition may call this in its thread

    # --- deadlines of waits -----------------------------------------------------------

    def fixed_deadline(self, record_id: str) -> Millis | None:
        """The deadline of this wait, if an earlier run of the body began it."""
        return None if self._deadlines is None else self._deadlines.fixed(record_id)

    def is_moved(self, record_id: str) -> bool:
        """Whether a person has moved the deadline of this wait."""
        return self._deadlines is not None and self._deadlines.is_moved(record_id)

    def begin_wait(self, record_id: str, length: Millis) -> WaitDeadline:
        """Begin a wait now, unless it has begun before; written with `Deferred`."""
        if self._deadlines is None:
            self._deadlines = WaitDeadlines({}, self._annotate_soon)
        estimate = self._attempt.now() + length
        return self._deadlines.begin(record_id, estimate, self.end_wait, self.later_deadline)

    async def later_deadline(self, record_id: str, at: Millis) -> Millis | None:
        """By our clock the time of this wait is up: where its deadline is now, if it was moved.

        None: it is up. Only the store can say so, as the message of a move may be lost, or on its
        way. While the store does not answer, the wait goes on.
        """
        attempt = self._attempt
        expire = ExpireWait(id=attempt.id, version=attempt.version, wait=record_id, deadline=at)
        reply = await attempt.send(expire)
        attempt.check_fence(reply)
        if reply.status in (404, 409):  # a later run of the body continues the wait
            return NEVER
        data = reply.data
        if not isinstance(data, AnnotateData):  # a server of an older version
            return None
        if data.record is not None:
            self._host.ended_by_hand(record_id, data.record)
        moved_to = data.task.deadlines_by_id.get(record_id, at)
        if moved_to <= at:
            if self._deadlines is not None:
                self._deadlines.heard(record_id)  # the store says now that it is up, not moved
            return None
        self._move_wait(record_id, moved_to, "")
        return moved_to

    def hear_move(self, record_id: str, at: Millis, by: str) -> None:
        """The word has come that a person has moved the deadline of this wait."""
        if self._deadlines is not None:
            self._deadlines.heard(record_id)
        if self._move_wait(record_id, at, by):
            self._host.moved_by_hand(record_id, at)

    def _move_wait(self, record_id: str, at: Millis, by: str) -> bool:
        """A person has moved the deadline of this wait; False if it has ended, or if that deadline
        is not kept here but with a promise.
        """
        self._attempt.has_kept = True  # what was decided is below its id
        is_kept = self._deadlines is not None and self._deadlines.move(record_id, at)
        shown = self.shown
        if shown is not None:
            own = self.fixed_deadline(shown.waiting.record_id or "")
            until = None if at >= NEVER else at
            waiting = waits.moved(tell.spoken(shown.waiting), record_id, until, by, own)
            self.shown = ShownWait(waiting, shown.sub_status, shown.poll)
        return is_kept

    def _annotate_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._annotate_deadlines)

    def _annotate_deadlines(self) -> None:
        """Unless another annotation has carried them; nothing is written for a body that ends."""
        is_untold = self._deadlines is not None and self._deadlines.has_unsent
        if is_untold and self._attempt.is_open and self._attempt.reason is None:
            self._annotate()

    # --- how waits end ----------------------------------------------------------------

    def carry(self, record_id: str, record: Record) -> StoredRecord:
        """Record the end of a wait with what is written next. The future has the record that is
        stored then: if a person has ended the wait first, it is not this one.
        """
        if self._carried is not None:
            self._annotate()
        stored: StoredRecord = asyncio.get_running_loop().create_future()
        self._carried = CarriedRecord(record_id, record, stored)
        self._attempt.has_kept = True
        self._attempt.replay.remember(record_id, record)
        self.end_wait(record_id)
        return stored

    def note(self, record_id: str, record: Record) -> StoredRecord:
        """Record the end of a wait now; what is shown of the body does not change."""
        stored = self.carry(record_id, record)
        self._annotate()
        return stored

    def end_wait(self, record_id: str) -> None:
        """Not when the body is ended from outside: a later run continues the wait."""
        if self._deadlines is not None and self._attempt.reason is None:
            self._deadlines.end(record_id)

    def begin_promise_wait(self, record_id: str, call: Record) -> None:
        """Note what it is for; written with whatever is written next."""
        noted = self._attempt.replay.check_awaited(record_id, call)
        if noted is not None:
            key, digest = noted
            self._awaits = {**(self._awaits or {}), key: digest}

    def withdraw(self, promise_id: str) -> None:
        """A wait is given up for good: what was made for it is cancelled with the next write."""
        self._withdrawn = (*self._withdrawn, promise_id)

    def withdraw_now(self, promise_id: str) -> None:
        """Others work for it, and the next write may be far away."""
        self.withdraw(promise_id)
        if self._attempt.is_open:
            self._annotate()

    # --- writing ----------------------------------------------------------------------

    async def record(self, record_id: str, value: Value) -> Promise:
        """Store a record and wait for that; returns what is stored, ours or an earlier one."""
        attempt = self._attempt
        attempt.has_kept = True
        command = self._annotation(record_id, value)
        reply = attempt.checked(await attempt.send(command))
        self._acknowledged(command, reply)
        assert isinstance(reply.data, AnnotateData)
        if reply.data.record is None:
            raise WireError(
                f"{attempt.id}: the record is missing from the answer to {command.kind}"
            )
        return reply.data.record

    async def write(self) -> None:
        """Write what is to be written, and wait for that."""
        command = self._annotation(None, None)
        self._acknowledged(command, self._attempt.checked(await self._attempt.send(command)))

    def final(self) -> AnnotateTask:
        """What is written about a call before it is released."""
        attempt = self._attempt
        history = attempt.loaded.history.handed_back(attempt.now(), "Released")
        return AnnotateTask(
            id=attempt.id, version=attempt.version, progress=self._progress, history=history
        )

    def _annotate(self) -> None:
        """Hand it to the writer now, in order, without waiting for the commit."""
        if self._host.is_loop_ending():  # as if the process had died: what was parked stays so
            return
        carried, self._carried = self._carried, None
        if self._deadlines is not None:
            self._deadlines.has_unsent = False
        self._sent += 1
        sending = self._send_annotation(carried, self._sent)
        self._host.spawn(sending if carried is None else carried.stored_by(sending))

    async def _send_annotation(self, carried: CarriedRecord | None, number: int) -> Promise | None:
        """Send it again while the store does not answer, unless something newer was sent.

        The record that is stored then, if it carries one.
        """
        record_id, value = (None, None) if carried is None else (carried.record_id, carried.value)
        command = self._annotation(record_id, value)
        for pause in PAUSES:
            try:
                reply = known(await self._host.client.send(command))
                self._attempt.check_fence(reply)
                self._acknowledged(command, reply)
            except StoreError:  # the engine's own log has it
                await asyncio.sleep(pause)
            else:
                return reply.data.record if isinstance(reply.data, AnnotateData) else None
            if not self._attempt.is_open or (number != self._sent and carried is None):
                return None
            command = self._annotation(record_id, value)
        return None

    def _annotation(self, record_id: str | None, value: Value | None) -> AnnotateTask:
        attempt, shown, deadlines = self._attempt, self.shown, self._deadlines
        return AnnotateTask(
            id=attempt.id,
            version=attempt.version,
            sub_status=None if shown is None else shown.sub_status,
            waiting_on=None if shown is None else tell.told(shown.waiting),
            progress=self._progress,
            history=attempt.loaded.history.text,
            record_id=record_id,
            record=value or NOTHING,
            waits={} if deadlines is None else deadlines.begun(attempt.now()),
            ended=() if deadlines is None else deadlines.ended(),
            awaits=self._awaits or {},
            withdrawn=self._withdrawn,
        )

    def _acknowledged(self, command: AnnotateTask, reply: Reply) -> None:
        if self._awaits is not None and reply.is_ok:
            left = {key: each for key, each in self._awaits.items() if key not in command.awaits}
            self._awaits = left or None
        if command.withdrawn and reply.is_ok:
            done = frozenset(command.withdrawn)
            self._withdrawn = tuple(each for each in self._withdrawn if each not in done)
        if self._deadlines is not None and isinstance(reply.data, AnnotateData):
            stored = reply.data.task.deadlines_by_id
            for record_id, at in self._deadlines.moved_unheard(stored):
                self._move_wait(record_id, at, "")
                self._host.moved_by_hand(record_id, at)
            self._deadlines.acknowledge(stored, command.ended)
