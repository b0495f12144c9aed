"""`layby prune`: delete what has ended long enough ago, batch by batch."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

import click
from msgspec.structs import asdict, replace
from rich.progress import Progress, TextColumn

from layby.cli import showing
from layby.cli.connection import Place, ask
from layby.cli.expected_replies import expect
from layby.cli.options import DurationParam, as_json, reaching
from layby.cli.prune_pace import PrunePace
from layby.client.interface import Client
from layby.core.commands import Prune
from layby.core.replies import PruneData
from layby.core.settings import LONGEST_RETENTION_MS, Settings
from layby.engine.calendar import next_after
from layby.errors import UsageError
from layby.store.sqlite import SqliteStore

LENGTH: Final = DurationParam(least=0, most=LONGEST_RETENTION_MS)


@click.command(
    epilog="""\b
Examples:
  layby prune --completed 7d --failed 90d --ids 365d
  layby prune --completed 7d --dry-run           only count
  layby prune --completed 30d --foreign --url http://127.0.0.1:8001
  layby prune --compact                          make the file small, once"""
)
@click.option("--completed", type=LENGTH, help="Prune runs that completed this long ago.")
@click.option("--failed", type=LENGTH, help="The same for those that failed or were cancelled.")
@click.option("--ids", type=LENGTH, help="Forget ids that were pruned this long ago.")
@click.option("--foreign", is_flag=True, help="Also prune promises that are not part of a run.")
@click.option("--dry-run", is_flag=True, help="Only count; delete nothing.")
@click.option("--compact", is_flag=True, help="Then write the file anew; it must not be in use.")
@reaching
@as_json
def prune(
    place: Place,
    completed: int | None,
    failed: int | None,
    ids: int | None,
    *,
    foreign: bool,
    dry_run: bool,
    compact: bool,
    as_json: bool,
) -> None:
    """Delete runs that ended long enough ago, whole: their tasks, records and values.

    What no option names is kept. A run stays while somebody waits for a promise of it, and while
    its clean-up is not finished. The id of a pruned run still answers that the run has ended, until
    --ids forgets it.
    """
    lengths = (completed, failed, ids)
    if all(each is None for each in lengths) and not compact:
        raise UsageError(
            "nothing to prune: say how long to keep, for example --completed 7d --failed 90d"
        )
    if compact and (place.file is None or dry_run):
        raise UsageError(
            "--compact writes a file anew: it needs --db sqlite:PATH, and does not go with "
            "--dry-run"
        )
    if compact:
        _check_unused(place)
    first = Prune(completed=completed, failed=failed, ids=ids, foreign=foreign, dry_run=dry_run)
    what = "tree" if foreign else "run"
    tally, is_compacted = _Tally(), False
    try:
        with _shown(what) as show:
            ask(place, lambda client: _pass(client, first, tally, show))
        if compact:
            _compact(place)
            is_compacted = True
    finally:  # its server died, or somebody began to use the file: what is deleted is told
        if tally.is_complete or (tally.has_found and not dry_run):
            _tell(tally, first, what, is_compacted=is_compacted, as_json=as_json)


class _Tally:
    """What a pass has done so far."""

    def __init__(self) -> None:
        self.total = PruneData()
        self.is_complete = False

    @property
    def has_found(self) -> bool:
        return self.total != PruneData()

    def add(self, done: PruneData) -> None:
        names = (name for name in PruneData.__struct_fields__ if name != "cursor")
        counts = {name: getattr(self.total, name) + getattr(done, name) for name in names}
        self.total = PruneData(**counts)
        self.is_complete = done.cursor is None


async def _pass(
    client: Client, first: Prune, tally: _Tally, show: Callable[[PruneData], None]
) -> None:
    """Batch by batch; after each, everybody else has as long as it took."""
    cursor, pace = "", PrunePace()
    while True:
        began = perf_counter()
        reply = await client.send(replace(first, cursor=cursor, limit=pace.rows))
        done = expect(reply, PruneData, "pruning")
        tally.add(done)
        show(tally.total)
        if done.cursor is None:
            return
        cursor = done.cursor
        await asyncio.sleep(pace.pause_after(perf_counter() - began))


def _check_unused(place: Place) -> None:
    """Before anything is deleted; raises if somebody uses the file."""
    _opened(place).close()


def _opened(place: Place) -> SqliteStore:
    assert place.file is not None
    return SqliteStore(place.file, Settings(), next_after)


def _compact(place: Place) -> None:
    store = _opened(place)
    assert place.file is not None
    try:
        before = place.file.stat().st_size
        store.compact()
    finally:
        store.close()
    showing.tell_aside(
        f"{place.file}: {_size(before)} before, {_size(place.file.stat().st_size)} now"
    )


def _tell(tally: _Tally, first: Prune, what: str, *, is_compacted: bool, as_json: bool) -> None:
    total, is_complete = tally.total, tally.is_complete
    if as_json:
        how = {"dry_run": first.dry_run, "compacted": is_compacted, "complete": is_complete}
        counts = {name: n for name, n in asdict(total).items() if name != "cursor"}
        showing.print_json(how | counts)
        return
    for line in _lines(total, what, dry_run=first.dry_run, is_complete=is_complete):
        showing.print_line(line)


def _lines(
    total: PruneData, what: str, *, dry_run: bool = False, is_complete: bool = True
) -> list[str]:
    """`what`: of which the roots are counted."""
    verb = "would be pruned" if dry_run else "pruned" if is_complete else "pruned so far"
    told = [f"{_counted(total.roots, what)} {verb}, with {_counted(total.rows, 'promise')} below"]
    others = {"id": total.ids, "placeholder": total.placeholders, "dead worker": total.holders}
    if any(others.values()):
        forgotten = ", ".join(_counted(n, what) for what, n in others.items() if n)
        told.append(f"{forgotten} {'would be forgotten' if dry_run else 'forgotten'}")
    if total.kept:
        why = "somebody waits for or has awaited a promise of it, or it is not cleaned up yet"
        told.append(f"{_counted(total.kept, what)} kept: {why}")
    return told


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(number: int) -> str:
    return f"{number / 2**20:,.1f} MB"


@contextmanager
def _shown(what: str) -> Generator[Callable[[PruneData], None]]:
    """What was done so far, on a terminal; nothing in a pipe."""
    console = showing.new_console(stderr=True)
    shown = TextColumn("{task.description}")
    with Progress(shown, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("pruning")
        yield lambda total: bar.update(task, description=f"pruning: {_lines(total, what)[0]}")
