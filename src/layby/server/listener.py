"""Accepts connections and speaks HTTP on them: uvicorn's protocol, bounded in time and size.

We keep the accept loop ourselves, so that it can live inside a Runner's event loop, on a socket
of any sort, and stop in the moment it is told to.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE_S: Final = 75
MAX_HEAD_BYTES: Final = 65_536
USER_TIMEOUT_MS: Final = 30_000
"""How long the kernel waits for a vanished peer to confirm what was sent to it."""


class Limits(Struct, frozen=True):
    read_timeout: float = 30.0
    """Seconds a request may take to arrive whole, from its first byte (or the connection's)."""
    max_connections: int = 20_000


class Listener:
    def __init__(self, app: Any, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._config = Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            limit_concurrency=self._limits.max_connections,
        )
        self._config.load()

    async def listen(self, host: str, port: int) -> int:
        """The port listened on: the one asked for, or any free one for 0."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._protocol, host, port, backlog=2048)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def listen_on_path(self, path: Path) -> None:
        """A socket in the file system that only this user can open, from its first moment."""
        listening = _private_socket(path)
        loop = asyncio.get_running_loop()
        try:
            self._servers.append(await loop.create_unix_server(self._protocol, sock=listening))
        except BaseException:
            listening.close()
            raise

    async def close(self, grace: float) -> None:
        """Accept nothing more; requests under way get `grace` seconds to be answered."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if tasks := list(self._state.tasks):
            await asyncio.wait(tasks, timeout=grace)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.close()

    def _protocol(self) -> "BoundedProtocol":
        return BoundedProtocol(self._config, self._state, self._limits.read_timeout)


class BoundedProtocol(HttpToolsProtocol):
    """Gives up on peers that dawdle: a request must arrive in time, and its head be short."""

    def __init__(self, config: Config, state: ServerState, read_timeout: float) -> None:
        super().__init__(config, state, {})
        self._read_timeout = read_timeout
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        _watch_peer(transport.get_extra_info("socket"))
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._expect_request()  # the first bytes of another request
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and self._is_in_head:
            self.send_400_response("Request head too large")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()
        self.scope.setdefault("state", {})["transport"] = self.transport

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def _expect_request(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        self._deadline = self.loop.call_later(self._read_timeout, self._give_up)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self.transport.abort()


def _private_socket(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # of an owner that is no more
    try:
        with suppress(OSError):
            os.fchmod(listening.fileno(), 0o600)  # Linux takes it over when it binds
        listening.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        listening.close()
        raise
    return listening


def _watch_peer(connection: socket.socket | None) -> None:
    """Let the kernel notice a peer that vanished without a word."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    options: Iterable[tuple[int, str, int]] = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    )
    for level, name, value in options:
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(level, option, value)
