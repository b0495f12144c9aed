"""Opens a SQLite file as a store: owned, migrated, durable."""

import os
import sqlite3
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

from layby.core.changes import Changes
from layby.core.model import Millis
from layby.core.settings import Calendar, Settings
from layby.errors import StoreGone, StoreUnavailable, StoreUnreadable
from layby.store import wal_breaks
from layby.store.api import StoreConflict
from layby.store.checkpoints import Checkpoints
from layby.store.dialect import SqliteDialect
from layby.store.failures import explained, is_full
from layby.store.migrate import Schema, migrate, refuse_outdated, refuse_strangers, schema_of
from layby.store.own_file import OwnFile
from layby.store.ownership import Ownership, refuse_other_name
from layby.store.page_bounds import Pair, id_of, size_of
from layby.store.session import packed
from layby.store.shrinking import compact, excess_pages, prepare_shrinking, shrink
from layby.store.sql import SqlStore
from layby.store.sqlite_snapshots import SqliteSnapshots, TimedConnection

Durability = Literal["full", "normal"]
OLDEST_SQLITE: Final = (3, 38, 0)
_DIALECT: Final = SqliteDialect()


_ROW_NUMBERS: Final = """
    SELECT id, rowid FROM promises WHERE id IN (SELECT value FROM json_each(:ids))
"""


class SqliteStore(SqlStore):
    """A SQL store that owns its file until it is closed."""

    def __init__(
        self,
        path: Path | str,
        settings: Settings,
        calendar: Calendar,
        durability: Durability = "full",
        busy_ms: Millis = 5_000,
        *,
        is_server: bool = False,
    ) -> None:
        """`busy_ms`: how long to wait for another program that has locked the file."""
        self.path = Path(path)
        self._breaks = wal_breaks.of_file(self.path)
        self._durability = durability
        self._filling = Lock()
        with ExitStack() as undo:
            self._ownership = Ownership(self.path, is_server=is_server)
            undo.callback(self._ownership.release)
            connection = _connect(self.path, durability, busy_ms)
            undo.callback(connection.close)
            super().__init__(connection, _DIALECT, settings, calendar, str(self.path))
            self._ownership.confirm()
            self._own_file = OwnFile(self.path, self._ownership.database, connection)
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `_make_checkpoint`
            self._checkpoints = Checkpoints(self._connect_beside, self._own_file.is_copied)
            undo.pop_all()
        self._is_open = True

    def _as_long_as(self, compared: Collection[str], heavy: list[Pair]) -> list[Pair]:
        """How long a text is stands at its beginning: none is read for that."""
        lengths = {size_of(each) for each in compared}
        rows = dict(
            self._session.rows(_ROW_NUMBERS, {"ids": packed([id_of(each) for each in heavy])})
        )
        return [each for each in heavy if self._param_length(rows[id_of(each)]) in lengths]

    def _param_length(self, row: int) -> int:
        with self._connection.blobopen("promises", "param", row, readonly=True) as param:
            return len(param)

    @contextmanager
    def _within(self) -> Generator[None]:
        """A log that cannot grow on a full disk may begin anew instead, once it is copied: then
        what failed is done again.
        """
        try:
            with super()._within():
                yield
        except StoreUnavailable as error:
            if is_full(error) and not self._own_file.is_copied():
                self._checkpoints.make_here(self._connection)
                if self._own_file.is_copied():
                    raise StoreConflict(
                        "the disk was full, and there is room in the log"
                    ) from error
            raise

    def _begin(self) -> None:
        self._look_at_log()  # first: SQLite would take what it finds there for damage
        super()._begin()
        self._look()
        if self._own_file.is_apart:
            self._own_file.look_beside()

    def _commit(self) -> None:
        super()._commit()
        self._look_at_log()
        self._look(after_commit=True)
        self._own_file.look_beside()
        self._make_checkpoint()

    def _make_checkpoint(self) -> None:
        """SQLite would make it at the end of a commit, before anybody has looked at the log.

        It is made beside the writer, unless that cannot keep up: then everybody waits for it. What
        was committed is safe in the log if it fails, and the next commit tries again.
        """
        if not self._own_file.is_checkpoint_due():
            return
        if self._own_file.is_log_too_long():
            self._checkpoints.make_here(self._connection)
        else:
            self._checkpoints.ask()

    def _connect_beside(self) -> sqlite3.Connection:
        """For checkpoints."""
        with _opened(self.path, str(self.path), check_same_thread=False) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA synchronous = {self._durability}")
            self._own_file.look_at_path()
            return connection

    def open_reader(self, give_way: Callable[[], None]) -> SqliteSnapshots:
        own = self._own_file
        own.look_for_reader()
        connection = _connect_readonly(self.path, factory=TimedConnection, check_same_thread=False)
        assert isinstance(connection, TimedConnection)
        connection.give_way = give_way
        own.look_at_path()
        return SqliteSnapshots(connection, self._sql, self._name, self._breaks, own, self._filling)

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:
        """Without waiting for the disk if `lazily`; the order of commits stays what it was."""
        if lazily and self._durability != "normal":
            return self._lazily_within()
        return super().transaction()

    @contextmanager
    def _lazily_within(self) -> Generator[None]:
        self._connection.execute("PRAGMA synchronous = normal")
        try:
            with super().transaction():
                yield
        finally:
            self._connection.execute(f"PRAGMA synchronous = {self._durability}")

    def save(self, changes: Changes, now: Millis = 0) -> None:
        super().save(changes, now)
        if changes.deleted or changes.gives_room_back:
            shrink(self._connection)

    def has_room(self) -> bool:
        return excess_pages(self._connection) > 0

    def compact(self) -> None:
        """Write the file anew; needs as much room again beside it, and takes its time."""
        try:
            compact(self._connection)
        except sqlite3.Error as error:
            raise explained(error, self._name) from error

    def close(self) -> None:
        """Nothing is written to a file that is somebody else's by now."""
        if not self._is_open:
            return
        self._is_open = False
        self._checkpoints.close()
        try:
            self._look_at_log()
            self._look()
            is_ours = True
        except StoreGone:
            is_ours = False
            self._connection.interrupt()  # SQLite would copy its log into the file
        self._ownership.prepare_closing()
        super().close()
        self._own_file.close()
        self._ownership.release(is_clean=is_ours)

    def _look(self, *, after_commit: bool = False) -> None:
        try:
            self._own_file.look(after_commit=after_commit)
        except StoreGone:
            if self._own_file.is_overwritten:
                self._ownership.disown_log()
            raise

    def _look_at_log(self) -> None:
        try:
            self._own_file.look_at_log()
        except StoreGone:
            self._ownership.disown_log()
            raise


class SqliteReader(SqlStore):
    """Reads a file without owning or changing it; a running owner is not disturbed."""

    def __init__(self, path: Path | str, settings: Settings, calendar: Calendar) -> None:
        refuse_other_name(Path(path))
        connection = _connect_readonly(Path(path))
        super().__init__(connection, _DIALECT, settings, calendar, str(path))


def _connect(path: Path, durability: Durability, busy_ms: Millis) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnreadable(
            f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or later is needed"
        )
    with _opened(path, str(path), timeout=busy_ms / 1000, check_same_thread=False) as connection:
        _refuse_other_programs(connection)
        prepare_shrinking(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {durability}")
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute(f"PRAGMA journal_size_limit = {wal_breaks.KEPT_BYTES}")
        migrate(connection, _DIALECT)
        return connection


def schema_in_file(path: Path | str) -> Schema:
    """What it has, and what opening it would do to it first; only reads."""
    with closing(_connect_readonly(Path(path), refuse_strangers)) as connection:
        return schema_of(connection)


def _connect_readonly(
    path: Path,
    refuse: Callable[[sqlite3.Connection], object] = refuse_outdated,
    **options: Any,
) -> sqlite3.Connection:
    database = f"{path.resolve().as_uri()}?{_read_mode(path)}"
    with _opened(path, database, uri=True, **options) as connection:
        if _is_empty(path) or "layby_migrations" not in _tables(connection):
            raise StoreUnreadable("this is not a layby database: give another path")
        refuse(connection)
        return connection


def _is_empty(path: Path) -> bool:
    """Asked before anything is read: SQLite removes the log of a database that is empty."""
    try:
        return not path.stat().st_size
    except OSError:
        return False  # SQLite says more


def _read_mode(path: Path) -> str:
    """SQLite reads a WAL database only with a file beside it; if none can be, nobody is writing."""
    is_at_rest = not path.with_name(f"{path.name}-wal").exists()
    by_effect = os.access in os.supports_effective_ids
    may_write = os.access(path.parent, os.W_OK, effective_ids=by_effect)
    return "immutable=1" if is_at_rest and not may_write else "mode=ro"


@contextmanager
def _opened(path: Path, database: str, **options: Any) -> Generator[sqlite3.Connection]:
    """A failure names the file, and the connection does not outlive it."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            database, isolation_level=None, cached_statements=512, **options
        )
        yield connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explained(error, str(path)) from error
        if isinstance(error, StoreUnreadable):
            raise StoreUnreadable(f"{path}: {error}") from error
        raise


def _refuse_other_programs(connection: sqlite3.Connection) -> None:
    """Before anything is written: a wrong path must not add our tables to somebody else's file."""
    tables = _tables(connection)
    if tables and "layby_migrations" not in tables:
        why = f"this database belongs to another program (it has a table {min(tables)})"
        raise StoreUnreadable(f"{why}: give another path")


def _tables(connection: sqlite3.Connection) -> set[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in found}
