"""A real `layby serve`, and a peer that talks to it over one bare socket."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from layby.wire.decode import VERSION
from tests.helpers.places import address_of

PATIENCE_S = 90
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder()

SERVES = re.compile(r"layby serves .* at http://(?:127\.0\.0\.1|localhost):(\d+)")


class ServerProcess:
    """Can be killed and started again, on the same file and port. What it says is kept."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        db: str | None = None,
        program: Sequence[str] = ("-m", "layby.cli"),
    ) -> None:
        """`program`: what Python runs; it may be another than ours."""
        self._program = program
        self.file = folder / "server.db"
        self._db = db or address_of(self.file)
        self.port = 0
        self.said = ""
        self.is_up = threading.Event()
        self._flags = flags
        self._has_said = threading.Condition()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        place = ["--db", self._db, "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, *self._program, "serve", *place, *self._flags],
            cwd=self.file.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        with self._has_said:
            self._has_said.wait_for(self._has_begun, PATIENCE_S)
        assert self.is_up.is_set(), self.said

    @property
    def process_id(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._end(self._process.terminate)

    def kill(self) -> None:
        self._end(self._process.kill)

    def until_it_says(self, text: str) -> None:
        with self._has_said:
            assert self._has_said.wait_for(lambda: text in self.said, PATIENCE_S), self.said

    def _has_begun(self) -> bool:
        return self.is_up.is_set() or self._process.poll() is not None

    def _end(self, end: Callable[[], None]) -> None:
        self.is_up.clear()
        end()
        self._process.wait(PATIENCE_S)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._hear(line)
        with self._has_said:
            self._has_said.notify_all()

    def _hear(self, line: str) -> None:
        with self._has_said:
            self.said += line
            if found := re.search(
                r"^layby serves .* at http://(?:127\.0\.0\.1|localhost):(\d+)", line
            ):
                self.port = int(found[1])
                self.is_up.set()
            self._has_said.notify_all()


class Answer(NamedTuple):
    status: int
    data: Any


class HungUp(Exception):
    """The connection ended before the answer did: nobody knows what became of the request."""


class Peer:
    """One connection, kept alive, one request at a time. Every answer's form is looked at."""

    def __init__(self, port: int, patience_s: float = PATIENCE_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), patience_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked = 0
        self._unread = b""

    def close(self) -> None:
        self._socket.close()

    @property
    def next_id(self) -> str:
        """What the next request will be called."""
        return f"c{self._asked}"

    def ask(self, kind: str, data: Any, now: int | None = None) -> Answer:
        """`now` is the time the server shall think it is."""
        corr_id = self.next_id
        self._asked += 1
        head = {"corrId": corr_id, "version": VERSION, "resonate:debug_time": now}
        self._send(_encoder.encode({"kind": kind, "head": head, "data": data}))
        status, headers, body = self._receive()
        answer = _decoder.decode(body)
        assert b"content-type: application/json" in headers, headers
        assert answer.keys() == {"kind", "head", "data"}, answer
        assert answer["kind"] == kind, answer
        assert answer["head"] == {"corrId": corr_id, "status": status, "version": VERSION}
        assert status < 400 or isinstance(answer["data"], str), answer
        return Answer(status, answer["data"])

    def _send(self, body: bytes) -> None:
        head = b"POST / HTTP/1.1\r\nhost: layby\r\ncontent-length: %d\r\n\r\n" % len(body)
        try:
            self._socket.sendall(head + body)
        except OSError as error:
            raise HungUp from error

    def _receive(self) -> tuple[int, list[bytes], bytes]:
        """Status, headers as lines in lower case, body."""
        while b"\r\n\r\n" not in self._unread:
            self._read_more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *headers = head.lower().split(b"\r\n")
        [length] = [int(each[15:]) for each in headers if each.startswith(b"content-length:")]
        while len(self._unread) < length:
            self._read_more()
        body, self._unread = self._unread[:length], self._unread[length:]
        return int(first.split()[1]), headers, body

    def _read_more(self) -> None:
        try:
            more = self._socket.recv(1 << 16)
        except ConnectionError as error:
            raise HungUp from error
        if not more:
            raise HungUp
        self._unread += more
