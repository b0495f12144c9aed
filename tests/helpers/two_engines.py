"""Engines that share one PostgreSQL database, each with a writer thread of its own."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from typing import Any

from layby.clock import SystemClock
from layby.core.invariants import check
from layby.core.kinds import Command, Query
from layby.core.queries import SnapDebug
from layby.core.settings import Settings
from layby.core.state import State
from layby.engine.calendar import next_after
from layby.engine.engine import Engine, EngineConfig
from layby.engine.items import Item
from layby.errors import StoreUnavailable
from layby.store.postgres import PostgresStore
from tests.helpers.postgres import cluster, migrated_database
from tests.helpers.worlds import resolve

PATIENCE_S = 60.0
MEETING_S = 0.15


def told(engine: Engine, request: Command | Query) -> Any:
    """The data of an answer that must not be a refusal."""
    reply = engine.call(request)
    assert reply.is_ok, reply
    return reply.data


class Sharing:
    """Several engines on one database."""

    def __init__(self, stack: ExitStack, engines: int, settings: Settings) -> None:
        self.database = migrated_database()
        self.url = cluster().url(self.database)
        self.settings = settings
        self._stack = stack
        self.engines: list[Engine] = []
        for _ in range(engines):
            self.add()

    def add(self) -> Engine:
        engine = self._stack.enter_context(running(self.url, self.settings))
        self.engines.append(engine)
        return engine

    def together(self, *commands: Sequence[Command | Query]) -> list[list[Any]]:
        """Each engine gets its list, one request after the other, at the same time."""
        sent = [submit(engine, each) for engine, each in zip(self.engines, commands, strict=True)]
        return [[future.result(PATIENCE_S) for future in futures] for futures in sent]

    def meeting(
        self,
        first: Command,
        second: Command,
        meanwhile: Callable[[], object] = lambda: None,
        beside: Sequence[Command] = (),
    ) -> tuple[Any, Any]:
        """The second engine gets its command when the first has read, and has not yet written.

        The first waits a moment for the second to be done: whoever it locks out cannot be. Then
        something else may happen, before the first goes on. What is `beside` the second command is
        in one batch with it.
        """
        one, two = self.engines[:2]
        store: Any = one._store
        save, futures = store.save, []

        def saving(*arguments: Any) -> None:
            store.save = save
            futures.extend(submit_at_once(two, [second, *beside]))
            wait(futures, timeout=MEETING_S)
            meanwhile()
            save(*arguments)

        store.save = saving
        reply = one.call(first)
        return reply, futures[0].result(PATIENCE_S)

    def dump(self) -> State:
        reply = self.engines[0].call(SnapDebug())
        assert isinstance(reply.data, State)
        return reply.data

    def check(self) -> State:
        state = self.dump()
        assert check(state, self.engines[0].clock.now()) == []
        return state


def submit(engine: Engine, requests: Iterable[Command | Query]) -> list["Future[Any]"]:
    """Each alone and of a caller of its own, so that batches form as they come."""
    futures: list[Future[Any]] = []
    for request in requests:
        future: Future[Any] = Future()
        futures.append(future)
        engine.submit([Item(request, resolve, future, caller=future)])
    return futures


def submit_at_once(engine: Engine, requests: Iterable[Command | Query]) -> list["Future[Any]"]:
    """All in one batch."""
    futures = [(request, Future[Any]()) for request in requests]
    engine.submit([Item(request, resolve, each, caller=each) for request, each in futures])
    return [each for _, each in futures]


@contextmanager
def sharing(engines: int = 2, settings: Settings | None = None) -> Iterator[Sharing]:
    with ExitStack() as stack:
        yield Sharing(stack, engines, settings or Settings())


@contextmanager
def running(url: str, settings: Settings | None = None) -> Iterator[Engine]:
    """An engine on a database, with the database's clock."""
    store = PostgresStore(url, settings or Settings(), next_after)
    clock = store.clock_beside(SystemClock().elapsed)
    engine = Engine(store, clock, config=EngineConfig(debug=True))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def until_available(engine: Engine, request: Command | Query) -> Any:
    """The answer, as soon as the database is back."""
    while True:
        try:
            return engine.call(request)
        except StoreUnavailable:
            threading.Event().wait(0.05)
