"""What a host that users name may make the event loop read."""

import asyncio

import pytest

from layby.client import outbound_session
from tests.helpers.push_receivers import on_loop

READ_AT_ONCE = 256 * 1024
"""By an event loop."""


class Open(asyncio.Transport):
    """A connection until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


def connected() -> outbound_session._BoundedResponseHandler:
    """A handler whose request has been sent."""
    handler = outbound_session._BoundedResponseHandler(loop=asyncio.get_running_loop())
    handler.connection_made(Open())
    handler.set_response_params()
    return handler


@on_loop
async def test_of_endless_interim_responses_a_few_are_read() -> None:
    """Of thousands that come at once, too: each costs the loop some of its time."""
    handler = connected()
    one = b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n"
    handler.data_received(one * (READ_AT_ONCE // len(one)))
    assert handler.transport is None or handler.transport.is_closing()
    assert len(handler) <= outbound_session._MAX_INTERIM + outbound_session._PIECE_BYTES // len(one)


@on_loop
async def test_nothing_is_read_behind_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    parent = outbound_session.ResponseHandler
    receive = parent.data_received

    def count(handler: outbound_session.ResponseHandler, data: bytes) -> None:
        read.append(len(data))
        receive(handler, data)

    monkeypatch.setattr(parent, "data_received", count)
    handler = connected()
    handler.data_received(b"HTTP/1.1 200 OK\r\nA: " + b"x" * READ_AT_ONCE)
    assert sum(read) < READ_AT_ONCE // 8


@on_loop
async def test_an_answer_is_read_whole_however_it_comes() -> None:
    handler = connected()
    body = b"y" * 3 * outbound_session._PIECE_BYTES
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    handler.data_received(head + body)
    message, content = await handler.read()
    assert message.code == 200
    assert await content.read() == body
    assert handler.transport is not None
    assert not handler.transport.is_closing()
