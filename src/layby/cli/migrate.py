"""`layby migrate`: bring a file to the schema of this version, or say what is missing."""

from collections.abc import Sequence
from typing import Any

import click

from layby.cli import showing
from layby.cli.connection import DEFAULT_FILE, Place, find_place, named_twice
from layby.cli.database import migrate_in, schema_in
from layby.cli.options import as_json
from layby.core.settings import Settings
from layby.engine.opening import open_store
from layby.errors import UsageError
from layby.store.migrate import Migration, Schema, newest_known
from layby.store.sqlite import schema_in_file


@click.command(
    epilog="""\b
Examples:
  layby migrate --check          exit code 1 if there is something to do
  layby migrate /var/lib/layby.db
  layby migrate --db postgresql://layby@db.example.com/shop"""
)
@click.argument("file", required=False)
@click.option(
    "--db",
    metavar="ADDRESS",
    help="The same as FILE: sqlite:PATH, or postgresql://….  [env: LAYBY_DB; default: ./layby.db]",
)
@click.option("--check", is_flag=True, help="Only say what would be done.")
@as_json
@click.pass_context
def migrate(
    ctx: click.Context, file: str | None, db: str | None, *, check: bool, as_json: bool
) -> None:
    """Bring the layby FILE, or a database, to the schema of this version.

    Opening it does that by itself; this is for those who want to choose the moment. A file must not
    be in use; a PostgreSQL database may be. --check says which steps stop processes with an older
    layby.
    """
    if file is not None and db is not None:
        raise named_twice(file, db)
    place = _place(file or db)
    schema = _schema(place)
    applied = () if check or not schema.missing else _apply(place, schema)
    where = place.shown if place.database is not None else str(place.file)
    if as_json:
        showing.print_json(_document(where, schema, applied, check=check))
    else:
        for line in _lines(where, schema, applied, check=check):
            showing.print_line(line)
    ctx.exit(1 if schema.missing and check else 0)


def _schema(place: Place) -> Schema:
    if place.database is not None:
        return schema_in(place.database)
    assert place.file is not None
    return schema_in_file(place.file)


def _apply(place: Place, schema: Schema) -> Sequence[Migration]:
    if place.database is not None:
        return migrate_in(place.database, lambda sentence: click.echo(sentence, err=True))
    open_store(place.address, "full", Settings()).close()
    return schema.missing


def _place(db: str | None) -> Place:
    place = find_place(None, None, db)
    if place.database is not None:
        return place
    if place.file is None:
        raise UsageError(
            f"there is no {DEFAULT_FILE} here: give --db the path of a layby database; "
            "a server migrates its file when it starts"
        )
    if not place.file.is_file():
        raise UsageError(f"{place.file} does not exist: give --db the path of a layby database")
    return place


def _document(
    file: str, schema: Schema, applied: Sequence[Migration], *, check: bool
) -> dict[str, Any]:
    missing = schema.missing if check else ()
    return {
        "file": file,
        "schema": max(newest_known(), schema.version),
        "applied": [each.title for each in applied],
        "missing": [each.title for each in missing],
        "stops_older": [each.title for each in missing if each.stops_older],
    }


def _lines(file: str, schema: Schema, applied: Sequence[Migration], *, check: bool) -> list[str]:
    newest = newest_known()
    if schema.version > newest:
        beyond = f"newer than this layby ({newest}), which may use it"
        return [f"{file} is at schema {schema.version}, {beyond}: nothing to do"]
    if not schema.missing:
        return [f"{file} is at schema {newest}: nothing to do"]
    if check:
        missing = [f"  {each.title} is missing{_stops(each)}" for each in schema.missing]
        return [f"{file} is not at schema {newest} yet", *missing]
    return [f"{file} is at schema {newest} now", *(f"  {each.title} applied" for each in applied)]


def _stops(migration: Migration) -> str:
    return ": an older layby cannot use it any more after that" if migration.stops_older else ""
