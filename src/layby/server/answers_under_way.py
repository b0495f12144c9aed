"""Sends answers in pieces, as fast as their readers take them, and bounds what waits to be read.

Of one answer a piece or two are in the connection's buffer; the rest waits here. All that waits
here together has a bound, which readers that do not read could reach. Then the one that has taken
nothing for the longest time is disconnected: those that read lose nothing.
"""

import asyncio
import logging
import socket
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from layby.rate_limited_log import RateLimitedLog
from layby.server.turns import PacedTurns
from layby.wire.large_texts import Encoded, exact_size_of, pieces_of, size_of

logger = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = b"application/json"
PIECE_BYTES: Final = 65_536
ROOM: Final = 256 * 2**20
"""How many bytes of answers may wait for all readers together."""


class Parts(Protocol):
    """An answer that is made as it is read."""

    @property
    def is_done(self) -> bool:
        """Whether that was the last part."""
        ...

    async def next(self) -> Encoded | None:
        """The next part; None if the reader is gone."""
        ...


class AnswersUnderWay:
    """Use it in one event loop."""

    def __init__(self, loop_turns: PacedTurns | None = None, room: int = ROOM) -> None:
        self._room = room
        self._held: OrderedDict[asyncio.Transport, int] = OrderedDict()
        """By when something of it was taken last."""
        self._loop_turns = loop_turns or PacedTurns()
        self._log = RateLimitedLog("readers are disconnected", logger)

    async def send(
        self, send: Send, transport: asyncio.Transport, status: int, body: Encoded
    ) -> None:
        size = exact_size_of(body)
        await send(start(status, *([] if size is None else [(b"content-length", b"%d" % size)])))
        await self._send_pieces(send, transport, body, more=False)

    async def send_parts(
        self, send: Send, transport: asyncio.Transport, status: int, parts: Parts
    ) -> None:
        """One by one: the next is not made before this one has been sent."""
        part = await parts.next()
        if part is not None and parts.is_done:
            await self.send(send, transport, status, part)
            return
        if part is not None:
            await send(start(status))
        while part is not None:
            await self._send_pieces(send, transport, part, more=not parts.is_done)
            part = None if parts.is_done else await parts.next()

    async def _send_pieces(
        self, send: Send, transport: asyncio.Transport, body: Encoded, *, more: bool
    ) -> None:
        if isinstance(body, bytes) and len(body) <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": body, "more_body": more})
            return
        with self._holding(transport, size_of(body)):
            pieces = pieces_of(body, PIECE_BYTES)
            piece = next(pieces, None)
            while piece is not None:
                async with self._loop_turns.turn(transport):
                    following = next(pieces, None)
                has_more = more or following is not None
                await send({"type": "http.response.body", "body": piece, "more_body": has_more})
                self._note_progress(transport)
                if transport.is_closing():
                    return
                piece = following

    @contextmanager
    def _holding(self, transport: asyncio.Transport, size: int) -> Generator[None]:
        self._held[transport] = size
        self._room -= size
        while self._room < 0 and len(self._held) > 1:
            self._give_up(next(iter(self._held)))
        try:
            yield
        finally:
            self._room += self._held.pop(transport, 0)

    def _note_progress(self, transport: asyncio.Transport) -> None:
        if transport in self._held:
            self._held.move_to_end(transport)

    def _give_up(self, transport: asyncio.Transport) -> None:
        self._log.tell("too much waits for readers, and these have been silent for longest")
        self._room += self._held.pop(transport)
        hang_up(transport)


def start(
    status: int, *headers: tuple[bytes, bytes], content_type: bytes = JSON
) -> MutableMapping[str, Any]:
    told = ((b"content-type", content_type), *headers)
    return {"type": "http.response.start", "status": status, "headers": told}


def hang_up(transport: asyncio.Transport) -> None:
    """Abort: closing would wait for a reader that does not read, here and in the kernel."""
    set_option(transport, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def set_option(transport: asyncio.Transport, option: int, value: int | bytes) -> None:
    with suppress(OSError, ValueError):  # the connection is gone, so it does not matter
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)
