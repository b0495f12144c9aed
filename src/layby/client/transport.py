"""Sends bytes to a server and back, over a pool of TCP or Unix socket connections."""

import errno
import io
import os
import socket
import ssl
from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from layby.errors import StoreUnavailable, UsageError
from layby.wire import ask

CONNECT_S: Final = 5.0
REFUSED: Final = "connection refused"
CHECK_ADDRESS: Final = "is this its address?"
KEEP_ALIVE_S: Final = 60.0
"""Shorter than the server's, so that the server never closes an idle connection first."""
LARGE_BYTES: Final = 1 << 20
"""Bodies above this size are written piece by piece."""
MAX_SILENCE_S: Final = 45.0
"""A stream carries a comment every 15 s; one that is silent for this long is dead."""
EVENT: Final = b"data:"
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""How OpenSSL calls an answer in plain text, depending on its version."""
KEEPALIVE_OPTIONS: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A peer that vanished is noticed within half a minute, even during a long wait."""


class Unreachable(StoreUnavailable):
    """The server gave no answer. `may_have_arrived`: it may still have received the request."""

    def __init__(
        self, url: str, why: str, *, may_have_arrived: bool, advice: str = "is it running?"
    ) -> None:
        super().__init__(f"the server at {url} does not answer ({why}): {advice}")
        self.why = why
        self.may_have_arrived = may_have_arrived


class StreamRefused(StoreUnavailable):
    """The server refused to open the stream of messages."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"the server refused the stream of messages with {status}: {why}")
        self.status = status


class Transport:
    """Use it only in the event loop of its first use."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = check_url(url)
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._is_socket = url.startswith("unix:")
        self._base = "http://layby" if self._is_socket else url.rstrip("/")

    async def post(
        self,
        body: bytes,
        within: float,
        connect_within: float = CONNECT_S,
        total: float | None = None,
    ) -> tuple[int, bytes]:
        """The answer's status and body; silence for `within` seconds counts as no answer, and so
        does one that has not arrived after `total` seconds.
        """
        timeout = aiohttp.ClientTimeout(total=total, connect=connect_within, sock_read=within)
        data = body if len(body) <= LARGE_BYTES else io.BytesIO(body)
        try:
            async with self._open_session().post(
                f"{self._base}/", data=data, timeout=timeout, allow_redirects=False
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None
        if answer.content_type != "application/json":
            why = f"HTTP {answer.status} from something that is not a layby server"
            raise Unreachable(self.url, why, may_have_arrived=True, advice=CHECK_ADDRESS)
        return answer.status, content

    async def events(self, group: str, pid: str, incarnation: str) -> AsyncGenerator[bytes]:
        """The messages of a stream, after an empty one that says it is open."""
        url = f"{self._base}/poll/{quote(group, safe='')}/{quote(pid, safe='')}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=MAX_SILENCE_S)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        headers |= {ask.INCARNATION: incarnation} if incarnation else {}
        try:
            async with self._open_session().get(url, timeout=timeout, headers=headers) as answer:
                await _check_is_open(answer)
                yield b""
                async for line in _lines(answer.content):
                    if line.startswith(EVENT):
                        yield line[len(EVENT) :].strip()
        except StreamRefused:
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None

    async def close(self) -> None:
        """Closes for good: pending and later requests fail as unreachable."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise aiohttp.ClientConnectionError("closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=self._connector(), proxy=self._proxy())
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        if self._is_socket:
            return aiohttp.UnixConnector(
                self.url.removeprefix("unix:"), limit=0, keepalive_timeout=KEEP_ALIVE_S
            )
        return aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEP_ALIVE_S, socket_factory=_keepalive_socket
        )

    def _proxy(self) -> str | None:
        """The proxy of the environment, looked up once; aiohttp would do so for every request."""
        parts = urlsplit(self.url)
        if self._is_socket or proxy_bypass(parts.hostname or ""):
            return None
        return getproxies().get(parts.scheme)

    def _unreachable(self, error: BaseException) -> Unreachable:
        is_unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        if isinstance(error, aiohttp.ClientResponseError):
            why = "what came back is not HTTP"
            return Unreachable(self.url, why, may_have_arrived=True, advice=CHECK_ADDRESS)
        return Unreachable(self.url, _why(error), may_have_arrived=not is_unsent)


def check_url(url: str) -> str:
    """`http://host:port`, `https://…`, or `unix:/path/of/a.sock`."""
    parts = urlsplit(url)
    has_host = parts.path if parts.scheme == "unix" else parts.hostname
    try:
        _ = parts.port
    except ValueError:
        raise UsageError(
            f"{url!r}: a port is a number up to 65535; write for example http://host:8001"
        ) from None
    if parts.scheme not in ("http", "https", "unix") or not has_host:
        raise UsageError(
            f"{url!r} is not the address of a server: write for example http://host:8001"
        )
    return url


def _why(error: BaseException) -> str:
    """In a few words; aiohttp repeats the address and quotes Python."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name of the host is not known"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            return "it does not speak https; is it http://?"
        if cause.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(cause):
            return REFUSED  # of several addresses, one at least
        if cause.errno is not None and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno).lower()
    elif isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "it hung up"
    return str(error) or type(error).__name__


def _keepalive_socket(address_info: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(*address_info[:3])
    for name, value in KEEPALIVE_OPTIONS:
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _check_is_open(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        raise StreamRefused(answer.status, await answer.text())


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Lines of any length: a message may carry a value of megabytes."""
    rest = bytearray()
    while chunk := await content.readany():
        head, *lines = chunk.split(b"\n")
        rest += head
        for line in lines:
            yield bytes(rest)
            rest = bytearray(line)
