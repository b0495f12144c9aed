"""How SqlPoll is asked: one query, read-only and bounded, on a connection that has a name."""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final
from urllib.parse import quote

from layby.errors import TriggerError
from layby.store.postgres_address import is_postgres
from layby.trigger_manager.access_checks import AccessChecks
from layby.trigger_manager.foreign_numbers import as_text
from layby.triggers.built_in import SqlPoll

MAX_IDLE: Final = 4
"""Connections of one name that are kept open between polls."""
MAX_VALUE_CHARS: Final = 100_000
MAX_COLUMNS: Final = 100
MAX_BYTES: Final = 1_000_000
"""Of each value that a query of SQLite handles, and of the row that PostgreSQL sends. Who may
start a task must not fill the memory of whoever polls for it."""
_FIRST_ROW: Final = b"""
SELECT q.* FROM (SELECT * FROM (
%s
) r LIMIT 1) q
WHERE CASE WHEN octet_length(q::text) <= %d THEN true
ELSE (left(q::text, 0) || 'the row is longer than %d bytes: select less')::boolean END
"""
"""The cast always fails: its error is how a row can be refused where it is made. It is not a
constant, which PostgreSQL would look at before there is any row."""
_PROGRESS_STEPS: Final = 10_000
_PLAIN: Final = (bool, int, float, dict, list)


class SqlPolls:
    """Its questions block, and come from any thread."""

    def __init__(self, checks: AccessChecks) -> None:
        self._checks = checks
        self._idle: dict[str, deque[Any]] = {}
        self._lock = threading.Lock()

    def ask(self, trigger: SqlPoll) -> dict[str, Any] | None:
        address = self._checks.connection(trigger.connection)
        if is_postgres(address):
            row = self._ask_postgres(address, trigger)
        else:
            row = _ask_sqlite(address.removeprefix("sqlite:"), trigger)
        if row is None or (trigger.until is not None and not trigger.until.holds(row)):
            return None
        return as_text(row)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in (each for kept in idle.values() for each in kept):
            with suppress(Exception):
                connection.close()

    def _ask_postgres(self, address: str, trigger: SqlPoll) -> dict[str, Any] | None:
        import psycopg  # noqa: PLC0415 - an extra

        connection = self._kept(address) or psycopg.connect(
            address, autocommit=True, connect_timeout=max(2, round(trigger.timeout))
        )
        try:
            with connection.transaction():
                connection.execute("SET TRANSACTION READ ONLY")
                limit = str(round(trigger.timeout * 1000))
                connection.execute("SELECT set_config('statement_timeout', %s, true)", [limit])
                found = _first_of(connection, trigger)
                row = found.fetchone()
                columns = [each.name for each in found.description or ()]
        except psycopg.Error as error:
            connection.close()
            raise TriggerError(f"{type(error).__name__}: {_first_line(error)}") from None
        except BaseException:
            connection.close()
            raise
        self._keep(address, connection)
        return None if row is None else _plain(columns, row)

    def _kept(self, address: str) -> Any:
        with self._lock:
            kept = self._idle.get(address)
            while kept:
                connection = kept.popleft()
                if not connection.closed:
                    return connection
        return None

    def _keep(self, address: str, connection: Any) -> None:
        with self._lock:
            kept = self._idle.setdefault(address, deque())
            if len(kept) < MAX_IDLE:
                kept.append(connection)
                return
        connection.close()


def _first_of(connection: Any, trigger: SqlPoll) -> Any:
    """At most one row is sent, and none that is too long.

    The cursor is not read: it makes sure that the text is one query by itself, so it cannot close
    the parenthesis it is put into. Prepared: only then does the server refuse a second statement
    behind the first, which could end this transaction and begin one that writes.
    """
    query, params = trigger.query.strip().removesuffix(";").encode(), trigger.params or None
    connection.execute(b"DECLARE layby_poll CURSOR FOR " + query, params, prepare=True)
    bounded = _FIRST_ROW.replace(b"%d", str(MAX_BYTES).encode()).replace(b"%s", query)
    return connection.execute(bounded, params, prepare=True)


def _ask_sqlite(path: str, trigger: SqlPoll) -> dict[str, Any] | None:
    """A file that is not there yet is an error, and is not created."""
    until = time.monotonic() + trigger.timeout
    uri = f"file:{quote(path)}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=trigger.timeout)) as database:
            database.execute("PRAGMA query_only = on")
            database.execute("SELECT 1 FROM sqlite_master").close()  # wide tables are known by now
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
            database.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MAX_COLUMNS)
            database.set_authorizer(_only_reads)
            database.set_progress_handler(_is_late(until), _PROGRESS_STEPS)
            found = database.execute(trigger.query, trigger.params)
            row = found.fetchone()
            columns = [each[0] for each in found.description or ()]
    except sqlite3.Error as error:
        raise TriggerError(f"{type(error).__name__}: {_first_line(error)}") from None
    if not columns:
        raise TriggerError("the query has no columns: write a SELECT")
    return None if row is None else _plain(columns, row)


def _only_reads(action: int, *_: object) -> int:
    """ATTACH would reach any other file, and PRAGMA would undo what was set."""
    allowed = (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


def _is_late(until: float) -> Callable[[], bool]:
    return lambda: time.monotonic() > until


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _plain(columns: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    """As JSON has it: dates, numbers of any length and bytes become text."""
    return {name: _value(each) for name, each in zip(columns, row, strict=True)}


def _value(value: Any) -> Any:
    if value is None or type(value) in _PLAIN:
        return value  # of a JSON column, too
    if type(value) in (bytes, bytearray, memoryview):
        value = bytes(value).hex()
    text: str = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if len(text) > MAX_VALUE_CHARS:
        raise TriggerError(f"a column is longer than {MAX_VALUE_CHARS} characters: select less")
    return text
