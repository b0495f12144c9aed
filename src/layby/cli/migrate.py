"""`layby migrate`: bring a file to the schema of this version, or say what is missing."""

from typing import Any

import click

from layby.cli import showing
from layby.cli.connection import DEFAULT_FILE, Place, find_place
from layby.cli.database import missing_in
from layby.cli.options import as_json
from layby.core.settings import Settings
from layby.engine.opening import open_store
from layby.errors import UsageError
from layby.store.migrate import Migration, known
from layby.store.sqlite import missing_migrations


@click.command(
    epilog="""\b
Examples:
  layby migrate --check          exit code 1 if there is something to do
  layby migrate --db sqlite:/var/lib/layby.db"""
)
@click.option("--db", metavar="ADDRESS", help="sqlite:PATH or postgresql://….  [env: LAYBY_DB]")
@click.option("--check", is_flag=True, help="Only say what would be done.")
@as_json
@click.pass_context
def migrate(ctx: click.Context, db: str | None, *, check: bool, as_json: bool) -> None:
    """Bring a layby file or database to the schema of this version.

    Opening it does that by itself; this is for those who want to choose the moment. A file must not
    be in use; a PostgreSQL database may be.
    """
    place = _place(db)
    missing = _missing(place)
    if missing and not check:
        open_store(place.address, "full", Settings()).close()
    file = place.shown if place.database is not None else str(place.file)
    if as_json:
        showing.print_json(_document(file, missing, check=check))
    else:
        for line in _lines(file, missing, check=check):
            showing.print_line(line)
    ctx.exit(1 if missing and check else 0)


def _missing(place: Place) -> list[Migration]:
    if place.database is not None:
        return missing_in(place.database)
    assert place.file is not None
    return missing_migrations(place.file)


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


def _document(file: str, missing: list[Migration], *, check: bool) -> dict[str, Any]:
    names = [f"{each.version:04}_{each.name}" for each in missing]
    return {
        "file": file,
        "schema": known()[-1].version,
        "applied": [] if check else names,
        "missing": names if check else [],
    }


def _lines(file: str, missing: list[Migration], *, check: bool) -> list[str]:
    newest = known()[-1].version
    if not missing:
        return [f"{file} is at schema {newest}: nothing to do"]
    verb = "is missing" if check else "applied"
    listed = [f"  {each.version:04}_{each.name} {verb}" for each in missing]
    head = f"{file} is not at schema {newest} yet" if check else f"{file} is at schema {newest} now"
    return [head, *listed]
