"""The links of workers whose engine runs in their own process."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from layby.client.patience import send_until_answered
from layby.clock import Clock, SystemClock, virtual_clock
from layby.core.address import OWN_GROUP
from layby.core.model import Millis, Promise
from layby.core.queries import Execute
from layby.core.settings import Settings
from layby.delivery.routing import Router
from layby.engine.engine import Engine
from layby.engine.opening import clock_of, is_file, open_store, path_of
from layby.engine.outbox import Outgoing
from layby.engine.switch_interval import lower_switch_interval, restore_switch_interval
from layby.local import LocalClient
from layby.runner.private_socket import PrivateSocket
from layby.store.sqlite import Durability
from layby.worker.thread_call import in_own_thread
from layby.worker.worker import Worker


class EngineLink:
    """A worker beside an engine that somebody else has opened, in the same event loop.

    It needs no heartbeat: it dies with whoever owns the file.
    """

    is_embedded = True
    is_shared = False
    """Whether others than this user's processes can write to the store."""

    def __init__(self, engine: Engine, router: Router, client: LocalClient, clock: Clock) -> None:
        self.engine = engine
        self.router = router
        self.client = client
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._router_loop = self._loop

    def now(self) -> Millis:
        return self.engine.clock.now()

    def elapsed(self) -> Millis:
        return self._clock.elapsed()

    async def greet(self) -> None:
        """Nobody has to be asked: the engine is here."""

    async def opened(self) -> None:
        """Return when nothing of the opening is left to do."""

    def beside(self) -> "EngineLink":
        """The link for another worker of this process, in the loop that it is asked for in."""
        if asyncio.get_running_loop() is self._loop:
            return self
        link = self._beside()
        link._router_loop = self._router_loop  # noqa: SLF001 - it is of the same class
        return link

    def _beside(self) -> "EngineLink":
        return EngineLink(self.engine, self.router, LocalClient(self.engine), self._clock)

    async def join(self, worker: Worker) -> None:
        """From now on the worker is told when it loses a task, and what people decide."""
        if self._loop is self._router_loop:
            self.router.connect(WorkerInbox(worker, self.router, worker.lost, worker.told))
            worker.calls.source = CallInbox(worker, self.router)
        else:  # one that serves no calls
            lost = partial(_call_later, self._loop, worker.lost)
            told = partial(_call_later, self._loop, worker.told)
            inbox = WorkerInbox(worker, self.router, lost, told)
            self._router_loop.call_soon_threadsafe(self.router.connect, inbox)

    async def close(self) -> None:
        """Whoever has opened the engine closes it."""


def open_engine(address: str, durability: Durability, settings: Settings, router: Router) -> Engine:
    """On its store, and started; in any thread."""
    clock = virtual_clock.get()
    store = open_store(address, durability, settings)
    try:
        engine = Engine(store, clock or clock_of(store, SystemClock()), router)
        if clock is None:
            engine.start()
        else:
            engine.start_inline()
    except BaseException:
        store.close()
        raise
    return engine


class EmbeddedLink(EngineLink):
    """Create it in the event loop it is used in."""

    def __init__(
        self,
        address: str,
        engine: Engine,
        router: Router,
        switch_interval: float | None,
        *,
        socket: bool,
    ) -> None:
        """`engine`: started on the store at this address, and it delivers to the router."""
        clock = virtual_clock.get()
        super().__init__(engine, router, LocalClient(engine), clock or SystemClock())
        self._switch_interval = None if engine.is_inline else switch_interval
        if self._switch_interval is not None:
            lower_switch_interval(self._switch_interval)
        router.attach(engine, self.client)
        self._socket: PrivateSocket | None = None
        if socket and clock is None and is_file(address):
            self._socket = PrivateSocket(path_of(address), self.client, self.router)

    async def opened(self) -> None:
        if self._socket is not None:
            await self._socket.opened()

    async def close(self) -> None:
        """Whoever is cancelled meanwhile gives the store up all the same."""
        try:
            if self._socket is not None:
                await self._socket.close()
            await self.client.close()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        if self.engine.is_inline:
            self.engine.stop()
            return
        try:
            await in_own_thread(self.engine.leave)
        finally:
            if self._switch_interval is not None:
                restore_switch_interval(self._switch_interval)


class WorkerInbox:
    """A `Receiver` in this process: always connected, always with room."""

    has_room = True

    def __init__(
        self,
        worker: Worker,
        router: Router,
        lost: Callable[[str, int], None],
        told: Callable[[Promise], None],
    ) -> None:
        self.group = f"{OWN_GROUP}{worker.config.group}"
        self.id = worker.config.pid
        self._router = router
        self._lost = lost
        self._told = told

    def receive(self, outgoing: Outgoing) -> None:
        if outgoing.message.kind == "lost":
            self._lost(outgoing.message.id, outgoing.message.version)
        elif outgoing.promise is not None:
            self._told(outgoing.promise)
        self._router.arrived([outgoing])


class CallInbox:
    """While open, the `Receiver` of executes for the functions this process serves."""

    has_room = True

    def __init__(self, worker: Worker, router: Router) -> None:
        self.group = worker.config.group
        self.id = worker.config.pid
        self._worker = worker
        self._router = router

    def open(self) -> None:
        """Registers as a holder, so that the next owner of the file can tell that it is dead."""
        worker = self._worker
        worker.spawn(send_until_answered(worker.client, worker.registration()))
        self._router.connect(self)

    def close(self) -> None:
        self._router.disconnect(self)

    def decline(self, task: Execute) -> None:
        self._router.decline(task.id, task.version, task.target, self.id)

    def receive(self, outgoing: Outgoing) -> None:
        if outgoing.message.kind == "execute":
            self._worker.calls.on_execute(outgoing.message.id, outgoing.message.version)
        self._router.arrived([outgoing])


def _call_later(
    loop: asyncio.AbstractEventLoop, inform: Callable[..., None], *about: object
) -> None:
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(inform, *about)
