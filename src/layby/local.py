"""The client of an engine in the same process: no bytes, no copies, same semantics.

Requests made in one turn of the event loop are submitted together, and the answers of one batch
come back together, so that many coroutines cost each thread one wake-up, not one each.

One settled promise may wake thousands of coroutines. They are woken in portions, no faster than
the engine accepts what they send, so that everything else is still served in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final

from layby.client.claims import releases
from layby.client.interface import PromiseListener, Watching
from layby.core.commands import Command, Take, WatchPromise
from layby.core.model import Millis
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.engine.engine import Engine
from layby.engine.items import Allowance, Answer, Item

Answers = Sequence[tuple[Item, Answer]]

DELIVERED_AT_ONCE: Final = 25
"""How many waiting coroutines are woken in one turn of the loop."""
MAX_BACKLOG: Final = 100
"""How many requests the engine may be behind before more coroutines are woken."""
PAUSE_S: Final = 0.001


class LocalClient:
    """Use it only in the event loop it was created in."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[Item] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._watch_answers: deque[tuple[Item, Answer]] = deque()
        self._sink = self._receive if engine.is_inline else self._receive_from_thread

    async def send(self, request: Command | Query, now: Millis | None = None) -> Reply:
        future = self.ask(request, now)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # It was answered, then cancelled before it could continue.
                self._hand_back(request, future.result())
            raise

    def watch(self, promise_id: str, listener: PromiseListener) -> Watching:
        item = Item(WatchPromise(id=promise_id), self._sink, listener)
        self._post(item)
        return item

    def ask(
        self,
        request: Command | Query,
        now: Millis | None = None,
        caller: Hashable = None,
        allowance: Allowance | None = None,
        is_gone: Callable[[], bool] | None = None,
    ) -> "asyncio.Future[Reply]":
        """Requests keep the order of the calls; `now` sets the time, for debugging and tests.

        `caller`: for whom, if this client serves several; reads of one do not hold up others'.
        Requests that share an `allowance` may be answered with NOT_BEGUN, and so may those of a
        caller that `is_gone` by the time their turn comes.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        item = Item(request, self._sink, future, now, caller, allowance)
        if is_gone is not None:
            item.is_gone = is_gone
        if isinstance(request, Take | WatchPromise | Query):
            future.add_done_callback(partial(_abandon, item))
        self._post(item)
        return future

    async def close(self) -> None:
        """Submits requests that have not been submitted yet."""
        self._submit()
        if self._alarm is not None:
            self._alarm.cancel()

    def _post(self, item: Item) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._submit)
        self._outgoing.append(item)

    def _submit(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self._engine.submit(outgoing)
        if self._engine.is_inline:
            self._pump()

    def _pump(self) -> None:
        """An inline engine has no thread: the loop does its work, now and when a timer is due."""
        self._engine.pump()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(self._engine.patience(), self._pump)

    def _receive_from_thread(self, answers: Answers) -> None:
        try:
            self._loop.call_soon_threadsafe(self._receive, answers)
        except RuntimeError:  # the loop is closed: nobody waits for it
            return

    def _receive(self, answers: Answers) -> None:
        if len(answers) <= DELIVERED_AT_ONCE:
            self._deliver(answers)
            return
        self._deliver([each for each in answers if not _is_watch(each[0])])
        if not self._watch_answers:
            self._loop.call_soon(self._notify_next)
        self._watch_answers.extend(each for each in answers if _is_watch(each[0]))

    def _notify_next(self) -> None:
        """Wake the next portion, or pause while the engine is behind."""
        is_behind = self._engine.backlog > MAX_BACKLOG
        if not is_behind:
            self._deliver(
                [
                    self._watch_answers.popleft()
                    for _ in range(min(DELIVERED_AT_ONCE, len(self._watch_answers)))
                ]
            )
        if self._watch_answers and is_behind:
            self._loop.call_later(PAUSE_S, self._notify_next)
        elif self._watch_answers:
            self._loop.call_soon(self._notify_next)

    def _deliver(self, answers: Answers) -> None:
        """To bodies that wait first: whoever has settled a promise is in no such hurry."""
        others: list[tuple[Item, Answer]] = []
        for item, answer in answers:
            if isinstance(item.token, PromiseListener):
                item.token.heard(answer)
            else:
                others.append((item, answer))
        for item, answer in others:
            future: asyncio.Future[Reply] = item.token
            if future.done():
                self._hand_back(item.request, answer)
            elif isinstance(answer, Reply):
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def _hand_back(self, request: Command | Query, answer: Answer) -> None:
        """The caller was cancelled: release the tasks claimed for it."""
        for release in releases(request, answer):
            self._post(Item(release, _ignore, None))


def _abandon(item: Item, future: "asyncio.Future[Reply]") -> None:
    """Nobody waits for the answer any more: drop a request that only waits."""
    if future.cancelled():
        item.is_abandoned = True


def _is_watch(item: Item) -> bool:
    return isinstance(item.request, WatchPromise)


def _ignore(_: Answers) -> None:
    """If a release is refused, it was not needed."""
