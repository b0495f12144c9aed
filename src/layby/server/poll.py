"""Streams of messages to workers: server-sent events, one connection each."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from layby.engine.outbox import Outgoing
from layby.server.routing import Router
from layby.wire.encode import encode_message

Write = Callable[[bytes], Awaitable[None]]
PING = b": ping\n\n"


class PollConnection:
    """A `Receiver` whose messages leave in order; a slow reader fills it and gets no more."""

    def __init__(self, group: str, receiver_id: str, router: Router, url: str, buffer: int) -> None:
        self.group = group
        self.id = receiver_id
        self._router = router
        self._url = url
        self._buffer = buffer
        self._queue: deque[Outgoing] = deque()
        self._rung = asyncio.Event()
        self._was_full = False
        self.is_closed = False

    @property
    def has_room(self) -> bool:
        is_full = len(self._queue) >= self._buffer
        self._was_full = self._was_full or is_full
        return not is_full and not self.is_closed

    def receive(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self._rung.set()

    def close(self) -> None:
        """The peer has hung up, or the server stops."""
        if not self.is_closed:
            self.is_closed = True
            self._router.disconnect(self)
            self._rung.set()

    async def stream(self, write: Write, ping_every: float, patience: float) -> None:
        """Write until closed. A reader that takes nothing for `patience` seconds is given up."""
        self._router.connect(self)
        try:
            while not self.is_closed:
                await self._next(ping_every)
                async with asyncio.timeout(patience):
                    await self._write(write)
        except (TimeoutError, ConnectionError):
            return
        finally:
            self.close()

    async def _next(self, ping_every: float) -> None:
        try:
            async with asyncio.timeout(ping_every):
                await self._rung.wait()
        except TimeoutError:
            return
        self._rung.clear()

    async def _write(self, write: Write) -> None:
        leaving = [each for each in self._queue if self._router.is_current(each, self)]
        self._queue.clear()
        await write(b"".join(map(self._event, leaving)) or PING)
        self._router.arrived(leaving)
        if self._was_full and not self.is_closed:
            self._was_full = False
            self._router.made_room(self)

    def _event(self, outgoing: Outgoing) -> bytes:
        return b"data: %b\n\n" % encode_message(outgoing.message, outgoing.promise, self._url)
