"""Waits that have begun, each without a slot of its own: what they wait for, and how they end.

A handle begins one and parks on it; a bundle (`wait_bundles`) begins several and parks once. None
of this touches the slot. What cannot be read from a promise afterwards, a condition that held or a
timeout, is recorded when it happens.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from layby.core.commands import EnsurePromise
from layby.core.held_exits import is_exit
from layby.core.model import NEVER, Millis, Promise
from layby.core.replies import PromiseData, Reply
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from layby.errors import ConditionError, DeferTimeout, LaybyError, error_for
from layby.wire.durations import millis_of
from layby.worker.annotations import StoredRecord
from layby.worker.attempt import Attempt
from layby.worker.condition_poll import MOVED_DEADLINE, count_first, name_of
from layby.worker.outgoing_call import answer_of_type, make_call, result_of
from layby.worker.promise_watches import PromiseWatch, TimedPromiseWatch, is_late
from layby.worker.rejections import value_of
from layby.worker.replay import Record, digest_of, encoded, record_of
from layby.worker.wait_deadlines import WaitDeadline
from layby.worker.wait_terms import CallTerm, ConditionTerm, sleep_sentence
from layby.worker.wheel import Poll, Wheel

DEFER_UNTIL: Final = Record("defer_until")


class WaitEnd(Struct, frozen=True):
    """How and when a wait ended: with a settled promise, with an error, or simply so."""

    at: Millis
    promise: Promise | None = None
    error: LaybyError | None = None
    denied: bool = False
    """A person said no: that raises nothing, but it is not a success either."""

    @property
    def failed(self) -> bool:
        """Whether it raises."""
        is_rejected = self.promise is not None and self.promise.state != "resolved"
        return (is_rejected and not self.denied) or self.error is not None

    @property
    def succeeded(self) -> bool:
        return not self.failed and not self.denied


def deadline_of(promise: Promise) -> Millis | None:
    """Of a wait that lasts as long as its promise; NEVER if a person has removed it."""
    is_without = promise.timeout_at == NEVER and not promise.is_movable
    return None if is_without else promise.timeout_at


class BegunWait:
    """One wait among others. `future` is done when `look` may find more than before."""

    __slots__ = ("attempt", "end", "future", "record_id", "waiting")

    def __init__(self, attempt: Attempt, record_id: str, waiting: WaitingOn) -> None:
        self.attempt = attempt
        self.record_id = record_id
        self.waiting = waiting
        self.end: WaitEnd | None = None
        self.future: asyncio.Future[Any] | None = None

    def look(self) -> WaitEnd | None:
        """How it has ended, if it has."""
        if self.end is None and self.future is not None and self.future.done():
            self.end = self.ended(self.future)
        return self.end

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        raise NotImplementedError

    async def ask_again(self) -> None:
        """Before it is called too late: the message that it has ended may be on its way."""

    def value(self) -> Any:
        """What it has ended with; raises what it failed with."""
        assert self.end is not None
        if self.end.error is not None:
            raise self.end.error
        return None if self.end.promise is None else value_of(self.end.promise)

    def stop(self) -> None:
        """Nobody waits for it in this process any more."""
        if self.future is not None:
            self.future.cancel()
        self.attempt.annotations.end_wait(self.record_id)

    def withdraw(self) -> None:
        """It is given up for good: what was made for it is cancelled."""
        self.stop()


class SleepWait(BegunWait):
    __slots__ = ("_timer_id",)

    def __init__(self, attempt: Attempt, record_id: str, timer: Promise, length: float) -> None:
        deadline = timer.timeout_at if timer.timeout_at < NEVER else None
        waiting = WaitingOn("sleep", sleep_sentence(length), deadline=deadline, record_id=record_id)
        super().__init__(attempt, record_id, waiting)
        self._timer_id = timer.id
        if timer.is_pending:
            self.future = attempt.watch(timer.id)
        else:
            self.end = _end_of(timer)

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        return _end_of(settled_promise(future.result(), self._timer_id))

    def withdraw(self) -> None:
        self.stop()
        self.attempt.annotations.withdraw(self._timer_id)


class PromiseWait(BegunWait):
    """For any promise. Only one that the wait itself has made is cancelled with it."""

    __slots__ = ("_call", "_is_own", "_promise_id")

    def __init__(
        self,
        attempt: Attempt,
        record_id: str,
        promise_id: str,
        begun: "Promise | TimedOut | PromiseWatch",
        *,
        is_own: bool = False,
        kind: str = "promise",
    ) -> None:
        waiting = WaitingOn(kind, "", awaited=promise_id)
        super().__init__(attempt, record_id, waiting)
        self._promise_id = promise_id
        self._is_own = is_own
        self._call = wait_call(promise_id)
        if isinstance(begun, PromiseWatch):
            self.future = begun
            if isinstance(begun, TimedPromiseWatch):
                self.waiting = replace(waiting, deadline=begun.deadline, record_id=record_id)
        elif isinstance(begun, Promise):
            attempt.annotations.end_wait(record_id)
            self.end = WaitEnd(begun.settled_at or 0, begun)
        else:
            self.end = self._timed_out(begun)

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        if isinstance(timeout := future.exception(), DeferTimeout):
            assert isinstance(future, TimedPromiseWatch)
            return self._timed_out(TimedOut(timeout, future.deadline))
        promise = settled_promise(future.result(), self._promise_id)
        return WaitEnd(promise.settled_at or 0, promise)

    def _timed_out(self, timed_out: "TimedOut") -> WaitEnd:
        if not timed_out.is_recorded:
            self.attempt.annotations.note(self.record_id, self._call.raising(timed_out.error))
        return WaitEnd(timed_out.at, error=timed_out.error)

    async def ask_again(self) -> None:
        if isinstance(self.future, PromiseWatch):
            await self.future.ask_again()

    def withdraw(self) -> None:
        self.stop()
        if self._is_own:
            self.attempt.annotations.withdraw(self._promise_id)


class CallWait(BegunWait):
    """A call of a function elsewhere; withdrawn, it is cancelled."""

    __slots__ = ("_promise_id", "_term")

    def __init__(self, attempt: Attempt, record_id: str, term: CallTerm, promise: Promise) -> None:
        waiting = WaitingOn(
            "rpc",
            f"waiting for {term.call.func}() at {term.target}",
            deadline=deadline_of(promise),
            awaited=promise.id,
            record_id=promise.id,
        )
        super().__init__(attempt, record_id, waiting)
        self._term = term
        self._promise_id = promise.id
        if promise.is_pending:
            self.future = attempt.watch(promise.id)
        else:
            self.end = WaitEnd(promise.settled_at or 0, promise)

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        promise = settled_promise(future.result(), self._promise_id)
        return WaitEnd(promise.settled_at or 0, promise)

    async def ask_again(self) -> None:
        if isinstance(self.future, PromiseWatch):
            await self.future.ask_again()

    def value(self) -> Any:
        assert self.end is not None
        assert self.end.promise is not None
        what = f"{self.attempt.id}: {self._term.call.func}() at {self._term.target}"
        return answer_of_type(result_of(self.end.promise, what), self._term.returns, what)

    def withdraw(self) -> None:
        self.stop()
        self.attempt.annotations.withdraw(self._promise_id)


class ConditionWait(BegunWait):
    """It is over when its end is stored, by this body or by a person."""

    __slots__ = ("_stored",)

    def __init__(
        self, attempt: Attempt, record_id: str, term: ConditionTerm, deadline: Millis | None
    ) -> None:
        sentence = condition_sentence(name_of(term.condition))
        waiting = WaitingOn("condition", sentence, deadline=deadline, record_id=record_id)
        super().__init__(attempt, record_id, waiting)
        self._stored: StoredRecord | None = None

    def follow(self, polled: "asyncio.Future[Any]") -> None:
        self.future = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda _: polled.cancel())
        polled.add_done_callback(self._polled)

    def _polled(self, polled: "asyncio.Future[Any]") -> None:
        """Recorded at once: a condition that has held is not asked again."""
        assert self.future is not None
        if polled.cancelled() or self.future.done():
            return
        error = polled.exception()
        if error is not None and not isinstance(error, DeferTimeout | ConditionError):
            self.future.set_exception(error)
            return
        self._stored = self._record(error)
        self._stored.add_done_callback(partial(self._is_stored, error))

    def _is_stored(self, error: LaybyError | None, stored: StoredRecord) -> None:
        """A person may have been first."""
        assert self.future is not None
        if stored.cancelled() or self.future.done():
            return
        promise = stored.result()
        if (by_hand := ended_by_hand(self.attempt, promise)) is not None:
            error = by_hand.error_again()
        at = None if promise is None else promise.settled_at
        self.future.set_result(WaitEnd(self.attempt.now() if at is None else at, error=error))

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        return future.result()

    async def ask_again(self) -> None:
        if self._stored is not None:
            await asyncio.wait([self._stored])

    def now_ended(self, error: ConditionError | None = None) -> None:
        """Before it was shown: nobody else can have ended it."""
        self._record(error)
        self.end = WaitEnd(self.attempt.now(), error=error)

    def _record(self, error: DeferTimeout | ConditionError | None) -> StoredRecord:
        record = DEFER_UNTIL if error is None else DEFER_UNTIL.raising(error)
        return self.attempt.annotations.note(self.record_id, record)


def ended_by_hand(attempt: Attempt, stored: Promise | None) -> Record | None:
    """How a person has ended the wait for a condition, if that was stored before the body's own
    record: it counts, now as in later runs of the body.
    """
    if stored is None or not is_exit(stored):
        return None
    attempt.replay.remember(stored.id, stored)
    return attempt.replay.found(stored.id, DEFER_UNTIL)


class TimedOut(Struct, frozen=True):
    """A wait for a promise that is over without it."""

    error: DeferTimeout
    at: Millis
    is_recorded: bool = False


# --- beginning ---------------------------------------------------------------------------------


async def begin_sleep(attempt: Attempt, record_id: str, length: float) -> SleepWait:
    return SleepWait(attempt, record_id, await durable_timer(attempt, record_id, length), length)


async def begin_call(attempt: Attempt, key: str, record_id: str, term: CallTerm) -> CallWait:
    promise = await make_call(attempt, key, term.call, term.target, millis_of(term.within))
    return CallWait(attempt, record_id, term, promise)


async def begin_condition(
    attempt: Attempt, wheel: Wheel, record_id: str, term: ConditionTerm
) -> ConditionWait:
    before = attempt.replay.recorded_at(record_id)
    found = attempt.replay.found(record_id, DEFER_UNTIL)
    wait = ConditionWait(attempt, record_id, term, None)
    if found is not None:
        wait.end = WaitEnd(before, error=found.error_again())
        return wait
    try:
        poll, deadline = await watch_condition(wheel, attempt, record_id, term)
    except ConditionError as error:
        wait.now_ended(error)
        return wait
    if poll is None:
        wait.now_ended()
        return wait
    wait.follow(poll.future)
    wait.waiting = replace(wait.waiting, deadline=deadline)
    return wait


async def watch_condition(
    wheel: Wheel, attempt: Attempt | None, record_id: str | None, term: ConditionTerm
) -> tuple[Poll | None, Millis | None]:
    """Check it once; None if it holds, else the poll that goes on, and its deadline."""
    first = await wheel.first_check(term.condition, None if attempt is None else attempt.id)
    if first.holds:
        return None, None
    until, left = _condition_deadline(attempt, record_id, term.within)
    poll = wheel.watch(
        term.condition,
        term.interval,
        timeout=term.within,
        left=left,
        backoff=term.backoff,
        max_interval=term.longest,
        jitter=term.jitter,
        max_errors=term.max_errors,
        wake=term.wake,
        first=first,
    )
    poll.record_id = record_id
    if attempt is not None and until is not None:
        poll.expire = partial(_expire, wheel, attempt, poll, until)
        if attempt.annotations.is_moved(until.record_id):
            poll.timeout = None  # its length says nothing any more
    count_first(poll, first.error)
    return poll, None if until is None else until.deadline


def _expire(wheel: Wheel, attempt: Attempt, poll: Poll, until: WaitDeadline) -> None:
    attempt.spawn(_end_or_move(wheel, attempt, poll, until))


async def _end_or_move(wheel: Wheel, attempt: Attempt, poll: Poll, until: WaitDeadline) -> None:
    """The time of a condition is up, unless its deadline was moved."""
    at = attempt.annotations.fixed_deadline(until.record_id)
    moved_to = await until.later(until.deadline if at is None else at)
    if moved_to is None:
        wheel.time_out(poll)
    else:
        wheel.put_off(poll, max(0, moved_to - attempt.now()) / 1000)


def _condition_deadline(
    attempt: Attempt | None, record_id: str | None, within: float | None
) -> tuple[WaitDeadline | None, float | None]:
    """The deadline of a wait for a condition; what is left if an earlier run began it."""
    length = millis_of(within)
    if attempt is None or record_id is None or length == NEVER:
        return None, None
    is_new = attempt.annotations.fixed_deadline(record_id) is None
    until = attempt.annotations.begin_wait(record_id, length)
    left = None if is_new else max(0, until.deadline - attempt.now()) / 1000
    return until, left


async def begin_promise(
    attempt: Attempt,
    record_id: str,
    promise_id: str,
    within: float | None,
    *,
    is_open: bool = False,
) -> Promise | TimedOut | PromiseWatch:
    """The promise if it is settled, how the wait has ended without it, or a watch on it.

    `is_open`: it exists, was pending a moment ago, and is kept for this task.
    """
    call = wait_call(promise_id)
    attempt.annotations.begin_promise_wait(record_id, call)
    before = attempt.replay.recorded_at(record_id)
    found = attempt.replay.found(record_id, call)
    if found is not None and (error := found.error_again()) is not None:
        assert isinstance(error, DeferTimeout)
        return TimedOut(error, before, is_recorded=True)
    if is_open and within is None:
        return attempt.watch(promise_id)
    begun = None if within is None else attempt.annotations.fixed_deadline(record_id)
    ensure = EnsurePromise(id=promise_id, awaiter=attempt.id)
    promise = settled_promise(await attempt.send(ensure), promise_id)
    while begun is not None and (is_late(promise, begun) or _is_over(promise, begun, attempt)):
        moved_to = await attempt.annotations.later_deadline(record_id, begun)
        if moved_to is None:
            why = timeout_message(attempt, promise.id, record_id, within)
            return TimedOut(DeferTimeout(why), begun)
        begun = moved_to
    return _watch(attempt, promise.id, within, record_id) if promise.is_pending else promise


def _is_over(promise: Promise, deadline: Millis, attempt: Attempt) -> bool:
    return promise.is_pending and deadline < attempt.now()


def _watch(attempt: Attempt, promise_id: str, within: float | None, record_id: str) -> PromiseWatch:
    length = millis_of(within)
    if length == NEVER:
        return attempt.watch(promise_id)
    timeout = partial(timeout_message, attempt, promise_id, record_id, within)
    until = attempt.annotations.begin_wait(record_id, length)
    return attempt.watch_until(promise_id, until, timeout)


async def durable_timer(attempt: Attempt, record_id: str, length: float) -> Promise:
    """The timer of a sleep, from an earlier run of the body or new."""
    call = Record("sleep", digest_of(length))
    attempt.replay.found(record_id, call)
    timer = attempt.replay.timer(record_id)
    if timer is not None:
        return timer.at(attempt.now())
    tags = {"resonate:timer": "true", MOVABLE: "true"}
    created = await attempt.create(record_id, millis_of(length), encoded(call), tags)
    attempt.replay.check(record_id, record_of(created), call, is_earlier=False)
    return created


# --- small parts -------------------------------------------------------------------------------


def _end_of(timer: Promise) -> WaitEnd:
    """A timer that somebody has rejected or cancelled is a sleep that failed."""
    is_over = timer.state == "resolved"
    return WaitEnd(timer.settled_at or timer.timeout_at, None if is_over else timer)


def wait_call(promise_id: str) -> Record:
    return Record("wait_for", digest_of(promise_id))


def settled_promise(reply: Reply, promise_id: str) -> Promise:
    if isinstance(reply.data, PromiseData):
        return reply.data.promise
    raise error_for(reply.status, f"promise {promise_id}: {reply.data}")


@lru_cache(maxsize=1024)
def condition_sentence(condition: str) -> str:
    """One string for all who wait for the same condition, which has this name."""
    return f"waiting until {condition} is true"


def timeout_message(attempt: Attempt, promise_id: str, record_id: str, within: float | None) -> str:
    when = in_what_time(attempt, record_id, within or 0)
    return f"{attempt.id}: promise {promise_id} was not settled {when}"


def in_what_time(attempt: Attempt, record_id: str, within: float) -> str:
    """How long a wait was to last, unless a person has decided otherwise."""
    return MOVED_DEADLINE if attempt.annotations.is_moved(record_id) else f"in {within:g} s"


def stop_all(waits: Sequence[BegunWait]) -> None:
    for each in waits:
        each.stop()
