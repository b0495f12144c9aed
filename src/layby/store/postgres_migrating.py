"""Migrates a PostgreSQL database that others use meanwhile.

Each migration is a transaction of its own. One that cannot lock its tables at once steps back and
tries again: whoever comes after it would have to wait behind it, even to read.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from time import monotonic
from typing import Any, Final, NoReturn, TypeVar

import psycopg

from layby.core.pauses import Pauses
from layby.errors import StoreBusy, StoreUnreadable
from layby.store.migrate import Migration, Schema, migrate, no_schema, schema_of
from layby.store.postgres_address import without_password
from layby.store.postgres_answers import AnswerWatch
from layby.store.postgres_connection import Connection, Connector
from layby.store.postgres_dialect import SCHEMA, PostgresDialect
from layby.store.postgres_failures import explained_at_once

logger = logging.getLogger(__name__)
T = TypeVar("T")
Told = Callable[[str], object]
"""Takes a sentence about what keeps it waiting."""

PATIENCE_S: Final = 300.0
"""For how long one migration tries to lock its tables."""
_PAUSES: Final = Pauses(0.25, longest=10.0)
_SETTINGS: Final = {"lock_timeout": "10s", "statement_timeout": "0"}
TOLD_AFTER: Final = "1s"
"""How soon somebody is told that another process migrates the database."""
_LOCK: Final = 0x6C617962_79
"""Of the advisory lock under which a database is migrated. Waiting for it keeps nobody waiting."""
TAKE_TURN: Final = f"SELECT pg_advisory_lock({_LOCK})"
_LEDGER: Final = "layby_migrations"
_HAS_SCHEMA: Final = f"SELECT to_regnamespace('{SCHEMA}') IS NOT NULL"
_DIALECT: Final = PostgresDialect()
_IN_THE_WAY: Final = """
    SELECT pid, application_name, CAST(extract(epoch FROM now() - xact_start) AS bigint)
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 1
"""


def prepare_schema(url: str, told: Told = logger.warning) -> list[Migration]:
    """Bring the database to the schema this version knows; what was applied here."""

    def prepared(connection: Connection) -> list[Migration]:
        if not schema_in(connection).missing:
            return []
        return _Migrator(connection, without_password(url), told).apply_all()

    with AnswerWatch(url) as watch:
        return asked(Connector(url, watch, _SETTINGS), url, prepared)


def asked(connector: Connector, url: str, ask: Callable[[Connection], T]) -> T:
    """Through a connection of its own; who fails is told which database it is about."""
    with connector.connect() as connection:
        try:
            return ask(connection)
        except psycopg.Error as error:
            raise explained_at_once(error, connector.name, url) from error
        except StoreUnreadable as error:
            raise StoreUnreadable(f"{connector.name}: {error}") from error


def schema_in(connection: Connection) -> Schema:
    """Only reads, so it needs no right to change anything."""
    if not has_ledger(connection):
        tables = _tables(connection)
        if not tables:
            return no_schema()
        if _LEDGER not in tables:  # else another process has made it since we looked
            _refuse_other_program(min(tables))
    return schema_of(Migrating(connection))


def has_ledger(connection: Connection) -> bool:
    name = f"{SCHEMA}.{_LEDGER}"
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
    return row is not None and bool(row[0])


class Migrating:
    """A connection as `migrate` uses it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def execute(self, statement: str, arguments: Sequence[object] = (), /) -> Any:
        text = statement.replace("?", "%s") if arguments else statement
        return self._connection.execute(text, arguments or None)  # pyright: ignore[reportArgumentType] - texts of our own


class _Migrator:
    def __init__(self, connection: Connection, name: str, told: Told) -> None:
        self._connection = connection
        self._name = name
        self._told = told
        self._pausing = threading.Event()
        """Never set: waiting for it is a pause."""
        self._is_new = False
        """Of a database without tables one line is told, not one for each migration."""

    def apply_all(self) -> list[Migration]:
        """Others may have applied some, or all, when it is our turn."""
        self._take_turn()
        if Migrating(self._connection).execute(_HAS_SCHEMA).fetchone() == (False,):
            Migrating(self._connection).execute(f"CREATE SCHEMA {SCHEMA}")  # needs its own right
        applied: list[Migration] = []
        began = monotonic()
        self._is_new = schema_in(self._connection).version == 0
        while missing := schema_in(self._connection).missing:
            applied += self._apply(missing[0])
        if applied and applied[0].version == 1:
            newest, took = applied[-1].version, monotonic() - began
            logger.info("%s: tables made, schema %d, %.1f s", self._name, newest, took)
        return applied

    def _take_turn(self) -> None:
        """The lock is released with the connection."""
        migrating = Migrating(self._connection)
        usual = _SETTINGS["lock_timeout"]
        for limit in chain((TOLD_AFTER,), repeat(usual)):
            migrating.execute(f"SET lock_timeout = '{limit}'")
            try:
                migrating.execute(TAKE_TURN)
            except psycopg.errors.LockNotAvailable:
                self._told(f"{self._name}: another process migrates it: waiting")
            else:
                migrating.execute(f"SET lock_timeout = '{usual}'")
                return

    def _apply(self, migration: Migration) -> list[Migration]:
        began = monotonic()
        for number, pause in enumerate(_PAUSES, 1):
            try:
                applied = migrate(Migrating(self._connection), _DIALECT, 1)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as busy:
                self._step_back(migration, monotonic() - began, number, busy)
                self._pausing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - a pause
            else:
                took = monotonic() - began
                level = logging.DEBUG if self._is_new else logging.INFO
                logger.log(level, "%s: %s applied, %.1f s", self._name, migration.title, took)
                return applied
        raise AssertionError  # pauses never end

    def _step_back(
        self, migration: Migration, seconds: float, number: int, busy: Exception
    ) -> None:
        why = f"{self._name}: {migration.title} cannot lock its tables ({self._in_the_way()})"
        if seconds > PATIENCE_S:
            remedy = "end what holds them, then start again or run `layby migrate`"
            raise StoreBusy(f"{why}, for {seconds:.0f} s now: {remedy}") from busy
        self._told(f"{why}: nobody waits for it; it tries again, {number} so far")

    def _in_the_way(self) -> str:
        """A guess, but nearly always right: whoever has a transaction open for the longest time."""
        row = self._connection.execute(_IN_THE_WAY).fetchone()
        if row is None:
            return "others use them"
        pid, program, seconds = row
        who = f"process {pid} of the database, {program or 'unnamed'}"
        return f"{who}, has been in a transaction for {seconds} s"


def _tables(connection: Connection) -> set[str]:
    found = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s", (SCHEMA,)
    ).fetchall()
    return {name for (name,) in found}


def _refuse_other_program(table: str) -> NoReturn:
    why = f"its schema {SCHEMA} belongs to another program (it has a table {table})"
    raise StoreUnreadable(f"{why}: give another database")
