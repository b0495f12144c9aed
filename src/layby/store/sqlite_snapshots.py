"""Reads of a SQLite file beside its writer: in WAL mode neither waits for the other."""

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock
from time import monotonic, sleep  # noqa: TID251 - it lets others have the interpreter
from typing import Any, Final

from layby.errors import ReadRefused
from layby.store.own_file import OwnFile
from layby.store.page_bounds import PAGE_BYTES
from layby.store.sql_reads import SqlReads
from layby.store.sqlite_session import SqliteSession
from layby.store.statements import Statements
from layby.store.wal_breaks import WalBreaks

STEPS: Final = 100_000
"""Steps of SQLite's machine between two looks at the clock: some milliseconds."""
PAUSE_S: Final = 0.0001
"""After each piece of a large text. A thread that leaves the interpreter only while it reads has it
again before those who wait for it are awake: they would get it once in a switch interval.
"""


class TimedConnection(sqlite3.Connection):
    """Ends what it is asked when its time is over: between two statements, and within one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._until = inf
        self._is_over = False
        self.give_way: Callable[[], None] = lambda: None
        self.set_progress_handler(self._look, STEPS)

    def begin(self, seconds: float) -> None:
        self._until, self._is_over = monotonic() + seconds, False

    def end(self) -> bool:
        """Whether the time was over before the end."""
        self._until = inf
        return self._is_over

    def execute(self, *given: Any) -> sqlite3.Cursor:
        if self._look():
            raise sqlite3.OperationalError("interrupted")
        found = super().execute(*given)
        self.give_way()
        return found

    def between_pieces(self) -> None:
        if self._look():
            raise sqlite3.OperationalError("interrupted")
        self.give_way()
        sleep(PAUSE_S)

    def _look(self) -> bool:
        """Says so only once: a transaction that was ended must still be rolled back."""
        if monotonic() < self._until:
            return False
        self._until, self._is_over = inf, True
        return True


class SqliteSnapshots(SqlReads):
    """See `api.StoreReader`. `own_file`: the file that was opened, which may be taken away."""

    def __init__(
        self,
        connection: TimedConnection,
        sql: Statements,
        name: str,
        breaks: WalBreaks,
        own_file: OwnFile,
        filling: Lock,
    ) -> None:
        """`filling`: who has it loads texts; all readers of a file share it."""
        session = SqliteSession(connection, "BEGIN", connection.between_pieces)
        super().__init__(session, sql, name)
        self._filling = filling
        self._timed = connection
        self._breaks = breaks
        self._own_file = own_file

    @contextmanager
    def snapshot(self, seconds: float) -> Generator["SqliteSnapshots"]:
        with self._breaks.snapshot(), self._timed_snapshot(seconds):
            yield self

    def _texts_of(
        self,
        table: str,
        columns: tuple[str, ...],
        ids: Sequence[str],
        most: int = PAGE_BYTES,
    ) -> list[tuple[str, ...]]:
        """One reader at a time: several that load megabytes would take the processors from all."""
        with self._filling:
            return super()._texts_of(table, columns, ids, most)

    def _begin(self) -> None:
        self._own_file.look_for_reader()
        super()._begin()

    def _commit(self) -> None:
        super()._commit()
        self._own_file.look_for_reader()

    @contextmanager
    def _timed_snapshot(self, seconds: float) -> Generator[None]:
        self._timed.begin(seconds)
        try:
            with self._within():
                self._timed.execute(self._sql.store_time)  # the first read takes the snapshot
                yield
        except Exception as error:
            if self._timed.end():
                raise ReadRefused(f"It took longer than {seconds:g} s: ask for less") from error
            raise
        finally:
            self._timed.end()
