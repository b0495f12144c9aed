"""Accepts connections and speaks HTTP on them: uvicorn's protocol, bounded in time and size.

The accept loop is our own, so that it can run inside a Runner's event loop, on any kind of
socket, and stop at once.
"""

import asyncio
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from layby.core.replies import refuse
from layby.server.answers_under_way import hang_up
from layby.server.request_handler import SHUTTING_DOWN
from layby.wire.encode import encode

logger = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 75
MAX_HEAD_BYTES: Final = 65_536
HEAD_TOO_LARGE: Final = f"The headers take more than {MAX_HEAD_BYTES} bytes"
MAX_UNANSWERED: Final = 100
"""Requests one connection may have without an answer: each costs more memory than its bytes."""
TOO_MANY_UNANSWERED: Final = f"More than {MAX_UNANSWERED} requests before their answers"
USER_TIMEOUT_MS: Final = 30_000
"""How long the kernel waits for a vanished peer to acknowledge data."""
UNSENT_BYTES: Final = 262_144
"""How much the kernel may keep for one reader: it would keep megabytes, and tell us nothing."""
TURNS_TO_CONNECT: Final = 3
"""Of the event loop: after so many, it has told us of a connection that it has accepted."""
RESERVED_FILES: Final = 100
"""For the store, pushes, logs, and connections that are refused with 503."""
_UPGRADE_HEADERS: Final = (b"connection", b"upgrade", b"http2-settings")


class Limits(Struct, frozen=True):
    read_timeout: float = 30.0
    """Seconds a request may take to arrive, from its first byte or the start of the connection."""
    write_timeout: float = 30.0
    """Seconds a reader may take nothing of its answer."""
    max_connections: int = 20_000


class HttpListener:
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
        )
        self._config.load()

    async def listen(self, host: str, port: int) -> int:
        """Returns the port: the given one, or a free one for 0."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._protocol, host, port, backlog=2048)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def listen_on_path(self, path: Path) -> None:
        """A Unix socket that only this user can open, from the moment it exists."""
        listening = _private_socket(path)
        loop = asyncio.get_running_loop()
        try:
            self._servers.append(await loop.create_unix_server(self._protocol, sock=listening))
        except BaseException:
            listening.close()
            raise

    async def close(self, grace: float) -> None:
        """Accept nothing more; requests under way get `grace` seconds to be answered."""
        try:
            await self._stop_accepting()
            for connection in list(self._state.connections):
                connection.shutdown()
            if tasks := list(self._state.tasks):
                await asyncio.wait(tasks, timeout=grace)
        finally:
            for task in list(self._state.tasks):
                task.cancel()
            for connection in list(self._state.connections):
                connection.transport.close()

    async def _stop_accepting(self) -> None:
        """First those that were accepted just now get their transports: asyncio would lose them,
        with their sockets open, and their peers would wait.
        """
        loop = asyncio.get_running_loop()
        try:
            if isinstance(loop, asyncio.SelectorEventLoop):
                for listening in (each for server in self._servers for each in server.sockets):
                    loop.remove_reader(listening.fileno())
                for _ in range(TURNS_TO_CONNECT):
                    await asyncio.sleep(0)
        finally:
            for server in self._servers:
                server.close()

    def _protocol(self) -> "BoundedProtocol":
        return BoundedProtocol(self._config, self._state, self._limits)


class BoundedProtocol(HttpToolsProtocol):
    """Rejects slow and oversized requests: each must arrive in time, with a short head."""

    def __init__(self, config: Config, state: ServerState, limits: Limits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Since the request began, or since the last piece of its body."""
        self._is_in_head = False
        self._stuck_since: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._is_stream = False
        self._under_way: deque[RequestResponseCycle] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        _set_options(transport.get_extra_info("socket"))
        if len(self.connections) > self._limits.max_connections:
            self.app = _too_many_connections
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._expect_no_reader()
        self._unset_keepalive_if_required()  # uvicorn leaves it if the peer has vanished
        super().connection_lost(exc)
        for each in self._unanswered():  # including those with another request behind them
            each.disconnected = True
            each.message_event.set()

    def shutdown(self) -> None:
        """Answer requests that have arrived; do not wait for the rest of others."""
        super().shutdown()
        if any(each.more_body for each in self._unanswered()):
            self._refuse(SHUTTING_DOWN.status, str(SHUTTING_DOWN.data))

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._deadline is None:
            self._expect_request()  # the first bytes of another request
        self._head_bytes += len(data)
        self._parse(data)
        if self._head_bytes > MAX_HEAD_BYTES and self._deadline is not None:
            self._end_slow_request(431, HEAD_TOO_LARGE)

    # --- readers -------------------------------------------------------------------------

    def become_stream(self) -> None:
        """From now on somebody else looks after its reader."""
        self._is_stream = True
        self._expect_no_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._is_stream:
            self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_no_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Closing alone would wait for a reader of what is left."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            hang_up(self.transport)

    def _expect_reader(self) -> None:
        self._expect_no_reader()
        self._unsent = self.transport.get_write_buffer_size()
        self._stuck_since = self.loop.call_later(self._limits.write_timeout, self._on_silence)

    def _expect_no_reader(self) -> None:
        if self._stuck_since is not None:
            self._stuck_since.cancel()
            self._stuck_since = None

    def _on_silence(self) -> None:
        """Slow is not stuck: only who takes nothing is disconnected."""
        if self.transport.get_write_buffer_size() < self._unsent:
            self._expect_reader()
        else:
            logger.debug("a connection took nothing of its answer for too long")
            hang_up(self.transport)

    # --- the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._deadline is None:
            self._expect_request()
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore headers after the body (trailers): they could be endless."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if not self.parser.should_upgrade():
            if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
                raise _Unserved(431, HEAD_TOO_LARGE)  # all of it came at once
            if len(self._unanswered()) >= MAX_UNANSWERED:
                raise _Unserved(400, TOO_MANY_UNANSWERED)
            state = self.scope.setdefault("state", {})
            state["transport"], state["become_stream"] = self.transport, self.become_stream
            super().on_headers_complete()
            self._under_way.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._expect_nothing()
        super().on_message_complete()
        if self.cycle.response_complete:  # before the whole request had arrived
            self.on_response_complete()

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = self._feed(rest)
        except HttpParserError as error:
            why = error.__context__
            if not isinstance(why, _Unserved):
                why = _Unserved(400, f"Invalid HTTP: {error}")
            logger.debug("a connection sent what is not served: %s", why)
            self._refuse(why.status, str(why))

    def _feed(self, data: memoryview) -> memoryview:
        """Returns the data that is left after an offer to upgrade the protocol."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            return data[upgrade.args[0] :] if self._ignore_upgrade() else data[:0]
        return data[:0]

    def _ignore_upgrade(self) -> bool:
        """Parse the head again without its offer; False if the request cannot be served."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(405, "This is not a proxy")
            return False
        kept = ((name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS)
        lines = (b"%b %b HTTP/1.1" % (method, self.url), *(b"%b: %b" % each for each in kept))
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(b"\r\n".join((*lines, b"", b"")))
        return True

    # --- bounds --------------------------------------------------------------------------

    def _unanswered(self) -> deque[RequestResponseCycle]:
        """In order of arrival, which is the order of the answers."""
        while self._under_way and self._under_way[0].response_complete:
            self._under_way.popleft()
        return self._under_way

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self._limits.read_timeout, self._on_read_timeout)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_read_timeout(self) -> None:
        if self.flow.read_paused:
            self._expect_request()  # we are the ones who paused reading
        else:
            self._end_slow_request(408, "The request did not arrive in time")

    def _end_slow_request(self, status: int, why: str) -> None:
        if self._is_in_head or self._unanswered():
            self._refuse(status, why)
        else:
            self.transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Refuse what never became a request; complete requests before it are answered first."""
        whole = [each for each in self._unanswered() if not each.more_body]
        if whole:
            while self.pipeline and self.pipeline[0][0].more_body:
                self.pipeline.popleft()
            whole[-1].keep_alive = False
            self.flow.pause_reading()
        elif not self.transport.is_closing():
            body = encode("unknown", "0", refuse(status, why))
            head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            last = b"connection: close\r\n\r\n"
            self.transport.write(b"".join((STATUS_LINE[status], head, last, body)))
            self.transport.close()


class _Unserved(Exception):
    """Raised inside the parser, which would read on otherwise."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def _too_many_connections(_scope: Any, _receive: Any, send: Any) -> None:
    """The limit of connections is reached: refuse this one, keep serving the others."""
    body = encode("unknown", "0", refuse(503, "Too many connections: try again in a moment"))
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _private_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by an earlier owner
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):
            os.fchmod(listening.fileno(), 0o600)  # Linux applies it on bind
        listening.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        listening.close()
        raise
    return listening


def _set_options(connection: socket.socket | None) -> None:
    """Let the kernel notice peers that vanished, and keep little for those that do not read."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    options: Iterable[tuple[int, str, int]] = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.SOL_SOCKET, "SO_SNDBUF", UNSENT_BYTES),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    )
    for level, name, value in options:
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(level, option, value)


def allow_connections(connections: int) -> int:
    """Raise the limit of open files for this many connections; returns how many are allowed.

    Each connection is an open file, and the limit of a shell is not meant for servers.
    """
    if sys.platform == "win32":
        return connections
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(soft - RESERVED_FILES, 1)
