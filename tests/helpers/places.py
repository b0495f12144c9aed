"""Where a test keeps its runs: in the file it names, or in a PostgreSQL database in its place.

Tests name files (`sqlite:PATH`) or nothing at all (`memory:`). While `on_postgres` lasts, each of
these addresses is the URL of a database before any of our code has seen it: so the same test, as it
stands, is one of `Runner("postgresql://…")` or of a server on that database.
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import dict_row

from layby.cli.doctor import examine, examine_database
from layby.clock import virtual_clock
from layby.core.invariants import Violation
from layby.core.settings import Settings
from layby.core.state import State
from layby.engine import opening
from layby.engine.calendar import next_after
from layby.server.server import Server
from layby.server.server_config import ServerConfig
from layby.store.postgres_dialect import SCHEMA
from layby.store.postgres_reader import PostgresReader
from layby.store.sqlite import SqliteReader
from layby.testing import virtual_test
from tests.helpers.postgres import cluster, migrated_database

ALL_ON_POSTGRES: Final = os.environ.get("LAYBY_TEST_STORE") == "postgres"
"""`make test-postgres`: every test that can."""

_free: list[str] = []
"""Databases that no test uses now: they have our tables, and nothing in them."""


class Databases:
    """Those of one test, by the files they stand for; and of the fixtures that outlive it."""

    def __init__(self, outer: "Databases | None" = None) -> None:
        self._outer = outer
        self._names: dict[object, str] = {}

    def url(self, address: str) -> str:
        """Each `memory:` is another one; a file is the same in all its spellings."""
        is_named = opening.is_file(address)
        key = opening.path_of(address).resolve() if is_named else object()
        return cluster().url(self._found(key) or self._names.setdefault(key, _unused()))

    def _found(self, key: object) -> str | None:
        if key in self._names:
            return self._names[key]
        return None if self._outer is None else self._outer._found(key)

    def give_back(self) -> None:
        for name in self._names.values():
            _empty(name)
            _free.append(name)


_databases: Databases | None = Databases() if ALL_ON_POSTGRES else None


@contextmanager
def on_postgres() -> Iterator[None]:
    """Whatever names a file or memory meanwhile gets a database, which is empty at first."""
    global _databases
    outer, _databases = _databases, Databases(_databases)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("layby.runner.runner.check_address", _checked)
            patch.setattr(Server, "__init__", _serving)
            yield
    finally:
        made, _databases = _databases, outer
        made.give_back()


def address_of(file: Path | str) -> str:
    """For a Runner or a server in another process."""
    address = f"sqlite:{file}"
    return address if _databases is None else _databases.url(address)


def state_of(file: Path) -> State:
    """All that is stored, read beside whoever writes it."""
    if _databases is None:
        reader = SqliteReader(file, Settings(), next_after)
    else:
        reader = PostgresReader(address_of(file), Settings(), next_after)
    try:
        with reader.transaction():
            return reader.dump()
    finally:
        reader.close()


def violations(file: Path) -> list[Violation]:
    """What `layby doctor` finds wrong."""
    if _databases is None:
        return examine(file, limit=0).violations
    return examine_database(address_of(file), 0, lambda _done, _total: None).violations


def rows_of(file: Path, query: str) -> list[dict[str, Any]]:
    """What somebody sees who looks into it with SQL."""
    if _databases is None:
        with closing(sqlite3.connect(file)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]
    with psycopg.connect(address_of(file), options=f"-c search_path={SCHEMA}") as connection:
        return connection.cursor(row_factory=dict_row).execute(query.encode()).fetchall()


def program_of(file: Path, folder: Path) -> Path:
    """A script with databases where it names files or memory; a copy, or itself if all stays.

    What the script makes up as it runs (a folder of its own, memory) is new each time.
    """
    if _databases is None:
        return file
    text = _ADDRESS.sub(lambda found: repr(_stand_in(found[1], folder)), file.read_text())
    memory = _databases.url("memory:")
    text = text.replace("layby.run(flow, ", f"layby.run(flow, address={memory!r}, context=")
    copy = folder / file.name
    copy.write_text(text)
    return copy


def _stand_in(address: str, folder: Path) -> str:
    assert _databases is not None
    path = address.removeprefix("sqlite:")
    is_named = path != address and "{" not in path
    return _databases.url(f"sqlite:{folder / path}" if is_named else "memory:")


def is_virtual(test: pytest.Item) -> bool:
    """Whether it is decorated with `virtual_test`."""
    code = getattr(getattr(test, "obj", None), "__code__", None)
    return code is _VIRTUAL


async def _nothing() -> None: ...


_VIRTUAL: Final = cast("Any", virtual_test(_nothing)).__code__


def _checked(address: object) -> str:
    checked = opening.check_address(address)
    is_elsewhere = opening.is_url(checked) or opening.is_postgres(checked)
    if is_elsewhere or _databases is None or virtual_clock.get() is not None:
        return checked
    return _databases.url(checked)


_begin_serving: Final = Server.__init__


def _serving(self: Server, config: ServerConfig) -> None:
    """A server in this process, unless it stops time, which is for a store of its own."""
    is_moved = not config.debug and not opening.is_postgres(config.db)
    _begin_serving(self, replace(config, db=_checked(config.db)) if is_moved else config)


def _unused() -> str:
    return _free.pop() if _free else migrated_database()


def _empty(name: str) -> None:
    """Whoever is still connected is not any more."""
    with psycopg.connect(cluster().url(name), autocommit=True) as connection:
        connection.execute(_OTHERS_LEAVE)
        tables = [row[0] for row in connection.execute(_TABLES, (SCHEMA,))]
        connection.execute("; ".join(f'DELETE FROM {SCHEMA}."{each}"' for each in tables).encode())


_ADDRESS: Final = re.compile(r'f?"(sqlite:[^"]+|memory:)"')
_OTHERS_LEAVE: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_TABLES: Final = """
    SELECT tablename FROM pg_tables
    WHERE schemaname = %s AND tablename NOT IN ('layby_migrations', 'store_time')
"""
