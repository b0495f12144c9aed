"""What happened between clients and a server: every call with its times, every message heard."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import cycle
from typing import Any, NamedTuple, Self

import msgspec

from tests.helpers.server_process import PATIENCE_S, Answer, HungUp, Peer, ServerProcess

Data = dict[str, Any]
_WALL_CLOCK_NS = time.time_ns() - time.monotonic_ns()


class Call(NamedTuple):
    """Times are in nanoseconds of one clock that never goes back."""

    who: str
    kind: str
    data: Data
    invoked_at: int
    returned_at: int
    answer: Answer | None
    """None: the server hung up, so that nobody knows whether it has done it."""

    @property
    def is_ok(self) -> bool:
        return self.answer is not None and self.answer.status < 400


class Heard(NamedTuple):
    address: str
    message: Data
    at: int

    @property
    def key(self) -> tuple[str, str]:
        """Who heard of what."""
        about = self.message["data"].get("promise") or self.message["data"]["task"]
        return self.address, about["id"]


class Record:
    """Threads write into it as things happen; it is judged when they are done."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.heard: list[Heard] = []
        self.told: set[tuple[str, str]] = set()
        """Who has heard an unblock of what."""
        self.is_over = False
        self._more = threading.Condition()

    def add(self, event: Call | Heard) -> None:
        with self._more:
            if isinstance(event, Call):
                self.calls.append(event)
            else:
                self.heard.append(event)
                self.told |= {event.key} if event.message["kind"] == "unblock" else set()
            self._more.notify_all()

    def end(self) -> None:
        """Nobody need wait for more."""
        with self._more:
            self.is_over = True
            self._more.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """Look again after every event; False when there are no more, or it takes too long."""
        with self._more:
            self._more.wait_for(lambda: self.is_over or holds(), PATIENCE_S)
            return holds()

    def about(self, promise_id: str) -> list[Call | Heard]:
        """In the order of what was known when: for people who look for a mistake."""
        calls = [(each.returned_at, each) for each in self.calls if promise_id in str(each.data)]
        heard = [(each.at, each) for each in self.heard if promise_id in each.key]
        return [each for _, each in sorted([*calls, *heard], key=lambda pair: pair[0])]

    def of(self, kind: str) -> Iterator[Heard]:
        return (each for each in self.heard if each.message["kind"] == kind)


def wall_ms(at: int) -> int:
    """What a server's clock shows at such a time."""
    return (at + _WALL_CLOCK_NS) // 1_000_000


class Caller:
    """A client that outlives its server and comes back."""

    def __init__(self, name: str, server: ServerProcess, record: Record) -> None:
        self.name = name
        self.hang_ups = 0
        self._server = server
        self._record = record
        self._peer = self._connected()

    def close(self) -> None:
        self._peer.close()

    def ask(self, kind: str, data: Data) -> Answer | None:
        invoked_at = time.monotonic_ns()
        try:
            answer = self._peer.ask(kind, data)
        except HungUp:
            answer = None
        self._record.add(Call(self.name, kind, data, invoked_at, time.monotonic_ns(), answer))
        if answer is None:
            self.hang_ups += 1
            self._peer.close()
            self._peer = self._connected()
        return answer

    def insist(self, kind: str, data: Data) -> Answer:
        """Ask until there is an answer."""
        while (answer := self.ask(kind, data)) is None:
            pass
        return answer

    def _connected(self) -> Peer:
        while True:
            assert self._server.is_up.wait(PATIENCE_S), self._server.said
            with suppress(ConnectionError):
                return Peer(self._server.port)


class Ear:
    """A stream of messages that is opened again whenever it ends."""

    def __init__(
        self,
        server: ServerProcess,
        group: str,
        name: str,
        record: Record,
        tell: Callable[[Data], object],
    ) -> None:
        self.address = f"poll://uni@{group}/{name}"
        self._path = f"/poll/{group}/{name}"
        self._server = server
        self._record = record
        self._respond_error = tell
        self._is_stopped = threading.Event()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.await_open()

    def await_open(self) -> None:
        assert self._is_open.wait(PATIENCE_S), self._server.said

    def leave(self, *, politely: bool) -> None:
        """End the stream: politely, reading on to its end, or with whatever is on its way."""
        self._is_open.clear()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR if politely else socket.SHUT_RDWR)

    def stop(self, *, politely: bool = True) -> None:
        """Leave for good."""
        self._is_stopped.set()
        self.leave(politely=politely)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            assert self._server.is_up.wait(PATIENCE_S), self._server.said
            with suppress(OSError, HTTPException):
                self._listen()

    def _listen(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            assert response.headers["content-type"] == "text/event-stream", response.status
            self._socket = connection.sock
            self._is_open.set()
            if self._is_stopped.is_set():  # told to stop before there was something to leave
                self.leave(politely=True)
            self._hear(response)
        finally:
            connection.close()

    def _hear(self, response: HTTPResponse) -> None:
        """A line that was cut off has not been heard."""
        for line in response:
            if line.startswith(b"data: ") and line.endswith(b"\n"):
                message = msgspec.json.decode(line[6:])
                self._record.add(Heard(self.address, message, time.monotonic_ns()))
                self._respond_error(message)


class Meeting:
    """Servers and all who talk to them, with what they say; closes what was opened."""

    def __init__(self, *servers: ServerProcess) -> None:
        self._servers = cycle(servers)
        self.record = Record()
        self._callers: list[Caller] = []
        self._ears: list[Ear] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ear in self._ears:
            ear.stop()
        for caller in self._callers:
            caller.close()

    def caller(self, name: str) -> Caller:
        """Of the server whose turn it is."""
        self._callers.append(Caller(name, next(self._servers), self.record))
        return self._callers[-1]

    def ear(
        self, group: str, name: str, tell: Callable[[Data], object] = lambda _message: None
    ) -> Ear:
        self._ears.append(Ear(next(self._servers), group, name, self.record, tell))
        return self._ears[-1]


def together(*jobs: Callable[[], None]) -> None:
    """All at once, each in a thread; what one of them raises is raised here."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for each in [pool.submit(job) for job in jobs]:
            each.result()
