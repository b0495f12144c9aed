"""Brings a database to the schema this version knows, once, under a lock."""

import re
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any, Protocol

from msgspec import Struct

from layby.errors import StoreUnreadable
from layby.store.dialect import Dialect

_LEDGER = """
    CREATE TABLE IF NOT EXISTS layby_migrations (
        version    BIGINT PRIMARY KEY,
        name       TEXT NOT NULL,
        checksum   TEXT NOT NULL
    )
"""


class Migration(Struct, frozen=True):
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()


def known() -> list[Migration]:
    folder = files("layby.store").joinpath("migrations")
    found = (entry for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return sorted((_migration(e.name, e.read_text()) for e in found), key=lambda m: m.version)


class Migrated(Protocol):
    """As much of a connection as migrating needs."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, arguments: Sequence[object] = (), /) -> Any: ...


def migrate(connection: Migrated, dialect: Dialect) -> None:
    """Apply what is missing in one transaction; a database from elsewhere is left untouched."""
    for statement in dialect.begin_migrating:
        connection.execute(statement)
    try:
        connection.execute(_in(dialect, _LEDGER))
        applied = refuse_strangers(connection)
        for migration in known():
            if migration.version not in applied:
                _apply(connection, dialect, migration)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _migration(name: str, text: str) -> Migration:
    number, _, title = name.removesuffix(".sql").partition("_")
    return Migration(int(number), title, text)


def refuse_strangers(connection: Migrated) -> dict[int, str]:
    """What has been applied here; refuses what another version or somebody by hand has applied."""
    rows = connection.execute("SELECT version, checksum FROM layby_migrations").fetchall()
    applied: dict[int, str] = dict(rows)
    ours = {migration.version: migration for migration in known()}
    newer = [version for version in applied if version not in ours]
    if newer:
        why = f"its schema is version {max(newer)}, this layby knows up to {max(ours)}"
        raise StoreUnreadable(f"the database was written by a newer layby ({why}): upgrade layby")
    for version, checksum in applied.items():
        if ours[version].checksum != checksum:
            why = f"migration {version} ({ours[version].name}) was applied in a different form"
            raise StoreUnreadable(f"{why}: use the layby release that created this database")
    return applied


def refuse_outdated(connection: Migrated) -> None:
    """For read-only connections: they cannot apply what is missing."""
    applied = refuse_strangers(connection)
    latest = max(migration.version for migration in known())
    if latest not in applied:
        why = f"its schema is version {max(applied, default=0)}, this layby reads {latest}"
        remedy = "`layby migrate` brings it up to date, and so does opening it with a Runner"
        raise StoreUnreadable(f"the database was written by an older layby ({why}): {remedy}")


def _apply(connection: Migrated, dialect: Dialect, migration: Migration) -> None:
    for statement in _in(dialect, migration.text).split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(
        "INSERT INTO layby_migrations VALUES (?, ?, ?)",
        (migration.version, migration.name, migration.checksum),
    )


def _in(dialect: Dialect, text: str) -> str:
    return re.sub(r"\bTEXT\b", dialect.text, text.replace("/*keyed*/", dialect.keyed))
