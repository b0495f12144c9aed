"""Streams of messages to workers: server-sent events, one connection per worker."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from layby.delivery.routing import Router
from layby.engine.outbox import Outgoing
from layby.wire.encode import encode_message

Write = Callable[[bytes], Awaitable[None]]
PING: Final = b": ping\n\n"
PIECE_BYTES: Final = 65_536
"""About how much is written at once: the rest waits here, not in a slow reader's socket."""
MAX_CHARS: Final = 8 * 2**20
"""A connection queues no more than this, however few messages that is."""
ROOM_CHARS: Final = 128 * 2**20
"""All of them together queue no more than this, apart from the little each may have anyway."""
LITTLE_CHARS: Final = 16_384


class StreamRoom:
    """What may wait in all streams together; those that read are not affected by others."""

    def __init__(self, chars: int = ROOM_CHARS) -> None:
        self.left = chars


class PollConnection:
    """A `Receiver` that sends in order; while a slow reader keeps it full, it gets no more."""

    def __init__(
        self,
        group: str,
        receiver_id: str,
        router: Router,
        url: str,
        buffer: int,
        room: StreamRoom | None = None,
    ) -> None:
        self.group = group
        self.id = receiver_id
        self._router = router
        self._url = url
        self._buffer = buffer
        self._queue: deque[Outgoing] = deque()
        self._room = room or StreamRoom()
        self._chars = 0
        """In the queue, or about to be written."""
        self._rung = asyncio.Event()
        self._writing: asyncio.Timeout | None = None
        self._was_full = False
        self.is_closed = False

    @property
    def has_room(self) -> bool:
        allowed = MAX_CHARS if self._room.left > 0 else LITTLE_CHARS
        is_full = len(self._queue) >= self._buffer or self._chars >= allowed
        self._was_full = self._was_full or is_full
        return not is_full and not self.is_closed

    def receive(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self._count(_size(outgoing))
        self._rung.set()

    def close(self) -> None:
        """The peer has disconnected, or the server stops."""
        if not self.is_closed:
            self.is_closed = True
            self._router.disconnect(self)
            self._count(-self._chars)
            self._rung.set()
            if self._writing is not None and not self._writing.expired():
                self._writing.reschedule(0)  # end the write that is waiting

    async def stream(self, write: Write, ping_every: float, patience: float) -> bool:
        """Write until closed.

        False if the reader is gone, or read nothing for `patience` seconds.
        """
        self._router.connect(self)
        try:
            while not self.is_closed:
                await self._next(ping_every)
                await self._tell(write, patience)
        except (TimeoutError, ConnectionError):
            return False
        finally:
            self.close()
        return True

    async def _next(self, ping_every: float) -> None:
        try:
            async with asyncio.timeout(ping_every):
                await self._rung.wait()
        except TimeoutError:
            return
        self._rung.clear()

    async def _tell(self, write: Write, patience: float) -> None:
        queued = list(self._queue)
        leaving = [each for each in queued if self._router.is_current(each, self)]
        self._queue.clear()
        self._count(sum(map(_size, leaving)) - sum(map(_size, queued)))
        if not leaving and not self.is_closed:
            await self._write(write, PING, patience)
        for piece in _pieces(leaving):
            await self._write(write, b"".join(map(self._event, piece)), patience)
            self._count(-sum(map(_size, piece)))
            self._router.arrived(piece)
        if self._was_full and not self.is_closed:
            self._was_full = False
            self._router.made_room(self)

    def _count(self, chars: int) -> None:
        """So many more, or fewer, wait here; nothing once it is closed."""
        before, self._chars = self._chars, 0 if self.is_closed else self._chars + chars
        self._room.left += before - self._chars

    async def _write(self, write: Write, chunk: bytes, patience: float) -> None:
        try:
            async with asyncio.timeout(patience) as self._writing:
                await write(chunk)
        finally:
            self._writing = None

    def _event(self, outgoing: Outgoing) -> bytes:
        text = encode_message(outgoing.message, outgoing.promise, self._url)
        return b"data: %b\n\n" % (text if text.isascii() else _escaped(text))


def _escaped(text: bytes) -> bytes:
    """Some SDKs drop a chunk that ends inside a character, or split lines at U+2028."""
    return json.dumps(json.loads(text), separators=(",", ":")).encode()


def _pieces(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Groups small messages together."""
    piece: list[Outgoing] = []
    size = 0
    for each in messages:
        piece.append(each)
        size += _size(each)
        if size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _size(outgoing: Outgoing) -> int:
    """Its approximate size in characters."""
    promise = outgoing.promise
    texts = () if promise is None else (promise.param, promise.value, promise.tags)
    return 300 + sum(map(len, texts))
