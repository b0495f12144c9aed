"""A real server in the test's own event loop, and somebody in front of it who makes trouble."""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Self

import msgspec

from layby.client.http import HttpClient
from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import Promise, Task
from layby.server import server_config
from layby.server.server import Server
from layby.wire.decode import VERSION
from tests.helpers.worlds import Answered

PATIENCE_S = 90.0
Trouble = Literal[
    "refuse",
    "lose",
    "cut",
    "twice",
    "hang",
    "late",
    "slow",
    "html",
    "json",
    "busy",
    "unsure",
    "pass",
]
"""What becomes of a request:

`refuse`  the connection ends before the server hears of it
`lose`    the server has done it, and the answer is lost
`cut`     the same, in the middle of the answer
`twice`   the server hears it twice; the second answer comes back
`hang`    the server has done it, and the answer never comes
`late`    the server has done it, and the answer comes when `let_go` is set
`slow`    the server hears of it `delay` seconds later, unless the client hangs up before
`html`    a gateway answers 502 with a page; the server has not heard of it
`json`    a gateway answers 502 with JSON of its own; the server has done it
`busy`    503, as a server that stops says it
`unsure`  503, but the server has done it: it cannot tell whether a commit has happened
"""
When = Callable[[Any], bool]
"""Whether trouble is meant for a request with this data."""


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Run it; whatever nobody heard of (a task's error, something left open) fails the test."""
    unheard: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        await asyncio.wait_for(scene(), PATIENCE_S)

    asyncio.run(run())
    gc.collect()
    assert unheard == []


class Seen(list[Any]):
    """A list that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = asyncio.Condition()

    async def add(self, what: Any) -> None:
        async with self._grown:
            self.append(what)
            self._grown.notify_all()

    async def until(self, is_enough: Callable[[list[Any]], Any]) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: is_enough(self))


class Meddler:
    """Passes requests on, one connection for each it is given, until it is told otherwise."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = 0
        self.came = Seen()
        """Every request that came, batches taken apart, as (kind, data)."""
        self.batches: list[int] = []
        """How many requests came in one body, and how large it was."""
        self.sizes: list[int] = []
        self.streams = 0
        self.refuses_streams = False
        self.delay = 0.5
        self.let_go = asyncio.Event()
        self._plans: list[tuple[str, deque[Trouble], When]] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self._open_streams: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._half_open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut_message = False

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Nobody listens any more, and every connection ends.

        One that asyncio has accepted, but not yet attached to its server when that closes, would
        be lost with its socket open: so first nobody is accepted any more.
        """
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(3):  # the loop may have accepted some that we have not seen yet
            await asyncio.sleep(0)
        self._server.close()
        for writer in (*self._connections, *self._half_open):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def trouble(self, kind: str, *troubles: Trouble, when: When = lambda _: True) -> None:
        """What becomes of the next such requests of this kind, alone or in a batch."""
        self._plans.append((kind, deque(troubles), when))

    def end_streams(self) -> None:
        for writer in list(self._open_streams):
            writer.transport.abort()

    def lose_streams(self) -> None:
        """The reader is gone, and the server does not notice."""
        self._half_open = list(self._open_streams.values())
        self.end_streams()

    def cut_next_message(self) -> None:
        """The stream ends in the middle of the next message on it."""
        self._cut_message = True

    async def inject(self, line: bytes) -> None:
        """Somebody else writes on every open stream."""
        for writer in self._open_streams:
            await _write(writer, b"%x\r\n%b\r\n" % (len(line), line))

    # --- connections ---------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From now on it can be ended, even before anything of it is read."""
        self._connections.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._drop(writer))

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._connections.discard(writer)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up: asyncio.StreamWriter | None = None
        try:
            upstream, up = await asyncio.open_connection("127.0.0.1", self.upstream, limit=2**25)
            while head := await _head(reader):
                await self._pass_on(head, reader, writer, upstream, up)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            if up is not None and up not in self._half_open:
                up.transport.abort()

    async def _pass_on(self, head: bytes, reader: Any, writer: Any, upstream: Any, up: Any) -> None:
        if head.startswith(b"GET"):
            await self._stream(head, reader, writer, upstream, up)
            return
        body = await reader.readexactly(_length(head))
        requests = await self._note(body)
        trouble = self._planned(requests)
        if trouble == "refuse":
            raise ConnectionResetError
        if trouble in ("html", "busy"):
            await _write(writer, _gateway(trouble, requests[0][0]))
            return
        if trouble == "slow":
            await _unless_hung_up(asyncio.sleep(self.delay, b""), reader)
        for _ in range(2 if trouble == "twice" else 1):
            await _write(up, head + body)
            answer = await _unless_hung_up(_message(upstream), reader)
        if trouble in ("json", "unsure"):
            answer = _gateway(trouble, requests[0][0])
        await self._answer(trouble, answer, reader, writer)

    async def _answer(self, trouble: Trouble, answer: bytes, reader: Any, writer: Any) -> None:
        if trouble == "lose":
            raise ConnectionResetError
        if trouble == "cut":
            await _write(writer, answer[: len(answer) - 5])
            raise ConnectionResetError
        if trouble == "hang":
            await reader.read()
            raise ConnectionResetError
        if trouble == "late":
            await _unless_hung_up(self.let_go.wait(), reader)
        await _write(writer, answer)

    async def _stream(self, head: bytes, reader: Any, writer: Any, upstream: Any, up: Any) -> None:
        self._open_streams[writer] = up
        self.streams += 1
        try:
            if self.refuses_streams:
                raise ConnectionResetError
            await _write(up, head)
            while chunk := await _unless_hung_up(upstream.read(65536), reader):
                if b"data:" in chunk and self._cut_message:
                    self._cut_message = False
                    await _write(writer, chunk[: len(chunk) // 2])
                    raise ConnectionResetError
                await _write(writer, chunk)
        finally:
            self._open_streams.pop(writer)
        raise ConnectionResetError

    async def _note(self, body: bytes) -> Sequence[tuple[str, Any]]:
        asked = msgspec.json.decode(body)
        inner = asked["data"]["requests"] if asked["kind"] == "layby.batch" else [asked]
        requests = [(each["kind"], each["data"]) for each in inner]
        self.batches.append(len(requests))
        self.sizes.append(len(body))
        for each in requests:
            await self.came.add(each)
        return requests

    def _planned(self, requests: Sequence[tuple[str, Any]]) -> Trouble:
        for kind, troubles, when in self._plans:
            if troubles and any(each == kind and when(data) for each, data in requests):
                return troubles.popleft()
        return "pass"


class Stage:
    def __init__(self, server: Server, meddler: Meddler, client: HttpClient) -> None:
        self.server = server
        self.meddler = meddler
        self.client = client

    async def ok(self, request: c.Command | q.Query) -> Any:
        """Asked of the server directly, without anybody in between."""
        reply: Answered = await self.server.client.send(request)
        assert reply.is_ok, reply
        return reply.data

    async def task(self, task_id: str) -> Task:
        return (await self.ok(c.GetTask(id=task_id))).task

    async def promise(self, promise_id: str) -> Promise:
        return (await self.ok(c.GetPromise(id=promise_id))).promise

    def kinds(self) -> list[str]:
        """What came, in order."""
        return [kind for kind, _ in self.meddler.came]


@asynccontextmanager
async def staged(flags: dict[str, object] | None = None, **options: Any) -> AsyncGenerator[Stage]:
    """A server, trouble, and a client that has to get along with it."""
    async with served(flags) as server, Meddler(server.port) as meddler:
        options.setdefault("patience", 10.0)
        client = HttpClient(meddler.url, **options)
        try:
            yield Stage(server, meddler, client)
        finally:
            await client.close()


@asynccontextmanager
async def served(flags: dict[str, object] | None = None) -> AsyncGenerator[Server]:
    defaults: dict[str, object] = {"db": "memory:", "server.port": 0}
    server = Server(server_config.load(defaults | (flags or {})))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def soon(condition: Callable[[], Any]) -> None:
    """Wait for something that tells nobody when it becomes true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


# --- bytes -----------------------------------------------------------------------------------


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Of a request; nothing when the connection ended where it may."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        return await reader.readuntil(b"\r\n\r\n")
    return b""


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return head + await reader.readexactly(_length(head))
    pieces = [head]
    while pieces[-1] != b"0\r\n\r\n":
        size = await reader.readuntil(b"\r\n")
        pieces.append(size + await reader.readexactly(int(size, 16) + 2))
    return b"".join(pieces)


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return int(next(line for line in lines if line.startswith(b"content-length:"))[15:])


async def _unless_hung_up(answer: Awaitable[Any], reader: asyncio.StreamReader) -> Any:
    """Who asked may hang up while it waits; then the server shall see that."""
    answered = asyncio.ensure_future(answer)
    hung_up = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((answered, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise ConnectionResetError
        return answered.result()
    finally:
        for each in (answered, hung_up):
            each.cancel()
        await asyncio.gather(answered, hung_up, return_exceptions=True)


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()


def _gateway(trouble: str, kind: str) -> bytes:
    if trouble in ("busy", "unsure"):
        head = {"corrId": "0", "status": 503, "version": VERSION}
        told = msgspec.json.encode({"kind": kind, "head": head, "data": "later"})
        return _http(b"503 Busy", b"application/json", told)
    if trouble == "json":
        return _http(b"502 Bad Gateway", b"application/json", b'{"message":"oh"}')
    return _http(b"502 Bad Gateway", b"text/html", b"<h1>Bad Gateway</h1>")


def _http(status: bytes, sort: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, sort, len(body)) + body
