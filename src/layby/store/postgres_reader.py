"""Looks at a PostgreSQL database without changing it, and without an engine."""

from typing import Final

from layby.core.model import Millis
from layby.core.settings import Calendar, Settings
from layby.errors import StoreUnreadable
from layby.store.migrate import Schema, refuse_outdated
from layby.store.pages import PageReads
from layby.store.postgres import NOW, STORED_TIME
from layby.store.postgres_answers import AnswerWatch
from layby.store.postgres_connection import BY_INDEX, Connection, Connector
from layby.store.postgres_dialect import PostgresDialect
from layby.store.postgres_migrating import Migrating, asked, has_ledger, schema_in
from layby.store.postgres_session import PostgresSession, ReadingSession
from layby.store.sql import SqlStore

_READ_ONLY: Final = {**BY_INDEX, "default_transaction_read_only": "on"}


class ReadingDialect(PostgresDialect):
    """All that a transaction reads is as it was when it began, and nothing is written."""

    def session(self, connection: Connector) -> PostgresSession:
        return ReadingSession(connection)


class PostgresReader(PageReads, SqlStore):
    """Nobody waits for it, and it waits for nobody."""

    def __init__(self, url: str, settings: Settings, calendar: Calendar) -> None:
        self._watch = AnswerWatch(url)
        connector = Connector(url, self._watch, _READ_ONLY)
        try:
            asked(connector, url, _refuse_foreign_or_outdated)
        except BaseException:
            self._watch.stop()
            raise
        super().__init__(connector, ReadingDialect(), settings, calendar, connector.name)

    def close(self) -> None:
        super().close()
        self._watch.stop()

    def store_time(self) -> Millis:
        return self._session.row(STORED_TIME)[0]

    def now(self) -> Millis:
        """What time it is in the store."""
        return max(self._session.row(NOW)[0], self.store_time())


def schema_in_database(url: str) -> Schema:
    """What it has, and what opening it would do to it first; only reads."""
    with AnswerWatch(url) as watch:
        return asked(Connector(url, watch, _READ_ONLY), url, schema_in)


def _refuse_foreign_or_outdated(connection: Connection) -> None:
    if not has_ledger(connection):
        raise StoreUnreadable(
            "this is not a layby database: `layby migrate` makes it one, and so does opening it "
            "with a Runner or a server"
        )
    refuse_outdated(Migrating(connection))
