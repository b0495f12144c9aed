"""`layby doctor`: is this file sound, or this server healthy?"""

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as ProgressBar

from layby.cli import server_checks, showing
from layby.cli.connection import Place, find_place, named_twice, unreachable
from layby.cli.database import opened_reader
from layby.cli.inspection import Counts, Inspection, Progress
from layby.cli.options import limited
from layby.clock import SystemClock
from layby.core.invariants import INVARIANTS, Violation
from layby.core.model import Millis
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.opening import shown
from layby.errors import StoreError, StoreUnavailable, StoreUnreadable, UsageError
from layby.store.ownership import misled_owner
from layby.store.pages import PageReader
from layby.store.shrinking import FreeSpace
from layby.workflow.short_ids import quoted


class FileReport(Struct, frozen=True):
    file: str
    counts: Counts
    invariants: int
    violations: list[Violation]
    more_violations: int
    """How many were found beyond those listed."""
    store_time_ahead: Millis = 0
    """How far ahead of this machine's clock, in milliseconds."""
    misled_owner: str | None = None
    """A process that owns this path, and holds another file than the one examined."""
    space: FreeSpace | None = None

    @property
    def hint(self) -> str | None:
        """What to do about a file that is much larger than it need be."""
        if self.space is None or self.space.free * 4 < self.space.size:
            return None
        if self.space.free <= self.space.spare:
            return None
        free = f"{self.space.free / 2**20:,.1f} of {self.space.size / 2**20:,.1f} MB are free"
        if self.space.is_given_back:
            return f"{free}: pruning gives them back bit by bit, `layby prune --compact` at once"
        return f"{free}, and this file cannot give them back: run `layby prune --compact` once"

    @property
    def is_sound(self) -> bool:
        return not self.violations and self.misled_owner is None

    @property
    def verdict(self) -> str:
        if self.misled_owner is not None:
            return (
                f"{self.misled_owner} uses a file, or a -wal file, that was here before, and "
                "refuses all writes: put that one back, or stop that process"
            )
        if self.is_sound:
            return f"ok, {self.invariants} invariants hold"
        found = len(self.violations) + self.more_violations
        return f"{found:,} violation{'s' if found > 1 else ''} of {self.invariants} invariants"


@click.command(
    epilog="""\b
Examples:
  layby doctor layby.db
  layby doctor --db postgresql://layby@db.example.com/shop
  layby doctor --url http://127.0.0.1:8001"""
)
@click.argument("file", required=False)
@click.option("--url", metavar="URL", help="Check this server.  [env: LAYBY_URL]")
@click.option("--token", metavar="TOKEN", help="The server's token.  [env: LAYBY_TOKEN]")
@click.option(
    "--db",
    metavar="ADDRESS",
    help="The same as FILE: sqlite:PATH, or postgresql://….  [env: LAYBY_DB]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@limited(100)
@click.pass_context
def doctor(
    ctx: click.Context,
    file: str | None,
    url: str | None,
    token: str | None,
    db: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Check that every invariant holds in the layby FILE, or that a server is healthy.

    Only reads; the file may be in use. For a server it checks that it answers, is ready, agrees
    on the time, and that the visible part of its state is sound. Exits with 0 if all is well, 1
    if something is wrong, 2 if the file is missing, damaged or not a layby database, or if no
    server answers.
    """
    if file is None:
        place = find_place(url, token, db)
        if place.url is not None:
            _check_server(ctx, place, limit, as_json=as_json)
    elif (other := url or db) is not None:
        raise named_twice(file, other)
    else:
        place = find_place(None, None, file)
    with _progress_bar() as progress:
        report = _examine(place, limit, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_plain(report))).decode())
    else:
        show(report, showing.literal_console(soft_wrap=True))
    ctx.exit(0 if report.is_sound else 1)


def _check_server(ctx: click.Context, place: Place, limit: int, *, as_json: bool) -> NoReturn:
    assert place.url is not None
    with _progress_bar() as progress:
        checking = server_checks.examine(place.url, place.token, lambda done: progress(done, done))
        try:
            report = asyncio.run(checking)
        except StoreUnavailable as error:
            raise unreachable(place, error) from error
    if as_json:
        document = {"ok": report.is_healthy, **msgspec.structs.asdict(report)}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        show_server_report(report, limit, showing.literal_console(soft_wrap=True))
    ctx.exit(0 if report.is_healthy else 1)


def show_server_report(report: server_checks.ServerReport, limit: int, console: Console) -> None:
    styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    console.print(f"[bold]{escape(report.url)}[/]")
    for check in report.checks:
        outcome = f"[{styles[check.outcome]}]{check.outcome:<6}[/]"
        console.print(f"  {check.name:<10} {outcome} {escape(check.told)}")
    for violation in report.violations[: limit or None]:
        console.print(f"[red]{violation.invariant}[/]: {escape(violation.what)}")
    if limit and len(report.violations) > limit:
        console.print(f"... and {len(report.violations) - limit:,} more (--limit 0 lists all)")


def _examine(place: Place, limit: int, progress: Progress) -> FileReport:
    if place.database is not None:
        return examine_database(place.database, limit, progress)
    assert place.file is not None
    return examine(place.file, limit, progress)


def examine_database(url: str, limit: int, progress: Progress) -> FileReport:
    """Check all of it as it is at this moment, while others go on writing."""
    reader = opened_reader(url)
    try:
        with reader.transaction():
            inspection = Inspection(reader, reader.now())
            found = inspection.violations(progress)
            listed = list(islice(found, limit or None))
            more = sum(1 for _ in found)
    finally:
        reader.close()
    return FileReport(shown(url), inspection.counts, len(INVARIANTS), listed, more)


def examine(file: Path, limit: int, progress: Progress | None = None) -> FileReport:
    """Check the whole file; list at most `limit` violations (0: all)."""
    if not file.is_file():
        there = "is a folder" if file.is_dir() else "is not a regular file"
        what = there if file.exists() else "does not exist"
        if (owner := misled_owner(file)) is not None:
            raise StoreUnavailable(
                f"{file} {what}, but {owner} uses the file that was there: put it back, or stop "
                "that process"
            )
        raise UsageError(f"{file} {what}: give the path of a layby database")
    try:
        return _examined(file, limit, progress or _no_progress)
    except StoreError as error:
        if (owner := misled_owner(file)) is None:
            raise
        raise StoreUnavailable(
            f"{file} cannot be read: {owner} uses it, and the file or its -wal file was removed, "
            f"replaced or cut short meanwhile: `layby runs --db {quoted(str(file))}` shows what "
            "that process says about it"
        ) from error


def _examined(file: Path, limit: int, progress: Progress) -> FileReport:
    reader = PageReader(file, Settings(), next_after)
    try:
        with reader.transaction():
            if damage := reader.damage():
                raise StoreUnreadable(
                    f"{file} is damaged ({damage}): restore it from a backup, "
                    "or try SQLite's `.recover`"
                )
            wall, stored = SystemClock().now(), reader.store_time()
            inspection = Inspection(reader, max(wall, stored))
            found = inspection.violations(progress)
            listed = list(islice(found, limit or None))
            space = reader.free_space()
            more = sum(1 for _ in found)
    finally:
        reader.close()
    ahead = max(0, stored - wall)
    counts, owner = inspection.counts, misled_owner(file)
    return FileReport(str(file), counts, len(INVARIANTS), listed, more, ahead, owner, space)


def show(report: FileReport, console: Console) -> None:
    console.print(f"[bold]{escape(report.file)}[/]")
    for name, count, parts in _lines(report.counts):
        told = f"   [dim]{parts}[/]" if parts else ""
        console.print(f"  {name:<10}{count:>12,}{told}")
    if report.store_time_ahead >= server_checks.SKEW_MS:
        console.print(f"[yellow]{server_checks.clock_moved_back(report.store_time_ahead)}[/]")
    if report.hint is not None:
        console.print(f"[yellow]{escape(report.hint)}[/]")
    for violation in report.violations:
        where = f"[red]{violation.invariant}[/]"
        console.print(f"{where}: {escape(violation.what)}")
    if report.more_violations:
        console.print(f"... and {report.more_violations:,} more (--limit 0 lists all)")
    console.print(f"[{'green' if report.is_sound else 'bold red'}]{escape(report.verdict)}[/]")


def _lines(counts: Counts) -> Iterator[tuple[str, int, str]]:
    for name in counts.__struct_fields__:
        count = getattr(counts, name)
        if isinstance(count, int):
            yield name, count, ""
        else:
            parts = sorted(count.items(), key=lambda part: -part[1])
            yield name, count.total(), ", ".join(f"{state} {n:,}" for state, n in parts)


def _plain(report: FileReport) -> dict[str, Any]:
    return {"ok": report.is_sound, "verdict": report.verdict, **msgspec.structs.asdict(report)}


@contextmanager
def _progress_bar() -> Generator[Progress]:
    """A progress bar on a terminal, nothing in a pipe."""
    console = showing.literal_console(stderr=True)
    with ProgressBar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking promises", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _no_progress(_done: int, _total: int) -> None:
    """Progress that nobody watches."""
