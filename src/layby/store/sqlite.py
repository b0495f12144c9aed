"""Opens a SQLite file as a store: owned, migrated, durable."""

import sqlite3
from pathlib import Path
from typing import Final, Literal

from layby.core.rows import Calendar, Settings
from layby.errors import StoreUnreadable
from layby.store.dialect import SqliteDialect
from layby.store.failures import explained
from layby.store.migrate import migrate
from layby.store.ownership import Ownership
from layby.store.sql import SqlStore

Durability = Literal["full", "normal"]
OLDEST_SQLITE: Final = (3, 38, 0)
_DIALECT: Final = SqliteDialect()


class SqliteStore(SqlStore):
    """A SQL store that owns its file until it is closed."""

    def __init__(
        self,
        path: Path | str,
        settings: Settings,
        calendar: Calendar,
        durability: Durability = "full",
    ) -> None:
        self.path = Path(path)
        self._ownership = Ownership(self.path)
        try:
            connection = _connect(self.path, durability)
            super().__init__(connection, _DIALECT, settings, calendar)
        except BaseException:
            self._ownership.release()
            raise

    def close(self) -> None:
        super().close()
        self._ownership.release()


class SqliteReader(SqlStore):
    """Reads a file without owning or changing it; a running owner is not disturbed."""

    def __init__(self, path: Path | str, settings: Settings, calendar: Calendar) -> None:
        connection = _connect_readonly(Path(path))
        super().__init__(connection, _DIALECT, settings, calendar)


def _connect(path: Path, durability: Durability) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnreadable(
            f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or later is needed"
        )
    connection = sqlite3.connect(
        path, timeout=5, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {durability}")
        connection.execute("PRAGMA cache_size = -32768")
        migrate(connection, _DIALECT)
    except sqlite3.Error as error:
        connection.close()
        raise explained(error, str(path)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_readonly(path: Path) -> sqlite3.Connection:
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        connection.execute("SELECT count(*) FROM layby_migrations").fetchone()
    except sqlite3.Error as error:
        raise explained(error, str(path)) from error
    return connection
