"""Real HTTP servers that receive pushes, and answer as a test tells them."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

PATIENCE = 90.0


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run on a real event loop; waiting too long is the failure."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(PATIENCE):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


class Seen(list[Any]):
    """A list that one can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = asyncio.Event()

    def add(self, what: Any) -> None:
        self.append(what)
        self._grown.set()

    async def until(self, count: int) -> list[Any]:
        """At least so many; the timeout of the test is the failure."""
        while len(self) < count:
            self._grown.clear()
            await self._grown.wait()
        return self


class Receiver:
    """One server. `answers` are given in turn, the last one for ever; it may hold them back."""

    def __init__(
        self,
        *answers: int,
        location: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.answers = list(answers) or [200]
        self.location = {"Location": location} if location else None
        self.seen = Seen()
        """Body, as text, of each request."""
        self.headers = Seen()
        self.callers: set[object] = set()
        """One for each connection that carried a request."""
        self.host = host
        self.port = port
        self.now = self.most = 0
        """Requests here at this moment, and at most."""
        self._open = asyncio.Event()
        self._open.set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/work"

    def hold(self) -> Self:
        """Answer nobody until `release`."""
        self._open.clear()
        return self

    def release(self) -> None:
        self._open.set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._receive)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self.host, self.port, backlog=1_024)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop_listening(self) -> None:
        """Connections that are open live on."""
        await self._site.stop()

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.headers.add(request.headers.copy())
            assert request.transport is not None
            self.callers.add(request.transport.get_extra_info("peername"))
            self.seen.add((await request.read()).decode())
            await self._open.wait()
            return await self._answer(request)
        finally:
            self.now -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer in _ODD:
            return await _ODD[answer](request)
        return web.Response(status=answer, headers=self.location)


async def _break_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def _talk_nonsense(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"this is no HTTP\r\n\r\n")
    return await _break_off(request)


async def _talk_on(request: web.Request) -> web.StreamResponse:
    """200, and then a body that does not end."""
    response = web.StreamResponse(status=200)
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


async def _answer_in_two(request: web.Request) -> web.StreamResponse:
    """200, and a little later what belongs to it."""
    response = web.StreamResponse(status=200)
    await response.prepare(request)
    await response.write(b"thank")
    await asyncio.sleep(0.01)
    await response.write(b" you")
    return response


async def _put_off(request: web.Request) -> web.StreamResponse:
    """That it may go on, again and again, and never an answer."""
    while request.transport is not None and not request.transport.is_closing():
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)
        await asyncio.sleep(0)
    return web.Response()


BREAK_OFF, NONSENSE, TALK_ON, IN_TWO, PUT_OFF = range(5)
_ODD = {
    BREAK_OFF: _break_off,
    NONSENSE: _talk_nonsense,
    TALK_ON: _talk_on,
    IN_TWO: _answer_in_two,
    PUT_OFF: _put_off,
}
