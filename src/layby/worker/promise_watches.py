"""Waits of bodies for promises: each is a bare future, without a task or a coroutine.

Deadlines are in store time. One timer of the loop serves them all; it also fires now and then when
none is near, since store time may have been set forward meanwhile. At its deadline a watch asks
whether that was moved, and once more for the promise: if that was settled by then, it has not timed
out, however late we are told.
"""

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from layby.client.interface import PromiseListener, Watching, WatchingClient
from layby.client.patience import PAUSES, known, send_until_answered, tell_outage
from layby.core.commands import GetPromise
from layby.core.model import Millis, Promise
from layby.core.replies import PromiseData, Reply
from layby.errors import DeferTimeout, StoreError

MAX_PAUSE_MS: Final[Millis] = 30_000
"""The longest pause between two looks at the time, while somebody waits with a deadline."""

Spawn = Callable[[Coroutine[Any, Any, Any]], Any]


class PromiseWatch(asyncio.Future[Reply], PromiseListener):
    """Its result is the reply with the settled promise. Cancelling it ends the watch."""

    __slots__ = ("asked", "owner", "promise_id")

    def __init__(self, owner: "PromiseWatches", promise_id: str) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.owner = owner
        self.promise_id = promise_id
        self.asked: Watching | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            self.stop()
        return super().cancel(msg)

    def heard(self, answer: Reply | BaseException) -> None:
        self.asked = None
        if not self.done():
            self.owner.heard(self, answer)

    def deliver(self, reply: Reply) -> None:
        self.stop()
        self.set_result(reply)

    async def ask_again(self) -> None:
        """Read the promise now; if it has settled, this watch is done."""
        await self.owner.look_again(self)

    def stop(self) -> None:
        """The answer is not needed any more."""
        if self.asked is not None:
            self.asked.cancel()


class TimedPromiseWatch(PromiseWatch):
    """The same with a deadline in store time; then it raises `DeferTimeout`."""

    __slots__ = ("deadline", "is_asking", "is_over", "number", "timeout", "until")

    def __init__(
        self,
        owner: "PromiseWatches",
        promise_id: str,
        until: "WatchDeadline",
        timeout: Callable[[], str],
    ) -> None:
        super().__init__(owner, promise_id)
        self.until = until
        self.deadline = until.deadline
        self.timeout = timeout
        self.number = 0
        self.is_asking = False
        """Whether its deadline is being asked for."""
        self.is_over = False
        """Whether that has passed for good."""

    def deliver(self, reply: Reply) -> None:
        data = reply.data
        if not isinstance(data, PromiseData) or not is_late(data.promise, self.deadline):
            super().deliver(reply)
        elif self.is_over:
            self.time_out()
        else:
            self.owner.expire(self)

    def time_out(self) -> None:
        self.stop()
        self.set_exception(DeferTimeout(self.timeout()))

    def stop(self) -> None:
        super().stop()
        self.owner.forget(self)
        self.until.ended()


class DeadlineWatch(asyncio.Future[None]):
    """A deadline in store time and nothing else: done when it has passed.

    `on_moved` is called when it has moved after it seemed to have passed.
    """

    __slots__ = ("deadline", "number", "on_moved", "owner", "until")

    def __init__(self, owner: "PromiseWatches", until: "WatchDeadline") -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.owner = owner
        self.until = until
        self.deadline = until.deadline
        self.number = 0
        self.on_moved: Callable[[], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            self.owner.forget(self)
            self.until.ended()
        return super().cancel(msg)


class WatchDeadline(Protocol):
    """The deadline of a wait; `ended` is called when the wait is over."""

    deadline: Millis
    record_id: str

    def ended(self) -> None: ...

    async def later(self, at: Millis, /) -> Millis | None: ...


def is_late(promise: Promise, deadline: Millis | None) -> bool:
    """Whether it was settled after the deadline; at the deadline is in time."""
    return deadline is not None and promise.settled_at is not None and promise.settled_at > deadline


class PromiseWatches:
    """All watches of one worker. Belongs to the loop of the first one."""

    def __init__(self, client: WatchingClient, now: Callable[[], Millis], spawn: Spawn) -> None:
        self._client = client
        self._now = now
        self._spawn = spawn
        self._timed: dict[int, TimedPromiseWatch | DeadlineWatch] = {}
        self._deadlines: list[tuple[Millis, int]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: Millis = 0
        self._to_retry: list[PromiseWatch] = []
        self._pauses = iter(PAUSES)

    def watch(self, promise_id: str) -> PromiseWatch:
        return self._start(PromiseWatch(self, promise_id))

    def watch_until(
        self, promise_id: str, until: WatchDeadline, timeout: Callable[[], str]
    ) -> TimedPromiseWatch:
        """`timeout` gives the message of the error: by then its deadline may have been moved."""
        watch = TimedPromiseWatch(self, promise_id, until, timeout)
        self._start(watch)
        self.move(watch, until.deadline)
        return watch

    def watch_deadline(self, until: WatchDeadline) -> DeadlineWatch:
        watch = DeadlineWatch(self, until)
        self.move(watch, until.deadline)
        return watch

    def move(self, watch: TimedPromiseWatch | DeadlineWatch, deadline: Millis) -> None:
        """The store has fixed its deadline."""
        if watch.done():
            return
        self.forget(watch)
        self._number += 1
        watch.number, watch.deadline = self._number, deadline
        self._timed[watch.number] = watch
        heappush(self._deadlines, (deadline, watch.number))
        if self._timer is None or deadline < self._armed_for:
            self._arm()

    def move_by_hand(self, record_id: str, deadline: Millis) -> None:
        """A person has moved the deadline of the wait that is recorded so: people are rare, so it
        is looked for among all of them.
        """
        for watch in list(self._timed.values()):
            if watch.until.record_id == record_id:
                self._put_off(watch, deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- asking --------------------------------------------------------------------------

    def _start(self, watch: PromiseWatch) -> PromiseWatch:
        watch.asked = self._client.watch(watch.promise_id, watch)
        return watch

    def heard(self, watch: PromiseWatch, answer: Reply | BaseException) -> None:
        try:
            reply = known(answer) if isinstance(answer, Reply) else None
        except StoreError as failure:
            reply, answer = None, failure
        if reply is not None:
            self._pauses = iter(PAUSES)
            watch.deliver(reply)
        elif isinstance(answer, StoreError):
            self._retry_later(watch, answer)
        elif isinstance(answer, BaseException):
            watch.stop()
            watch.set_exception(answer)

    def _retry_later(self, watch: PromiseWatch, failure: StoreError) -> None:
        """Ask again after a pause, together with all others that were lost."""
        if not self._to_retry:
            tell_outage(failure)
            asyncio.get_running_loop().call_later(next(self._pauses), self._ask_again)
        self._to_retry.append(watch)

    def _ask_again(self) -> None:
        lost, self._to_retry = self._to_retry, []
        for watch in lost:
            if not watch.done():
                self._start(watch)

    # --- timeouts ------------------------------------------------------------------------

    def forget(self, watch: TimedPromiseWatch | DeadlineWatch) -> None:
        self._timed.pop(watch.number, None)
        if len(self._deadlines) > 2 * len(self._timed) + 64:
            self._deadlines = [each for each in self._deadlines if each[1] in self._timed]
            heapify(self._deadlines)

    def _arm(self) -> None:
        self.close()
        while self._deadlines and self._deadlines[0][1] not in self._timed:
            heappop(self._deadlines)
        if not self._deadlines:
            return
        self._armed_for = self._deadlines[0][0]
        pause_ms = min(max(1, self._armed_for - self._now()), MAX_PAUSE_MS)
        self._timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._now()
        while self._deadlines and self._deadlines[0][0] <= now:
            watch = self._timed.pop(heappop(self._deadlines)[1], None)
            if isinstance(watch, DeadlineWatch):
                self._spawn(self._end_or_move(watch))
            elif watch is not None:
                self.expire(watch)
        self._arm()

    async def _end_or_move(self, watch: DeadlineWatch) -> None:
        moved_to = await watch.until.later(watch.deadline)
        if watch.done():
            return
        if moved_to is None:
            watch.set_result(None)
            return
        self._put_off(watch, moved_to)
        if watch.on_moved is not None:
            watch.on_moved()

    def expire(self, watch: TimedPromiseWatch) -> None:
        """Its time is up, or its promise was settled after that, unless the deadline was moved."""
        if not watch.is_asking:
            watch.is_asking = True
            self._spawn(self._time_out_or_move(watch))

    async def _time_out_or_move(self, watch: TimedPromiseWatch) -> None:
        moved_to = await watch.until.later(watch.deadline)
        watch.is_asking, watch.is_over = False, moved_to is None
        if moved_to is not None:
            self._put_off(watch, moved_to)
        await self.look_again(watch)
        if watch.is_over and not watch.done():
            watch.time_out()

    def _put_off(self, watch: TimedPromiseWatch | DeadlineWatch, deadline: Millis) -> None:
        watch.until.deadline = deadline
        self.move(watch, deadline)

    async def look_again(self, watch: PromiseWatch) -> None:
        """The message that it is settled may be on its way. Only the store can say that it is not:
        while it does not answer, the wait goes on.
        """
        reply = await send_until_answered(self._client, GetPromise(id=watch.promise_id))
        if not watch.done() and not _is_pending(reply):
            watch.deliver(reply)


def _is_pending(reply: Reply) -> bool:
    return not isinstance(reply.data, PromiseData) or reply.data.promise.is_pending
