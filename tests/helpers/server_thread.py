"""A server in a thread of its own, so that it goes on while the worker's event loop is blocked."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from layby import Runner
from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import Task
from layby.server.server import Server
from tests.helpers.troubled_server import PATIENCE_S, Meddler, play, served
from tests.helpers.worlds import Answered

__all__ = ["Elsewhere", "play", "server_elsewhere", "soon"]


class Elsewhere:
    """Of the server's thread; `do` and `ask` reach it from any other."""

    def __init__(self, server: Server, meddler: Meddler) -> None:
        self.server = server
        self.meddler = meddler
        self.loop = asyncio.get_running_loop()

    @property
    def url(self) -> str:
        return self.meddler.url

    def runner(self, **options: Any) -> Runner:
        options.setdefault("lease", 0.6)
        return Runner(self.url, **options)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def ok(self, request: c.Command | q.Query) -> Any:
        reply: Answered = await self.ask(self.server.client.send(request))
        assert reply.is_ok, reply
        return reply.data

    async def task(self, task_id: str) -> Task:
        return (await self.ok(c.GetTask(id=task_id))).task

    def look(self, task_id: str) -> Task:
        """The same, for code that blocks."""
        return self.do(self.server.client.send(c.GetTask(id=task_id))).data.task

    def count(self, kind: str) -> int:
        return sum(each == kind for each, _ in list(self.meddler.came))


@contextmanager
def server_elsewhere(flags: dict[str, object] | None = None) -> Generator[Elsewhere]:
    ready, over = threading.Event(), threading.Event()
    there: list[Elsewhere] = []

    async def serve() -> None:
        async with served(flags) as server, Meddler(server.port) as meddler:
            there.append(Elsewhere(server, meddler))
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield there[0]
    finally:
        over.set()
        thread.join()


async def soon(condition: Callable[[], Any]) -> None:
    """Wait for something that tells nobody when it becomes true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
