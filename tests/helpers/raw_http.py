"""HTTP by hand, on one bare socket: for what no client would ever say, or leave unsaid."""

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Self

import msgspec

from layby.wire.decode import VERSION

PATIENCE_S = 90
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class HttpAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return msgspec.json.decode(self.body)


class Line:
    """A connection. `answer` reads one response, `events` a stream; long silence is an error."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(("127.0.0.1", port))
        except BaseException:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """No goodbye: the peer gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.socket.close()

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def post(self, body: bytes) -> HttpAnswer:
        return self.send(post(body)).answer()

    def ask(self, kind: Any, data: Any, **head: Any) -> HttpAnswer:
        return self.post(envelope(kind, data, **head))

    def answer(self, *, has_body: bool = True) -> HttpAnswer:
        """The next response, informational ones passed over."""
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if not has_body:
            return HttpAnswer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return HttpAnswer(status, headers, b"".join(self.chunks()))
        return HttpAnswer(status, headers, self._take(int(headers["content-length"])))

    def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in named}

    def events(self) -> Iterable[Any]:
        """Messages of a stream whose head was read, until it ends."""
        rest = b""
        for chunk in self.chunks():
            *whole, rest = (rest + chunk).split(b"\n\n")
            for each in whole:
                if each.startswith(b"data: "):
                    yield msgspec.json.decode(each.removeprefix(b"data: "))
        assert not rest

    def ends(self) -> bool:
        """True once the server has closed the connection and there is nothing left to read."""
        with suppress(ConnectionError):
            return self._unread == b"" and self.socket.recv(1) == b""
        return True

    def chunks(self) -> Iterable[bytes]:
        """The pieces of a body whose head was read."""
        while size := int(self._until(b"\r\n"), 16):
            yield self._take(size + 2)[:-2]
        self._take(2)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            self._read()
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._read()
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _read(self) -> None:
        more = self.socket.recv(1 << 18)
        if not more:
            raise EOFError(f"the server hung up after {self._unread[:200]!r}")
        self._unread += more


def envelope(kind: Any, data: Any, **head: Any) -> bytes:
    full = {"corrId": "c", "version": VERSION} | head
    return msgspec.json.encode({"kind": kind, "head": full, "data": data})


def post(body: bytes, *headers: str, path: str = "/") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: layby", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return (
        "\r\n".join([f"{method} {path} HTTP/1.1", "host: layby", *headers]).encode() + b"\r\n\r\n"
    )
