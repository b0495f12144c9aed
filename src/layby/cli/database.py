"""How a command reaches a PostgreSQL database: it looks by itself, and writes with an engine."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from layby.client.first_answer import told_if_silent
from layby.client.made_beside import made_beside
from layby.clock import SystemClock
from layby.core import validate
from layby.core.commands import Command, GetPromise, GetSchedule, GetTask, Prune
from layby.core.model import Millis
from layby.core.queries import Query
from layby.core.replies import Reply, refuse
from layby.core.settings import Settings
from layby.engine.batch import apply
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.opening import clock_of, needing_psycopg, open_store, shown
from layby.local import LocalClient
from layby.store.migrate import Migration, Schema
from layby.store.sql import SqlStore

if TYPE_CHECKING:
    from layby.store.postgres_reader import PostgresReader

T = TypeVar("T")

READS: Final = (Query, GetPromise, GetTask, GetSchedule)


def is_read(request: Command | Query) -> bool:
    """It changes nothing, so it needs no engine."""
    return isinstance(request, READS) or (isinstance(request, Prune) and request.dry_run)


def look(reader: SqlStore, request: Command | Query, clock: Callable[[], Millis]) -> Reply:
    """Answer a read without an engine. `clock` is asked within the transaction."""
    if (wrong := validate.problems(request)) is not None:
        return refuse(400, wrong)
    with reader.transaction():
        now = clock()
        if isinstance(request, Command):
            return apply(reader, [(request, now)], now).replies[0]
        return request.read(reader, now)


class DatabaseClient:
    """Nobody owns the database, so this process is one of many for a moment."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reader: PostgresReader | None = None
        self._engine: Engine | None = None
        self._own: LocalClient | None = None
        self._one_at_a_time = asyncio.Lock()

    async def send(self, request: Command | Query) -> Reply:
        async with self._one_at_a_time:
            if self._own is None and is_read(request):
                return await self._look(request)
            own = self._own = self._own or await self._open()
        return await own.send(request)

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()
        if self._engine is not None:
            self._engine.leave()
        if self._reader is not None:
            self._reader.close()

    async def _look(self, request: Command | Query) -> Reply:
        """Beside the event loop, which hears Ctrl-C. A read that is left goes on for a while."""
        reader, self._reader = self._reader, None
        read = partial(self._read, reader, request)
        self._reader, reply = await _waited_for(self._url, read, lambda made: made[0].close())
        return reply

    def _read(
        self, reader: "PostgresReader | None", request: Command | Query
    ) -> "tuple[PostgresReader, Reply]":
        reader = reader or open_reader(self._url)
        try:
            return reader, look(reader, request, reader.now)
        except BaseException:
            reader.close()
            raise

    async def _open(self) -> LocalClient:
        self._engine = await made_beside(self._open_engine, Engine.leave)
        return LocalClient(self._engine)

    def _open_engine(self) -> Engine:
        store = open_store(self._url, "full", Settings())
        try:
            engine = Engine(store, clock_of(store, SystemClock()))
            engine.start()
        except BaseException:
            store.close()
            raise
        return engine


def open_reader(url: str) -> "PostgresReader":
    with needing_psycopg():
        from layby.store.postgres_reader import PostgresReader  # noqa: PLC0415 - needs an extra
    return PostgresReader(url, Settings(), next_after)


def opened_reader(url: str) -> "PostgresReader":
    """The same for a command that has no event loop."""
    return asyncio.run(_waited_for(url, partial(open_reader, url), lambda reader: reader.close()))


def schema_in(url: str) -> Schema:
    with needing_psycopg():
        from layby.store.postgres_reader import schema_in_database  # noqa: PLC0415 - needs an extra
    return asyncio.run(_waited_for(url, partial(schema_in_database, url), _leaves_nothing))


async def _waited_for(url: str, make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Whoever sits before it is told if it takes long, and Ctrl-C ends it at once."""
    with told_if_silent(shown(url)):
        return await made_beside(make, undo)


def _leaves_nothing(_: Schema) -> None:
    """There is nothing to undo."""


def migrate_in(url: str, told: Callable[[str], None]) -> list[Migration]:
    """What was applied; `told` hears what keeps it waiting."""
    with needing_psycopg():
        from layby.store.postgres_migrating import prepare_schema  # noqa: PLC0415 - needs an extra
    return prepare_schema(url, told)
