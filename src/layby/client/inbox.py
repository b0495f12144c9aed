"""What the server tells this process over one stream: settled promises and lost tasks.

There is one listener per promise and process, shared by everything here that waits for it.
Listeners are registered again whenever the stream is reopened, and regularly in between, so that
nothing that happened while the stream was down is missed.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
)
from itertools import islice
from typing import Any, Final

from layby.client.interface import PromiseListener
from layby.client.stream import listen
from layby.client.transport import Transport
from layby.core.address import OWN_GROUP, inbox_of
from layby.core.commands import Command, RegisterListener
from layby.core.model import Promise
from layby.core.queries import Query
from layby.core.replies import PromiseData, Reply, ok
from layby.errors import EngineStopped, LaybyError
from layby.wire.records import MessageRecord

logger = logging.getLogger(__name__)

Send = Callable[[Command | Query], Awaitable[Reply]]
Lost = Callable[[str, int], None]
Told = Callable[[Promise], None]

RENEW_EVERY_S: Final = 60.0
RENEWED_AT_ONCE: Final = 250
"""Listeners that are registered again at a time."""
NOTIFIED_AT_ONCE: Final = 25
"""Waiting coroutines that are woken in one turn of the loop."""


class InboxWatch:
    """Something in this process waits for a promise."""

    __slots__ = ("_inbox", "listener", "promise_id")

    def __init__(self, inbox: "Inbox", promise_id: str, listener: PromiseListener) -> None:
        self._inbox = inbox
        self.promise_id = promise_id
        self.listener = listener

    def cancel(self) -> None:
        self._inbox.drop_watch(self)


class _FutureListener(PromiseListener):
    """For a coroutine that waits for a promise."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[Reply]") -> None:
        self.future = future

    def heard(self, answer: Reply | BaseException) -> None:
        if self.future.done():
            return
        if isinstance(answer, Reply):
            self.future.set_result(answer)
        else:
            self.future.set_exception(answer)


class Inbox:
    """`register` makes this process known to the server and returns its incarnation."""

    def __init__(
        self,
        transport: Transport,
        send: Send,
        group: str,
        pid: str,
        register: Callable[[], Awaitable[str]],
        lost: Lost,
        told: Told,
    ) -> None:
        """`told`: of a promise that nobody here waits for, but this process has to know about."""
        self._transport = transport
        self._send = send
        self._group = f"{OWN_GROUP}{group}"
        self._pid = pid
        self._address = inbox_of(group, pid)
        self._register = register
        self._lost = lost
        self._told = told
        self._watches: dict[str, InboxWatch | dict[InboxWatch, None]] = {}
        """A dict only where several wait for the same promise, which is rare."""
        self._listening: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.is_open = asyncio.Event()
        self.is_down = asyncio.Event()

    def start(self) -> None:
        self._listening = self._spawn(listen(self._events, self._hear, self._opened, self._closed))
        self._spawn(self._renew_regularly())

    def reopen(self) -> None:
        """The process has a new incarnation, so the server has forgotten its listeners."""
        if self._listening is not None and not self._is_closed:
            self._listening.cancel()
            self._closed()
            self._listening = self._spawn(
                listen(self._events, self._hear, self._opened, self._closed)
            )

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for promise_id in list(self._watches):
            self._notify(promise_id, _stopped())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- waiting for promises ------------------------------------------------------------

    async def watch(self, promise_id: str) -> Reply:
        """Returns when the promise is settled: at once if it already is, or on a refusal."""
        if self._is_closed:
            raise _stopped()
        listener = _FutureListener(asyncio.get_running_loop().create_future())
        watch = self.listen_for(promise_id, listener)
        try:
            return await listener.future
        finally:
            watch.cancel()

    def listen_for(self, promise_id: str, listener: PromiseListener) -> "InboxWatch":
        watch = InboxWatch(self, promise_id, listener)
        if self._is_closed:
            asyncio.get_running_loop().call_soon(listener.heard, _stopped())
            return watch
        watches = self._watches.get(promise_id)
        if watches is None:
            self._watches[promise_id] = watch
            self._spawn(self._register_listener(promise_id))
        elif isinstance(watches, InboxWatch):
            self._watches[promise_id] = {watches: None, watch: None}
        else:
            watches[watch] = None
        return watch

    def drop_watch(self, watch: "InboxWatch") -> None:
        watches = self._watches.get(watch.promise_id)
        if isinstance(watches, dict):
            watches.pop(watch, None)
        if not watches or watches is watch:
            self._watches.pop(watch.promise_id, None)

    async def _renew(self) -> None:
        """Register every listener again, in portions, so that other requests get through."""
        promise_ids = list(self._watches)
        for first in range(0, len(promise_ids), RENEWED_AT_ONCE):
            portion = promise_ids[first : first + RENEWED_AT_ONCE]
            await asyncio.gather(*map(self._register_listener, portion))

    async def _register_listener(self, promise_id: str) -> None:
        if promise_id not in self._watches:
            return
        try:
            reply = await self._send(RegisterListener(awaited=promise_id, address=self._address))
        except EngineStopped:
            return
        except LaybyError as failure:  # tried again when the stream is reopened
            logger.warning("promise %s is not watched yet: %s", promise_id, failure)
            return
        if reply.status == 401:  # like an outage: the server may accept the token again
            logger.warning("promise %s is not watched yet: %s", promise_id, reply.data)
        elif not isinstance(reply.data, PromiseData) or not reply.data.promise.is_pending:
            self._notify(promise_id, reply)

    def _notify(self, promise_id: str, reply: Reply | BaseException) -> None:
        watches = self._watches.pop(promise_id, {})
        self._notify_next(iter([watches] if isinstance(watches, InboxWatch) else watches), reply)

    def _notify_next(self, watches: "Iterator[InboxWatch]", reply: Reply | BaseException) -> None:
        """In portions, so that everything else is served in between."""
        portion = list(islice(watches, NOTIFIED_AT_ONCE))
        for watch in portion:
            watch.listener.heard(reply)
        if len(portion) == NOTIFIED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._notify_next, watches, reply)

    # --- the stream ----------------------------------------------------------------------

    async def _events(self) -> AsyncGenerator[bytes]:
        incarnation = await self._register()
        async for event in self._transport.events(self._group, self._pid, incarnation):
            yield event

    def _closed(self) -> None:
        self.is_open.clear()
        self.is_down.set()
        if self._renewing is not None:
            self._renewing.cancel()

    def _opened(self) -> None:
        self.is_open.set()
        self.is_down.clear()
        self._renewing = self._spawn(self._renew())

    async def _renew_regularly(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self._renew()

    def _hear(self, message: MessageRecord) -> None:
        if message.data.promise is not None:
            promise = message.data.promise.row()
            if promise.id not in self._watches:
                self._told(promise)
            self._notify(promise.id, ok(PromiseData(promise)))
        elif message.kind == "lost" and message.data.task is not None:
            self._lost(message.data.task.id, message.data.task.version)


def _stopped() -> EngineStopped:
    return EngineStopped("the connection to the server has been closed")
