"""How a command reaches a PostgreSQL database: it looks by itself, and writes with an engine."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

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
from layby.engine.opening import clock_of, needing_psycopg, open_store
from layby.local import LocalClient
from layby.store.migrate import Migration, Schema
from layby.store.sql import SqlStore

if TYPE_CHECKING:
    from layby.store.postgres_reader import PostgresReader

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

    async def send(self, request: Command | Query) -> Reply:
        if self._own is None and is_read(request):
            return self._look(request)
        return await self._opened().send(request)

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()
        if self._engine is not None:
            self._engine.stop()
        if self._reader is not None:
            self._reader.close()

    def _look(self, request: Command | Query) -> Reply:
        reader = self._reader = self._reader or open_reader(self._url)
        return look(reader, request, reader.now)

    def _opened(self) -> LocalClient:
        if self._own is None:
            store = open_store(self._url, "full", Settings())
            self._engine = Engine(store, clock_of(store, SystemClock()))
            self._engine.start()
            self._own = LocalClient(self._engine)
        return self._own


def open_reader(url: str) -> "PostgresReader":
    with needing_psycopg():
        from layby.store.postgres_reader import PostgresReader  # noqa: PLC0415 - needs an extra
    return PostgresReader(url, Settings(), next_after)


def schema_in(url: str) -> Schema:
    with needing_psycopg():
        from layby.store.postgres_reader import schema_in_database  # noqa: PLC0415 - needs an extra
    return schema_in_database(url)


def migrate_in(url: str, told: Callable[[str], None]) -> list[Migration]:
    """What was applied; `told` hears what keeps it waiting."""
    with needing_psycopg():
        from layby.store.postgres_migrating import prepare_schema  # noqa: PLC0415 - needs an extra
    return prepare_schema(url, told)
