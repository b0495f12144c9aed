"""What a command prints: one JSON document, or text and tables for people.

Output to a pipe has no colours, and its lines are never cut.
"""

from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from layby.cli.printable import printable
from layby.core.model import Millis
from layby.wire import json_values
from layby.workflow.moments import FOREVER, ago, ahead
from layby.workflow.outcome import moment

WIDE: Final = 100_000
"""The width of output to a pipe, which has none."""
FOLDED: Final = 20
"""The least width of a column with prose on a terminal."""
SHORT: Final = 200
TRACEBACKS: Final = 3
"""How many are shown: nobody reads all of a run in which everything failed."""
STYLES: Final = {
    "pending": "yellow",
    "acquired": "cyan",
    "suspended": "yellow",
    "halted": "magenta",
    "fulfilled": "green",
    "resolved": "green",
    "rejected": "red",
    "rejected_canceled": "red",
    "rejected_timedout": "red",
    "Pending": "dim",
    "Ready": "yellow",
    "Running": "cyan",
    "Completed": "green",
    "Failed": "red",
    "Skipped": "dim",
    "Cancelled": "red",
    "Halted": "magenta",
}


def new_console(*, stderr: bool = False) -> Console:
    console = literal_console(stderr=stderr)
    return console if console.is_terminal else literal_console(stderr=stderr, width=WIDE)


def literal_console(
    *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False
) -> Console:
    """Prints a text as it is: `:ship:` in an id is not a picture of a ship."""
    return Console(stderr=stderr, width=width, soft_wrap=soft_wrap, highlight=False, emoji=False)


def more_tracebacks(number: int, command: str) -> str:
    """What follows those that are shown, out of that many; empty when these were all."""
    more = number - TRACEBACKS
    return f"and {more} more: {command}" if more > 0 else ""


def print_json(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    prose: Container[str] = (),
) -> None:
    """On a terminal the columns with `prose` are folded to its width; ids and commands never are,
    as they are there to be pasted. Where that is not enough, the terminal folds the lines.
    """
    shown, console = list(rows), new_console()
    if not fits(headings, shown, prose=prose):
        console = literal_console(width=WIDE)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading, width in zip(headings, _widths(headings, shown), strict=True):
        is_folded = heading in prose and console.width < WIDE
        least = min(width, FOLDED) if is_folded else width
        table.add_column(heading, overflow="fold", no_wrap=not is_folded, min_width=least)
    for row in shown:
        table.add_row(*row)
    _print(console, table)


def fits(
    headings: Sequence[str],
    rows: Sequence[Sequence[RenderableType]],
    *,
    prose: Container[str] = (),
) -> bool:
    """Whether the table can be had without folding an id or a command; always, in a pipe."""
    widths = zip(headings, _widths(headings, rows), strict=True)
    least = sum(min(width, FOLDED) if name in prose else width for name, width in widths)
    return least + 2 * (len(headings) - 1) <= new_console().width


def _widths(headings: Sequence[str], rows: Sequence[Sequence[RenderableType]]) -> list[int]:
    return [max(_width(each) for each in column) for column in zip(headings, *rows, strict=True)]


def _width(cell: RenderableType) -> int:
    """Texts of several lines are as wide as the longest."""
    lines = str(cell).splitlines() or [""]
    return max(cell_len(line) for line in lines)


def print_found(
    what: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    cut_at: int | None,
    prose: Container[str] = (),
) -> None:
    """A table of what was found, or a line that says nothing was."""
    if found := list(rows):
        print_table(headings, found, prose=prose)
        tell_cut(cut_at)
    else:
        print_line(f"no such {what} here")


def tell_aside(text: str) -> None:
    """What is not part of the answer goes to stderr."""
    click.echo(printable(text), err=True)


def tell_cut(at: int | None) -> None:
    """Says that a list is incomplete."""
    if at is not None:
        tell_aside(f"... and more, beyond --limit {at} (--limit 0 lists all)")


def print_fields(fields: Iterable[tuple[str, Text]]) -> None:
    """One item, with one line per field."""
    console = new_console()
    if not console.is_terminal:
        _print_whole(list(fields))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(name, value)
    console.print(grid)


def _print_whole(fields: Sequence[tuple[str, Text]]) -> None:
    """A value may have megabytes; a grid would cut it at its own width, and the names with it."""
    width = max((len(name) for name, _ in fields), default=0) + 2
    for name, value in fields:
        for number, line in enumerate(value.plain.split("\n")):
            print_line(f"{'' if number else name:{width}}{line}".rstrip())


def print_wide(shown: RenderableType) -> None:
    """Never cut: a narrow terminal wraps the lines itself."""
    literal_console(width=WIDE).print(shown)


def _print(console: Console, shown: RenderableType) -> None:
    """On a terminal as it is; into a pipe without trailing spaces."""
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_line(text: str) -> None:
    click.echo(printable(text))


def state(name: str) -> Text:
    return Text(name, STYLES.get(name, ""))


def plain(text: object) -> Text:
    """Verbatim: brackets in an id are not markup."""
    return Text(printable(str(text)))


def shortened(text: str) -> str:
    """At most a line of it."""
    line = " ".join(text[: 2 * SHORT].split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}..."


def dim(text: str) -> str:
    return f"[dim]{escape(printable(text))}[/]"


def bold(text: str) -> str:
    return f"[bold]{escape(printable(text))}[/]"


def passed(at: Millis | None, now: Millis) -> Text:
    return Text("-" if at is None else ago(at, now))


def coming(at: Millis | None, now: Millis) -> Text:
    return Text("-" if at is None or at >= FOREVER else ahead(at, now))


def instant(at: Millis | None, now: Millis) -> Text:
    """Relative and absolute time."""
    if at is None or at >= FOREVER:
        return Text("never" if at else "-")
    return Text(f"{ago(at, now)} ({moment(at)})")


def value(text: str) -> str:
    """A param or value, decoded, in one line; text that is not ours as it is."""
    found = json_values.shown(text)
    if stack(text):
        found = {key: each for key, each in found.items() if key != json_values.STACK}
    return "-" if found is None else msgspec.json.encode(found).decode()


def stack(text: str) -> str:
    """The traceback of an error, if its worker sent one; shown separately, as it is long."""
    found = json_values.shown(text)
    is_error = isinstance(found, dict) and "__type" in found
    return json_values.read_error(text).stack.rstrip() if is_error else ""


def times(**instants: Millis | None) -> dict[str, Any]:
    """`since=5` as `since` in ISO 8601 and `since_ms`; never and unknown are null."""
    shown: dict[str, Any] = {}
    for name, at in instants.items():
        known = None if at is None or at >= FOREVER else at
        shown |= {name: iso(known), f"{name}_ms": known}
    return shown


def iso(at: Millis | None) -> str | None:
    if at is None:
        return None
    try:
        text = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None
    return text.replace("+00:00", "Z")
