"""Something that listens, in a thread and an event loop of its own; peers speak to it by hand."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import uvloop

from layby.delivery.routing import Router
from layby.local import LocalClient
from layby.server.app import HttpSettings
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.front import Front
from layby.server.listener import HttpListener, Limits
from layby.store.api import Store
from tests.helpers.worlds import World

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
PATIENCE_S = 90


class Place:
    """`run` does something in its loop. What it is, is put there by whoever opens it."""

    def __init__(self, loop: str) -> None:
        self.loop = LOOPS[loop]()
        self.port = 0
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        self.loop.call_soon_threadsafe(work, *args)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class ListenerPlace(Place):
    """A listener with any application."""

    async def open(self, app: Any, limits: Limits | None) -> None:
        self.listener = HttpListener(app, limits)
        self.port = await self.listener.listen("127.0.0.1", 0)


class FrontPlace(Place):
    """The whole HTTP surface on an engine whose clock stands still."""

    async def open(
        self,
        settings: HttpSettings | None = None,
        limits: Limits | None = None,
        auth: AuthConfig | None = None,
        wrap: Callable[[Store], Store] = lambda store: store,
        metrics: Any = None,
    ) -> None:
        self.router = Router()
        self.world = World(threaded=True, paused=False, now=1, delivery=self.router, wrap=wrap)
        self.client = LocalClient(self.world.engine)
        self.router.attach(self.world.engine, self.client)
        gate = Gate(auth or AuthConfig())
        self.front = Front(
            self.client, self.router, settings, gate=gate, limits=limits, metrics=metrics
        )
        self.port = await self.front.listener.listen("127.0.0.1", 0)

    async def close(self) -> None:
        await self.front.close(0)
        await self.client.close()
        self.world.engine.stop()


@contextmanager
def listening(
    app: Callable[[], Any], limits: Limits | None = None, loop: str = "uvloop"
) -> Generator[ListenerPlace]:
    place = ListenerPlace(loop)

    async def made() -> Any:
        return app()

    try:
        place.run(place.open(place.run(made()), limits))
        try:
            yield place
        finally:
            place.run(place.listener.close(0))
    finally:
        place.end()


@contextmanager
def fronting(loop: str = "uvloop", **options: Any) -> Generator[FrontPlace]:
    place = FrontPlace(loop)
    try:
        place.run(place.open(**options))
        try:
            yield place
        finally:
            place.run(place.close())
    finally:
        place.end()
