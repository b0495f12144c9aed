"""HTTP that is broken, slow, forged or cut off, spoken to a listener with a small application."""

import asyncio
import gc
import socket
import threading
import tomllib
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement

from layby.server import listener as module
from layby.server.listener import MAX_HEAD_BYTES, MAX_UNANSWERED, HttpListener, Limits
from tests.helpers.listeners import LOOPS, PATIENCE_S, ListenerPlace, listening
from tests.helpers.raw_http import Line, get, post

SHORT = Limits(read_timeout=0.2)


class Echo:
    """Says what it was asked. `/stream` has no end, `/early` does not read, `/gate` waits."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.is_at_the_gate = threading.Event()
        self.asked: list[str] = []
        self.streams = 0
        self.has_lost_one = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.asked.append(path)
        if path == "/stream":
            await self._stream(receive, send)
            return
        length = 0 if path == "/early" else await _read(receive)
        if path == "/gate":
            self.is_at_the_gate.set()
            await self.gate.wait()
        told = {"method": scope["method"], "path": path, "length": length}
        await _respond(send, msgspec.json.encode(told))

    async def _stream(self, receive: Any, send: Any) -> None:
        self.streams += 1
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.streams -= 1
        self.has_lost_one.set()


async def _read(receive: Any) -> int:
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return -1
        length += len(message["body"])
        if not message["more_body"]:
            return length


async def _respond(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def place(limits: Limits | None = None, loop: str = "uvloop") -> Generator[ListenerPlace]:
    with listening(Echo, limits, loop) as here:
        yield here


def echo_of(here: ListenerPlace) -> Echo:
    app = here.listener._config.app
    assert isinstance(app, Echo)
    return app


@pytest.fixture(scope="module", params=LOOPS)
def here(request: pytest.FixtureRequest) -> Generator[ListenerPlace]:
    with place(loop=request.param) as here:
        yield here


def length_of(line: Line) -> int:
    answer = line.answer()
    assert answer.status == 200, answer
    return answer.json["length"]


def refused(line: Line, status: int, why: str = "") -> None:
    """In the envelope, for a request that never was one; then the connection ends."""
    answer = line.answer()
    told = answer.json
    assert (answer.status, told["head"]["status"]) == (status, status), answer
    assert (told["kind"], told["head"]["corrId"]) == ("unknown", "0")
    assert why in told["data"]
    assert line.ends()


# --- forged ----------------------------------------------------------------------------------

BROKEN = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"FETCH / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a proxy's request": b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
    "no path": b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n",
    "a path of bytes": b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
    "lines without CR": b"GET / HTTP/1.1\nhost: x\n\n",
    "a header over two lines": b"GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nhost: x\0y\r\n\r\n",
    "a space before the colon": b"POST / HTTP/1.1\r\ncontent-length : 5\r\n\r\nhello",
    "two lengths": b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "one length twice": b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "a list of lengths": b"POST / HTTP/1.1\r\ncontent-length: 5, 5\r\n\r\nhello",
    "a negative length": b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\nhello",
    "a signed length": b"POST / HTTP/1.1\r\ncontent-length: +5\r\n\r\nhello",
    "a length beyond all": b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\nhello",
    "length and chunks": (
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "chunks and length": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"
    ),
    "chunks within": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "almost chunks": b"POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk of no number": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "a chunk of 2^68": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello\r\n"
    ),
    "a chunk that is longer": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_http_is_refused(here: ListenerPlace, name: str) -> None:
    """Two readings of one request are how requests are smuggled: there is only one, or none."""
    before = len(echo_of(here).asked)
    with Line(here.port) as line:
        line.send(BROKEN[name])
        refused(line, 405 if name == "a proxy's request" else 400)
    assert len(echo_of(here).asked) <= before + 1


def test_a_good_request_is_answered_before_a_bad_one_behind_it(here: ListenerPlace) -> None:
    """Else its caller would take the refusal for its own, and it may have been carried out."""
    for bad in (b"garbage\r\n\r\n", BROKEN["a chunk of no number"]):
        with Line(here.port) as line:
            line.send(post(b"good") + bad)
            assert length_of(line) == 4
            assert line.ends()


def test_a_request_may_come_in_any_pieces(here: ListenerPlace) -> None:
    """Byte by byte, and several in one."""
    request = post(b"hello")
    with Line(here.port) as line:
        for byte in request:
            line.send(bytes([byte]))
        assert length_of(line) == 5
        line.send(request * 50)
        assert [length_of(line) for _ in range(50)] == [5] * 50


def test_chunks_may_come_in_any_pieces(here: ListenerPlace) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"5;why=not\r\nhello\r\n" * 200 + b"0\r\nmore: later\r\n\r\n"
    with Line(here.port) as line:
        line.send(head + body)
        assert length_of(line) == 1_000


def test_a_large_body_behind_another_request_is_no_large_head(here: ListenerPlace) -> None:
    """Also when the first packet ends in the middle of it."""
    large = post(b"x" * 3 * MAX_HEAD_BYTES)
    with Line(here.port) as line:
        line.send(post(b"first") + large[:200])
        assert length_of(line) == 5
        line.send(large[200:])
        assert length_of(line) == 3 * MAX_HEAD_BYTES


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
def test_offers_of_another_protocol_are_passed_over(here: ListenerPlace, upgrade: str) -> None:
    """Some clients make them with every first request, and expect it to be answered."""
    headers = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {upgrade}", "http2-settings: AAMA")
    with Line(here.port) as line:
        line.send(post(b"hello", *headers) + post(b"again"))
        assert length_of(line) == 5
        assert length_of(line) == 5


@pytest.mark.parametrize("headers", [(), ("connection: upgrade", "upgrade: h2c")])
def test_only_so_many_requests_are_sent_ahead(
    here: ListenerPlace, headers: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands fit into one packet: to keep them all would cost everybody's memory and time."""
    with Line(here.port) as line:
        line.send(post(b"hello", *headers) * 3 * MAX_UNANSWERED)
        assert [length_of(line) for _ in range(MAX_UNANSWERED)] == [5] * MAX_UNANSWERED
        assert line.ends()
    assert not [each for each in caplog.records if each.exc_info]


def test_old_http_is_answered_and_closed(here: ListenerPlace) -> None:
    for version in (b"HTTP/1.0", b"HTTP/0.9"):
        with Line(here.port) as line:
            line.send(b"POST / %b\r\ncontent-length: 5\r\n\r\nhello" % version)
            assert length_of(line) == 5
            assert line.ends()


def test_who_waits_to_be_asked_for_the_body_is_asked(here: ListenerPlace) -> None:
    head, body = post(b"hello", "expect: 100-continue").split(b"\r\n\r\n")
    with Line(here.port) as line:
        line.send(head + b"\r\n\r\n")
        assert line.head()[0] == 100
        assert length_of(line.send(body)) == 5


# --- large -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(get("/" + "x" * 4_000_000), id="path"),
        pytest.param(get("/", f"x: {'x' * 4_000_000}"), id="header"),
        pytest.param(get("/", *("x: x" for _ in range(500_000))), id="headers"),
    ],
)
def test_a_head_has_an_end(here: ListenerPlace, head: bytes) -> None:
    """Long before it fills the memory. Who goes on sending hears nothing but the end."""
    asked = len(echo_of(here).asked)
    with Line(here.port) as line:
        line.send(head[: 2 * MAX_HEAD_BYTES])
        with suppress(ConnectionError):
            for start in range(2 * MAX_HEAD_BYTES, len(head), 65_536):
                line.send(head[start : start + 65_536])
        assert line.ends() or line.answer().status == 431
    assert len(echo_of(here).asked) == asked


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(get("/" + "x" * MAX_HEAD_BYTES), id="path"),
        pytest.param(get("/", f"x: {'x' * MAX_HEAD_BYTES}"), id="header"),
        pytest.param(get("/", *("x: x" for _ in range(MAX_HEAD_BYTES // 2))), id="headers"),
    ],
)
def test_a_large_head_is_refused_though_it_came_at_once(head: bytes) -> None:
    """The kernel may have all of it, its end included, before the first of it is read."""
    asyncio.run(_tell_of_head_at_once(head))


async def _tell_of_head_at_once(head: bytes) -> None:
    wire = Wire()
    protocol = HttpListener(Echo())._protocol()
    protocol.connection_made(wire)
    protocol.data_received(head)
    assert wire.written.startswith(b"HTTP/1.1 431 ")
    assert b"The headers take more than 65536 bytes" in wire.written
    assert wire.is_closing()
    protocol.connection_lost(None)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.written += b"(closed)"

    def is_closing(self) -> bool:
        return self.written.endswith(b"(closed)")


def test_who_has_sent_too_large_a_head_is_told() -> None:
    asyncio.run(_tell_of_large_head())


async def _tell_of_large_head() -> None:
    wire = Wire()
    protocol = HttpListener(Echo())._protocol()
    protocol.connection_made(wire)
    piece = b"x: x\r\n" * 1_000
    protocol.data_received(b"GET / HTTP/1.1\r\n" + piece)
    while len(wire.written) == 0:
        protocol.data_received(piece)
    assert protocol._head_bytes < MAX_HEAD_BYTES + 2 * len(piece)
    assert wire.written.startswith(b"HTTP/1.1 431 ")
    assert b'"status":431' in wire.written
    assert wire.is_closing()
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        pytest.param(b"0\r\n", b"x: x\r\n" * 1_000, id="headers behind the body"),
        pytest.param(b"0\r\nx: ", b"x" * 6_000, id="a header behind the body"),
        pytest.param(b"1;x=", b"x" * 6_000, id="what is said of a chunk"),
    ],
)
def test_what_is_no_body_has_an_end_behind_the_head_too(beginning: bytes, piece: bytes) -> None:
    """It counts for nothing, and could fill the memory for as long as a request may take."""
    asyncio.run(_tell_of_no_body(beginning, piece))


async def _tell_of_no_body(beginning: bytes, piece: bytes) -> None:
    wire = Wire()
    protocol = HttpListener(Echo())._protocol()
    protocol.connection_made(wire)
    protocol.data_received(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    for rest in (b"", b"", beginning):
        protocol.data_received(b"2\r\nhi\r\n" * 5_000 + rest)
    for _ in range(MAX_HEAD_BYTES // len(piece) + 1):
        assert wire.written == b""
        protocol.data_received(piece)
    assert protocol.headers == [(b"transfer-encoding", b"chunked")]
    assert wire.written.startswith(b"HTTP/1.1 431 ")
    assert wire.is_closing()
    protocol.connection_lost(None)


def test_a_body_nobody_reads_is_passed_over(here: ListenerPlace) -> None:
    """The answer arrives though the request does not end, and the next request is served."""
    with Line(here.port) as line:
        line.send(post(b"x" * 10_000_000, path="/early"))
        assert length_of(line) == 0
        line.send(post(b"next"))
        assert length_of(line) == 4


# --- slow ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=LOOPS)
def brisk(request: pytest.FixtureRequest) -> Generator[ListenerPlace]:
    """Has little patience."""
    with place(SHORT, request.param) as brisk:
        yield brisk


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"P", id="one byte"),
        pytest.param(post(b"hello")[:30], id="half a head"),
        pytest.param(post(b"hello")[:-1], id="almost all"),
        pytest.param(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe", id="a chunk"),
    ],
)
def test_a_request_that_does_not_go_on_is_given_up(brisk: ListenerPlace, beginning: bytes) -> None:
    with Line(brisk.port) as line:
        line.send(beginning)
        refused(line, 408, "did not arrive in time")


@pytest.mark.parametrize("request_", [get("/", *["x: y"] * 10_000), post(b"x" * 100_000)])
def test_a_request_that_drips_is_given_up(brisk: ListenerPlace, request_: bytes) -> None:
    """However diligently: what counts is that it is whole in time."""
    with Line(brisk.port) as line, pytest.raises(ConnectionError):
        drip(line, request_[:2_000])


def drip(line: Line, data: bytes) -> None:
    pause = threading.Event()
    for byte in data:
        line.send(bytes([byte]))
        pause.wait(0.005)


def test_who_says_nothing_is_hung_up_on(brisk: ListenerPlace) -> None:
    with Line(brisk.port) as line:
        assert line.ends()


def test_blank_lines_are_no_request(brisk: ListenerPlace) -> None:
    """Between two requests they may come, but they buy no time."""
    with Line(brisk.port) as line:
        line.send(post(b"hello"))
        assert length_of(line) == 5
        line.send(b"\r\n")
        assert line.ends()


def test_the_rest_of_a_body_nobody_reads_has_its_time_too(brisk: ListenerPlace) -> None:
    with Line(brisk.port) as line:
        line.send(post(b"hello", path="/early")[:-1])
        assert length_of(line) == 0
        assert line.ends()


def test_idle_connections_are_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for ever: neither after an answer, nor after one that came before the request's end."""
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.2)
    with place(Limits(read_timeout=PATIENCE_S)) as here:
        for path in ("/", "/early"):
            with Line(here.port) as line:
                head, body = post(b"hello", path=path).split(b"\r\n\r\n")
                line.send(head + b"\r\n\r\n")
                if path == "/early":
                    assert length_of(line) == 0
                line.send(body)
                if path == "/":
                    assert length_of(line) == 5
                assert line.ends()


def test_a_request_behind_one_that_takes_long_is_not_late(brisk: ListenerPlace) -> None:
    """We do not read it yet, so its peer cannot be blamed."""
    with Line(brisk.port) as line:
        large = post(b"x" * 1_000_000)
        line.send(get("/gate"))
        sender = threading.Thread(target=line.send, args=(large,))
        sender.start()
        with Line(brisk.port) as other:
            assert other.ends()  # the patience with somebody else is over
        brisk.soon(echo_of(brisk).gate.set)
        assert line.answer().json["path"] == "/gate"
        assert length_of(line) == 1_000_000
        sender.join()


def test_a_slow_stream_is_no_slow_request(brisk: ListenerPlace) -> None:
    with Line(brisk.port) as line:
        line.send(get("/stream"))
        assert line.head()[0] == 200
        with Line(brisk.port) as other:
            assert other.ends()
        assert echo_of(brisk).streams == 1


# --- gone ------------------------------------------------------------------------------------


def leave_in_order(line: Line) -> None:
    line.socket.close()


@pytest.mark.parametrize("leave", [leave_in_order, Line.vanish])
def test_a_stream_hears_at_once_that_its_reader_is_gone(
    here: ListenerPlace, leave: Callable[[Line], None]
) -> None:
    line = Line(here.port)
    line.send(get("/stream"))
    assert line.head()[0] == 200
    echo_of(here).has_lost_one.clear()
    leave(line)
    assert echo_of(here).has_lost_one.wait(PATIENCE_S)


def test_a_stream_hears_it_also_with_a_request_sent_behind_it(here: ListenerPlace) -> None:
    """That request can never be answered; but the stream must not outlive its reader."""
    line = Line(here.port)
    line.send(get("/stream") + get("/"))
    assert line.head()[0] == 200
    echo_of(here).has_lost_one.clear()
    line.vanish()
    assert echo_of(here).has_lost_one.wait(PATIENCE_S)


@pytest.mark.parametrize("piece", [0, 1, 30, -1])
def test_who_goes_away_in_the_middle_leaves_nothing(here: ListenerPlace, piece: int) -> None:
    for leave in (leave_in_order, Line.vanish):
        line = Line(here.port)
        line.send(post(b"hello", path="/gone")[:piece])
        leave(line)
    with Line(here.port) as line:
        assert length_of(line.send(post(b"hello"))) == 5


@pytest.mark.parametrize("why", [None, ConnectionResetError()], ids=["in order", "vanished"])
def test_who_goes_away_after_an_answer_is_forgotten_at_once(why: Exception | None) -> None:
    """Not when it would have been idle for too long: a thousand a second may come and vanish."""
    asyncio.run(_tell_who_is_kept(why))


async def _tell_who_is_kept(why: Exception | None) -> None:
    wire = Wire()
    protocol = HttpListener(Echo())._protocol()
    protocol.connection_made(wire)
    protocol.data_received(get("/"))
    await asyncio.gather(*protocol.tasks)
    assert wire.written.startswith(b"HTTP/1.1 200 ")
    protocol.connection_lost(why)
    kept = weakref.ref(protocol)
    del protocol, wire
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None


# --- many ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_there_are_only_so_many_connections(loop: str) -> None:
    """Those that are there are served on; one too many is told so, and another may follow it."""
    with place(Limits(max_connections=3), loop) as here:
        lines = [Line(here.port) for _ in range(3)]
        for line in lines:
            assert length_of(line.send(post(b"hello"))) == 5
        for _ in range(3):
            with Line(here.port) as surplus:
                refused(surplus.send(post(b"hello")), 503, "Too many connections")
        for line in lines:
            assert length_of(line.send(post(b"again"))) == 5
        lines.pop().socket.close()
        until_connected(here, lines)
        for line in lines:
            line.socket.close()


def until_connected(here: ListenerPlace, lines: list[Line]) -> None:
    """The place of who has gone is free as soon as that is known."""
    while True:
        lines.append(Line(here.port))
        if lines[-1].send(post(b"hello")).answer().status == 200:
            return
        lines.pop().socket.close()


# --- stopping --------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_stopping_answers_what_is_under_way(loop: str) -> None:
    """Idle connections end at once; new ones are not accepted."""
    with place(loop=loop) as here, Line(here.port) as idle, Line(here.port) as busy:
        assert length_of(idle.send(post(b"hello"))) == 5
        busy.send(post(b"hello", path="/gate"))
        assert echo_of(here).is_at_the_gate.wait(PATIENCE_S)
        stopping = asyncio.run_coroutine_threadsafe(here.listener.close(PATIENCE_S), here.loop)
        assert idle.ends()
        with pytest.raises(ConnectionError):
            Line(here.port)
        assert not stopping.done()
        here.soon(echo_of(here).gate.set)
        answer = busy.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert busy.ends()
        stopping.result(PATIENCE_S)


@pytest.mark.parametrize("loop", LOOPS)
def test_stopping_does_not_wait_for_requests_that_are_still_coming(loop: str) -> None:
    with place(loop=loop) as here, Line(here.port) as late, Line(here.port) as early:
        late.send(post(b"hello", path="/late")[:-1])
        early.send(get("/gate") + post(b"hello", path="/late")[:-1])
        assert echo_of(here).is_at_the_gate.wait(PATIENCE_S)
        stopping = asyncio.run_coroutine_threadsafe(here.listener.close(PATIENCE_S), here.loop)
        refused(late, 503, "shutting down")
        here.soon(echo_of(here).gate.set)
        assert early.answer().json["path"] == "/gate"
        assert early.ends()
        stopping.result(PATIENCE_S)


def test_whoever_connects_as_it_stops_is_let_go() -> None:
    """The loop has accepted the connection, and nobody knows of it yet."""

    async def unused(_scope: Any, _receive: Any, _send: Any) -> None: ...

    async def scene() -> None:
        here = HttpListener(unused)
        port = await here.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer:
            for _ in range(2):  # the first finds it, the second accepts it after we went on
                await asyncio.sleep(0)
            await here.close(0)
            assert await asyncio.to_thread(peer.recv, 1) == b""

    asyncio.run(scene())


# --- in the file system ----------------------------------------------------------------------


def test_a_socket_in_the_file_system_is_private(tmp_path: Path) -> None:
    """One that an owner left behind is replaced."""
    path = tmp_path / "layby.sock"
    path.touch(0o666)
    with place() as here:
        here.run(here.listener.listen_on_path(path))
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.is_socket()


# --- what we build on ------------------------------------------------------------------------


def test_uvicorn_is_bounded_on_both_sides():
    """Its protocol is subclassed, which no release promises to keep: only tried ones are let in."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    asked = map(Requirement, tomllib.loads(text)["project"]["dependencies"])
    (bounds,) = [each.specifier for each in asked if each.name == "uvicorn"]
    assert sorted(each.operator for each in bounds) == ["<", ">="]
    assert metadata.version("uvicorn") in bounds
