"""One timer for all parked conditions of a worker, so that a wait costs a future and no coroutine.

Polls are in buckets by the millisecond they are due at; a heap knows the earliest bucket, and one
loop timer waits for it. What is due is evaluated in slices of a few milliseconds, with a turn of
the loop in between, so that a hundred thousand conditions due at once do not stop anything else.
With many polls, long intervals are rounded up to ten milliseconds: fewer buckets, fewer wake-ups.

A poll is in one of three states: parked in a bucket, ready, or being evaluated (an async condition
in a task, a plain one in a thread: see `condition_threads.py`). While it is being evaluated and has
a deadline it is also in a bucket, as a guard.
The next pause begins when the answer has come, so that slow conditions never overlap themselves.
"""

import asyncio
import inspect
import logging
import math
import random as chance
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Any, Final

from layby.errors import UsageError
from layby.wire.json_values import error_text
from layby.worker.condition_poll import (
    Condition,
    FirstCheck,
    Poll,
    Question,
    Tick,
    check_condition,
    check_pace,
    is_async,
    truth,
    truth_of,
)
from layby.worker.condition_threads import SLICE_S, ConditionThreads
from layby.worker.exit_requests import ExitRequested, is_exit_request
from layby.worker.wake_events import Wake, WakeEvents, check_wake

__all__ = ["Condition", "Poll", "Wake", "Wheel"]

logger = logging.getLogger(__name__)

LAST_CHECK_S = 10.0
"""How many seconds a question that is under way at the deadline may still take."""

_MANY_POLLS = 1_000
_LONG_PAUSE_S = 10.0
_COARSE_TICKS = 10


TOLD_ERRORS: Final = 10
"""So many errors in a row are logged, each."""


MAX_TIMEOUT_S: Final = 1e9
"""A deadline that is further away is none."""


class Wheel:
    """Belongs to the loop of the first `watch`. `random` draws jitter, between 0 and 1."""

    def __init__(
        self, *, random: Callable[[], float] = chance.random, max_threads: int = 64
    ) -> None:
        self._random = random
        self._max_threads = max_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polls: dict[asyncio.Future[None], Poll] = {}
        self._buckets: dict[Tick, dict[Poll, None]] = {}
        self._ticks: list[Tick] = []
        self._ready: deque[Poll] = deque()
        self._timer: asyncio.Handle | None = None
        self._armed: Tick | None = None
        self._is_turning = False
        self._is_closed = False
        self._on_done = self._ended

    @property
    def parked(self) -> int:
        """How many it watches. Not `len()`: an empty wheel must not be falsy."""
        return len(self._polls)

    def __iter__(self) -> Iterator[Poll]:
        return iter(list(self._polls.values()))

    def watch(
        self,
        condition: Condition,
        interval: float,
        *,
        timeout: float | None = None,
        left: float | None = None,
        backoff: float = 1.0,
        max_interval: float | None = None,
        jitter: float = 0.0,
        max_errors: int = 10,
        wake: Wake | None = None,
        first: FirstCheck | None = None,
        first_in: float | None = None,
    ) -> Poll:
        """Poll the condition every `interval` seconds until it is true; then the future is done.

        A `first` check that is still under way is its first poll. Otherwise that comes after one
        interval, or after `first_in` seconds.

        The future raises `DeferTimeout` after a last poll at the deadline, and `ConditionError`
        when the condition has raised more than `max_errors` times in a row. Cancel it to withdraw.
        `left` is what is left of the timeout if an earlier run of the body began the wait.
        """
        check_condition(condition)
        check_wake(wake)
        check_pace(interval, timeout, backoff, max_interval, jitter, max_errors)
        loop = self._running_loop()
        poll = Poll(
            condition,
            interval,
            timeout=timeout,
            backoff=backoff,
            max_interval=max_interval,
            jitter=jitter,
            max_errors=max_errors,
            wake=wake,
            future=loop.create_future(),
        )
        poll.retry_in = first_in
        self._enter(poll, first, timeout if left is None else left)
        return poll

    async def first_check(self, condition: Condition, task: str | None = None) -> FirstCheck:
        """Evaluate it once. Returns after 50 ms at the latest; `watch` then adopts the check."""
        check = FirstCheck(condition, task, self._running_loop().time())
        if check.lane != "async":
            await self._answer_in_thread(check)
        if check.lane == "async" or inspect.isawaitable(check.answer):
            await check.ask_here()
        return check

    async def _answer_in_thread(self, check: FirstCheck) -> None:
        self._threads.ask_first(check)
        if not check.is_under_way or check.is_late:
            return  # virtual time
        assert self._loop is not None
        check.answered = self._loop.create_future()
        try:
            await check.answered
        except asyncio.CancelledError:
            check.is_withdrawn = True
            self._threads.forget(check)
            raise

    def ask_now(self, poll: Poll) -> None:
        """Ask it at once, or again if it is being asked: its answer may have changed."""
        if not poll.is_over:
            self._woken(poll)

    def end(self, record_id: str, error: Exception | None) -> None:
        """A person has ended the wait that is recorded so: the condition counts as met, or fails.

        It is looked for among all of them: people are rare.
        """
        for poll in self:
            if poll.record_id == record_id:
                _finish(poll, error)

    def move(self, record_id: str, seconds: float) -> None:
        """A person has moved its deadline: it ends so long from now."""
        for poll in self:
            if poll.record_id == record_id:
                self.put_off(poll, seconds)

    def put_off(self, poll: Poll, seconds: float) -> None:
        """Its deadline is so long from now."""
        if poll.is_over:
            return
        is_asking, is_ready = poll.asking is not None, poll.is_ready
        poll.is_expiring = False
        poll.deadline = None if seconds >= MAX_TIMEOUT_S else self._tick_in(seconds)
        poll.timeout = None  # its length says nothing any more
        self._leave_bucket(poll)
        if is_asking and poll.deadline is not None:
            self._put(poll, max(poll.deadline, self._now()) + round(LAST_CHECK_S * 1000))
        elif not is_asking and not is_ready:
            self._park(poll)

    def time_out(self, poll: Poll) -> None:
        """Its deadline has passed for good."""
        _finish(poll, poll.timed_out())

    def close(self) -> None:
        """Cancel every future, and release the timer, events and threads."""
        self._is_closed = True
        for poll in self:
            self._withdraw(poll)
            poll.future.cancel()
        self._disarm()
        if self._loop is not None:
            self._threads.close()

    # --- coming and going ----------------------------------------------------------------

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise UsageError("this wheel has been closed: its worker has been stopped")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._origin = loop.time()
            self._wake_events: WakeEvents[Poll] = WakeEvents(loop, self._woken)
            self._threads = ConditionThreads(
                loop, self._thread_answered, _mark_late, self._max_threads
            )
            self._context = copy_context()
        elif self._loop is not loop:
            raise UsageError("a wheel belongs to the loop it was first used in: make one per loop")
        return loop

    def _enter(self, poll: Poll, first: FirstCheck | None, timeout: float | None) -> None:
        self._polls[poll.future] = poll
        poll.future.add_done_callback(self._on_done, context=self._context)
        if timeout is not None and timeout < math.inf:
            poll.deadline = self._tick_in(timeout)
        if first is None:
            poll.lane = "async" if is_async(poll.condition) else None
            self._park(poll)
        else:
            self._adopt(poll, first)
        if poll.wake is not None:
            self._wake_events.add(poll.wake, poll)

    def _adopt(self, poll: Poll, first: FirstCheck) -> None:
        poll.lane, poll.task = first.lane, first.task
        if first.is_under_way:
            first.poll = poll
            self._begin_question(poll, first, first.since)
        else:
            self._park(poll)

    def _ended(self, future: asyncio.Future[None]) -> None:
        if poll := self._polls.get(future):
            self._withdraw(poll)

    def _withdraw(self, poll: Poll) -> None:
        del self._polls[poll.future]
        self._leave_bucket(poll)
        if poll.wake is not None:
            self._wake_events.remove(poll.wake, poll)
        if isinstance(poll.asking, asyncio.Future):
            poll.asking.cancel()
        elif poll.asking is not None:
            self._threads.forget(poll.asking)
            poll.asking = None

    # --- buckets -------------------------------------------------------------------------

    def _now(self) -> Tick:
        """The last full millisecond, with some tolerance for float errors."""
        assert self._loop is not None
        return math.floor((self._loop.time() - self._origin) * 1000 + 0.01)

    def _tick_in(self, seconds: float) -> Tick:
        assert self._loop is not None
        return math.ceil((self._loop.time() - self._origin + seconds) * 1000 - 0.01)

    def _park(self, poll: Poll) -> None:
        """Put it in a bucket until its next poll, which is at its deadline at the latest."""
        pause = poll.next_pause(self._random)
        tick = self._tick_in(pause)
        if pause >= _LONG_PAUSE_S and len(self._polls) > _MANY_POLLS:
            tick = -(-tick // _COARSE_TICKS) * _COARSE_TICKS
        tick = tick if poll.deadline is None else min(tick, poll.deadline)
        poll.next_poll_at = self._time_of(tick)
        self._put(poll, tick)

    def _put(self, poll: Poll, tick: Tick) -> None:
        poll.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
        bucket[poll] = None
        if self._armed is None or tick < self._armed:
            self._arm()

    def _leave_bucket(self, poll: Poll) -> None:
        if poll.tick is None:
            return
        bucket = self._buckets[poll.tick]
        del bucket[poll]
        if not bucket:
            self._forget_bucket(poll.tick)
        poll.tick = None

    def _forget_bucket(self, tick: Tick) -> None:
        del self._buckets[tick]
        if len(self._ticks) > 2 * len(self._buckets) + 64:
            self._ticks = list(self._buckets)
            heapify(self._ticks)
        if tick == self._armed:
            self._disarm()
            self._arm()

    # --- the one timer -------------------------------------------------------------------

    def _arm(self) -> None:
        """Wait for the earliest bucket, or for the next turn when a poll is ready."""
        if self._is_turning or self._loop is None:
            return
        self._disarm()
        if self._ready:
            self._armed = -1
            self._timer = self._loop.call_soon(self._turn)
        elif (tick := self._earliest()) is not None:
            self._armed = tick
            self._timer = self._loop.call_at(self._time_of(tick), self._turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed = None

    def _earliest(self) -> Tick | None:
        while self._ticks and self._ticks[0] not in self._buckets:
            heappop(self._ticks)
        return self._ticks[0] if self._ticks else None

    def _time_of(self, tick: Tick) -> float:
        return self._origin + tick / 1000

    def _turn(self) -> None:
        self._is_turning = True
        try:
            self._collect(self._now())
            self._ask_for_one_slice(perf_counter() + SLICE_S)
            self._threads.hand_over()
        finally:
            self._is_turning = False
            self._arm()

    def _collect(self, now: Tick) -> None:
        while self._ticks and self._ticks[0] <= now:
            for poll in self._buckets.pop(heappop(self._ticks), ()):
                poll.tick = None
                self._due(poll)

    def _due(self, poll: Poll) -> None:
        if poll.asking is not None:
            _expire(poll)
        else:
            self._make_ready(poll, grows=True)

    def _ask_for_one_slice(self, until: float) -> None:
        while self._ready:
            poll = self._ready.popleft()
            poll.is_ready = False
            if not poll.future.done():
                self._ask(poll)
            if perf_counter() >= until:
                return

    # --- waking --------------------------------------------------------------------------

    def _make_ready(self, poll: Poll, *, grows: bool) -> None:
        poll.grows = grows
        poll.is_ready = True
        self._ready.append(poll)
        if self._armed != -1:
            self._arm()

    def _woken(self, poll: Poll) -> None:
        """Its event has been set: poll at once, or once more after the poll under way."""
        if poll.asking is not None:
            poll.is_woken = True
        elif not poll.is_ready:
            self._leave_bucket(poll)
            self._make_ready(poll, grows=False)

    # --- asking --------------------------------------------------------------------------

    def _ask(self, poll: Poll) -> None:
        assert self._loop is not None
        poll.polls += 1
        poll.next_poll_at = None
        if poll.lane == "async":
            self._ask_here(poll)
        else:
            self._begin_question(poll, poll, self._loop.time())
            self._threads.ask(poll)

    def _ask_here(self, poll: Poll) -> None:
        try:
            answer = poll.context.run(truth_of, poll.condition)
        except BaseException as error:
            if not _is_counted(error):
                raise
            self._raised(poll, error)
        else:
            self._answered(poll, answer)

    def _ask_in_task(self, poll: Poll, answer: Awaitable[Any]) -> None:
        assert self._loop is not None
        asked = self._loop.create_task(_awaited(answer), context=poll.context)
        if inspect.iscoroutine(answer):  # it may be cancelled before it has begun
            asked.add_done_callback(lambda _: answer.close())
        if poll.future.done():  # cancelled by its own condition
            asked.cancel()
            return
        self._begin_question(poll, asked, self._loop.time())
        asked.add_done_callback(lambda _: self._task_answered(poll, asked))

    def _begin_question(
        self, poll: Poll, question: asyncio.Future[Any] | FirstCheck | Poll, since: float
    ) -> None:
        poll.asking = question
        poll.asked_at = since
        if poll.deadline is not None:
            self._put(poll, max(poll.deadline, self._now()) + round(LAST_CHECK_S * 1000))

    def _task_answered(self, poll: Poll, asked: asyncio.Future[Any]) -> None:
        self._end_question(poll)
        try:
            answer = truth(asked.result())
        except ExitRequested as error:
            self._raised(poll, error.__cause__ or error)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - counted and logged
            self._raised(poll, error)
        else:
            self._answered(poll, answer)

    def _thread_answered(
        self,
        question: Question,
        answer: bool | Awaitable[Any],  # noqa: FBT001
        error: BaseException | None,
    ) -> None:
        """A thread has the answer; whoever waited for it may be gone."""
        if isinstance(question, FirstCheck):
            question.take_answer(answer, error)
        poll = question.poll if isinstance(question, FirstCheck) else question
        if question.is_over:
            if inspect.iscoroutine(answer):
                answer.close()
        elif poll is not None:
            self._end_question(poll)
            if error is not None:
                self._raised(poll, error)
            else:
                self._answered(poll, answer)

    def _end_question(self, poll: Poll) -> None:
        poll.asking = poll.asked_at = None
        self._leave_bucket(poll)

    # --- answers -------------------------------------------------------------------------

    def _answered(self, poll: Poll, answer: bool | Awaitable[Any]) -> None:  # noqa: FBT001
        if not isinstance(answer, bool):
            self._ask_in_task(poll, answer)
        elif answer:
            _finish(poll)
        else:
            poll.errors = 0
            poll.last_error = None
            self._continue_waiting(poll)

    def _raised(self, poll: Poll, error: BaseException) -> None:
        if poll.future.done():
            return
        poll.errors += 1
        poll.last_error = error_text(error)
        if poll.errors > poll.max_errors:
            _finish(poll, poll.failed(error))
            return
        if _is_told(poll.errors):
            logger.warning(
                "%s raised %s (%d in a row, %d are tolerated)",
                poll.name,
                poll.last_error,
                poll.errors,
                poll.max_errors,
            )
        self._continue_waiting(poll)

    def _continue_waiting(self, poll: Poll) -> None:
        if poll.future.done():  # cancelled by its own condition
            return
        if poll.wake is not None:
            self._wake_events.rearm(poll.wake)
        if poll.deadline is not None and poll.deadline <= self._now():
            _expire(poll)
        elif poll.is_woken:
            poll.is_woken = False
            self._make_ready(poll, grows=False)
        else:
            self._park(poll)


def _mark_late(question: Question) -> None:
    if isinstance(question, FirstCheck):
        question.mark_late()


async def _awaited(answer: Awaitable[Any]) -> Any:
    """A future may belong to somebody else, so it is not cancelled with the poll."""
    try:
        return await (asyncio.shield(answer) if asyncio.isfuture(answer) else answer)
    except BaseException as error:
        if is_exit_request(error):
            raise ExitRequested from error
        raise


def _is_counted(error: BaseException) -> bool:
    """Whether it is an error of the condition, which is counted and logged."""
    return isinstance(error, Exception | asyncio.CancelledError) or is_exit_request(error)


def _finish(poll: Poll, error: Exception | None = None) -> None:
    if poll.future.done():  # cancelled by its own condition
        return
    if error is None:
        poll.future.set_result(None)
    else:
        poll.future.set_exception(error)


def _expire(poll: Poll) -> None:
    """Its time is up, by our clock: whoever knows whether it was moved is asked first, once."""
    if poll.expire is None:
        _finish(poll, poll.timed_out())
    elif not poll.is_expiring:
        poll.is_expiring = True
        poll.expire()


def _is_told(errors: int) -> bool:
    """One that raises for ever must not fill the log: later, only when its errors have doubled."""
    return errors <= TOLD_ERRORS or errors.bit_count() == 1
