"""What a new SQLite file has in it: migrated once in a test process, and copied from then on.

To migrate one takes ten times as long as all else that opens it. Processes that tests start know
nothing of this: they migrate.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache

import pytest

from layby.store.dialect import SqliteDialect
from layby.store.migrate import Migration, known, migrate
from layby.store.shrinking import prepare_shrinking


def migrated() -> bytes:
    """An empty database with all that this version would bring it to."""
    return _migrated(known())


@cache
def _migrated(_known: tuple[Migration, ...]) -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare_shrinking(connection)
        migrate(connection, SqliteDialect())
        return connection.serialize()


@contextmanager
def copied_when_new() -> Iterator[None]:
    """Meanwhile, for every file that this process opens as a store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layby.store.sqlite.migrate", _copy_or_migrate)
        yield


def _copy_or_migrate(connection: sqlite3.Connection, dialect: SqliteDialect) -> list[Migration]:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not count:
        with closing(sqlite3.connect(":memory:")) as made:
            made.deserialize(migrated())
            made.backup(connection)
    return migrate(connection, dialect)
