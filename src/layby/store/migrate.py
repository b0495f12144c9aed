"""Brings a database to the schema this version knows, once, under a lock.

Each migration says which older code can go on working on the schema after it: it is named by the
newest migration that it knows. The ledger keeps that, so code refuses a schema that is too new for
it, and nothing else.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, Protocol

from msgspec import Struct

from layby.errors import StoreUnreadable
from layby.store.dialect import Dialect

_LEDGER: Final = """
    CREATE TABLE IF NOT EXISTS layby_migrations (
        version    BIGINT PRIMARY KEY,
        name       TEXT NOT NULL,
        checksum   TEXT NOT NULL
    )
"""
_SAYS_OLDEST: Final = 17
"""The migration that gives the ledger the column `oldest`."""
_OLDEST: Final = re.compile(r"\A-- oldest code: (\d+)\n")
OLDEST_CODE: Final = "SELECT max(oldest) FROM layby_migrations"
"""Which code may still use this schema. It can be asked from schema 17 on."""


class Migration(Struct, frozen=True):
    version: int
    name: str
    text: str

    @property
    def title(self) -> str:
        """As its file is named."""
        return f"{self.version:04}_{self.name}"

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    @property
    def oldest(self) -> int:
        """The oldest code that may use the schema after it; itself, if it does not say."""
        found = _OLDEST.match(self.text)
        return self.version if found is None else int(found[1])

    @property
    def stops_older(self) -> bool:
        """Whether code that does not know it must not go on."""
        return self.oldest == self.version


class Schema(Struct, frozen=True):
    """What a database has, and what this version would add."""

    version: int
    missing: tuple[Migration, ...]


class Migrated(Protocol):
    """As much of a connection as migrating needs."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, arguments: Sequence[object] = (), /) -> Any: ...


@cache
def known() -> tuple[Migration, ...]:
    folder = files("layby.store").joinpath("migrations")
    found = (entry for entry in folder.iterdir() if entry.name.endswith(".sql"))
    made = (_migration(entry.name, entry.read_text()) for entry in found)
    return tuple(sorted(made, key=lambda each: each.version))


def newest_known() -> int:
    return known()[-1].version


def migrate(connection: Migrated, dialect: Dialect, most: int | None = None) -> list[Migration]:
    """Apply what is missing, or the first `most` of that, in one transaction.

    A database from elsewhere is left untouched.
    """
    with _migrating(connection, dialect):
        connection.execute(_in(dialect, _LEDGER))
        missing = missing_after(refuse_strangers(connection))[:most]
        for migration in missing:
            _apply(connection, dialect, migration)
    return missing


def no_schema() -> Schema:
    """Of a database that has nothing yet."""
    return Schema(0, known())


def schema_of(connection: Migrated) -> Schema:
    applied = refuse_strangers(connection)
    return Schema(max(applied, default=0), tuple(missing_after(applied)))


def missing_after(applied: dict[int, str]) -> list[Migration]:
    return [migration for migration in known() if migration.version not in applied]


def refuse_strangers(connection: Migrated) -> dict[int, str]:
    """What has been applied here; refuses what this code may not use, or somebody has edited."""
    rows = connection.execute("SELECT version, checksum FROM layby_migrations").fetchall()
    applied: dict[int, str] = dict(rows)
    if max(applied, default=0) > newest_known():
        (oldest,) = connection.execute(OLDEST_CODE).fetchone()
        if oldest > newest_known():
            why = f"a newer layby has brought it to schema {max(applied)}, and it {too_new(oldest)}"
            raise StoreUnreadable(f"{why}, or use another database")
    for migration in known():
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            why = f"migration {migration.version} ({migration.name}) was applied in another form"
            raise StoreUnreadable(f"{why}: use the layby release that created this database")
    return applied


def too_new(oldest: int) -> str:
    """The end of a sentence about a schema."""
    needs = f"can only be used by a layby that knows schema {oldest} or a later one"
    return f"{needs} (this one knows {newest_known()}): upgrade layby here"


def refuse_outdated(connection: Migrated) -> None:
    """For read-only connections: they cannot apply what is missing."""
    schema = schema_of(connection)
    if schema.missing:
        why = f"its schema is version {schema.version}, this layby reads {newest_known()}"
        remedy = "`layby migrate` brings it up to date, and so does opening it with a Runner"
        raise StoreUnreadable(f"the database was written by an older layby ({why}): {remedy}")


def _migration(name: str, text: str) -> Migration:
    number, _, title = name.removesuffix(".sql").partition("_")
    return Migration(int(number), title, text)


@contextmanager
def _migrating(connection: Migrated, dialect: Dialect) -> Generator[None]:
    for statement in dialect.begin_migrating:
        connection.execute(statement)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(connection: Migrated, dialect: Dialect, migration: Migration) -> None:
    if migration.stops_older:
        for statement in dialect.stop_others:
            connection.execute(statement)
    for statement in _in(dialect, migration.text).split(";\n"):
        if statement.strip() and _is_for(dialect, statement):
            connection.execute(statement)
    cells = {"version": migration.version, "name": migration.name, "checksum": migration.checksum}
    if migration.version >= _SAYS_OLDEST:
        cells["oldest"] = migration.oldest
    names, marks = ", ".join(cells), ", ".join("?" for _ in cells)
    connection.execute(
        f"INSERT INTO layby_migrations ({names}) VALUES ({marks})", tuple(cells.values())
    )


def _is_for(dialect: Dialect, statement: str) -> bool:
    only = re.search(r"/\*only (\w+)\*/", statement)
    return only is None or only[1] == dialect.name


def _in(dialect: Dialect, text: str) -> str:
    for mark, instead in (("/*keyed*/", dialect.keyed), *dialect.in_views.items()):
        text = text.replace(mark, instead)
    return re.sub(r"\bTEXT\b", dialect.text, text)
