"""Passes TCP connections on: a load balancer, as small as one machine needs.

Each connection goes to the next of its targets, or to the one after that if nobody listens there.
Bytes are passed on as they come, in both directions, for as long as both ends want: long requests
and streams of messages need nothing else.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")
Address = tuple[str, int]
CHUNK = 1 << 16
CONNECT_S = 5.0


class Connection:
    """Who came (`near`), and who was reached (`far`)."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class Relay:
    """Runs in a thread of its own, from `start` until `close`."""

    def __init__(self, targets: Sequence[Address], port: int = 0, host: str = "127.0.0.1") -> None:
        self.targets = list(targets)
        self.host = host
        self.port = port
        self.connections: set[Connection] = set()
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """It listens when this returns; raises OSError if the port is taken."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        try:
            self.run(self._listen())
        except BaseException:
            self._end_thread()
            raise

    def close(self) -> None:
        if self._loop is not None:
            self.run(self._end())
            self._end_thread()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In its thread."""
        assert self._loop is not None, "it has not been started"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    # --- in its thread -------------------------------------------------------------------

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        reached = None
        try:
            if reached := await self._reach():
                answers, far = reached
                if await self._join(Connection(near, far), reader, answers):
                    await _leave(near, far)
        finally:
            near.transport.abort()
            if reached:
                reached[1].transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next one that accepts a connection; None if nobody does."""
        for _ in range(len(self.targets)):
            host, port = self.targets[self._turn % len(self.targets)]
            self._turn += 1
            with suppress(OSError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(host, port)
        return None

    async def _join(
        self, both: Connection, asked: asyncio.StreamReader, answers: asyncio.StreamReader
    ) -> bool:
        """Until both have ended, or one has failed: then the answer is no."""
        self.connections.add(both)
        there = asyncio.create_task(self._pass(both, asked, both.far))
        back = asyncio.create_task(self._pass(both, answers, both.near))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for each in (there, back):
                each.cancel()
            ends = await asyncio.gather(there, back, return_exceptions=True)
            self.connections.discard(both)
        return not any(ends)

    async def _pass(
        self, both: Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        content = b"-"
        while content:
            content = await source.read(CHUNK)
            await self.carry(both, content, sink)

    async def carry(self, both: Connection, content: bytes, sink: asyncio.StreamWriter) -> None:
        """One piece; nothing is the end, in this direction. Whoever makes trouble overrides it."""
        del both
        if content:
            sink.write(content)
            await sink.drain()
        else:
            sink.write_eof()


async def _leave(*peers: asyncio.StreamWriter) -> None:
    """When they have got what was written: one may read slowly."""
    for each in peers:
        each.close()
    await asyncio.gather(*(each.wait_closed() for each in peers), return_exceptions=True)
