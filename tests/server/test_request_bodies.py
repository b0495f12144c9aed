"""Bodies of requests: what is read, what is refused, and how much of all may wait to be whole."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from layby.core.replies import Reply
from layby.server.request_bodies import ENDED_EARLY, TOO_MUCH_AT_ONCE, BodyReader

LIMIT, ROOM = 10, 100
GONE = {"type": "http.disconnect"}


class Sender:
    """Sends its pieces, then waits with the rest until it is told to go on."""

    def __init__(
        self, *pieces: bytes, goes_on: bool = False, headers: dict[str, str] | None = None
    ) -> None:
        named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: dict[str, Any] = {"headers": named, "http_version": "1.1"}
        self.goes_on = asyncio.Event()
        self.is_waiting = asyncio.Event()
        self._is_whole = not goes_on
        self._pieces = self._messages(*pieces)

    async def receive(self) -> Any:
        message = next(self._pieces, None)
        if message is None:
            self.is_waiting.set()
            await self.goes_on.wait()
            return GONE
        return message

    def _messages(self, *pieces: bytes) -> Iterator[Any]:
        for number, piece in enumerate(pieces, 1):
            is_last = self._is_whole and number == len(pieces)
            yield {"type": "http.request", "body": piece, "more_body": not is_last}


def read(reader: BodyReader, sender: Sender) -> "asyncio.Task[bytes | Reply]":
    return asyncio.ensure_future(reader.read(sender.scope, sender.receive))


@pytest.mark.parametrize("pieces", [(b"",), (b"x" * LIMIT,), (b"x" * 4, b"y" * 6), (b"x", b"")])
def test_a_body_is_read_whole(pieces: tuple[bytes, ...]) -> None:
    async def scene() -> None:
        assert await read(BodyReader(LIMIT), Sender(*pieces)) == b"".join(pieces)

    asyncio.run(scene())


@pytest.mark.parametrize("headers", [{}, {"connection": "close"}, {"expect": "100-continue"}])
@pytest.mark.parametrize("pieces", [(b"x" * 11,), (b"x" * 10, b"y"), (b"x" * 20, b"y" * 3)])
def test_one_that_is_too_large_is_not(pieces: tuple[bytes, ...], headers: dict[str, str]) -> None:
    async def scene() -> None:
        reader = BodyReader(LIMIT, setting="server.max_body")
        refused = await read(reader, Sender(*pieces, headers=headers))
        assert isinstance(refused, Reply)
        assert refused.status == 413
        assert refused.data == (
            "Request body is larger than 10 bytes: store large values elsewhere and pass their "
            "address, or raise server.max_body"
        )

    asyncio.run(scene())


def test_beginnings_have_only_so_much_room_together() -> None:
    """Whoever goes, or is done, makes room; what comes whole needs none."""

    async def scene() -> None:
        reader = BodyReader(LIMIT, ROOM)
        slow = [Sender(b"x" * 9, goes_on=True) for _ in range(11)]
        waiting = [read(reader, each) for each in slow]
        for each in slow:
            await each.is_waiting.wait()
        assert await read(reader, Sender(b"x", b"y")) == b"xy"
        assert await read(reader, Sender(b"x" * 9, goes_on=True)) is TOO_MUCH_AT_ONCE
        closing = {"connection": "close"}
        assert await read(reader, Sender(b"x" * 9, b"y", headers=closing)) is TOO_MUCH_AT_ONCE
        assert await read(reader, Sender(b"x" * LIMIT)) == b"x" * LIMIT
        for each in slow:
            each.goes_on.set()
        assert await asyncio.gather(*waiting) == [ENDED_EARLY] * 11
        assert reader._room == ROOM

    asyncio.run(scene())


def test_a_sender_that_is_given_up_makes_room() -> None:
    async def scene() -> None:
        reader = BodyReader(LIMIT, ROOM)
        slow = Sender(b"x" * 9, goes_on=True)
        waiting = read(reader, slow)
        await slow.is_waiting.wait()
        assert reader._room == ROOM - 9
        waiting.cancel()
        await asyncio.wait([waiting])
        assert reader._room == ROOM

    asyncio.run(scene())
