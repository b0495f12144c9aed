"""`layby demo`: what layby does, shown for real on a SQLite file in a temporary folder, or on a
PostgreSQL database.

Nothing here is simulated: the tasks run in their own process (`demo_worker.py`), which is killed
with SIGKILL and started again; this module watches, counts and reports.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import click
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table

from layby.cli import showing
from layby.cli.connection import find_place
from layby.cli.database import migrate_in
from layby.cli.demo_place import DemoPlace
from layby.cli.demo_worker import (
    KINDS,
    LETTER_S,
    PARCELS,
    REFUSED,
    SLEEP_S,
    SLOTS,
    WorkerReport,
)
from layby.cli.doctor import show
from layby.errors import LaybyError, UsageError

WATCH_S: Final = 3.0
AFTERWARDS_S: Final = 2.0
PATIENCE_S: Final = 60.0
"""A step that takes longer than this has failed, even on a very busy machine."""


class DemoOutput:
    """What the user sees: a heading for each part, one line for each event."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._done = "v" if console.options.ascii_only else "✓"

    def heading(self, title: str, why: str) -> None:
        self.console.print()
        self.console.print(Rule(f"[bold]{title}[/]", align="left", style="dim"))
        self.console.print(Padding(f"[dim]{why}[/]", (0, 0, 0, 2)))

    def say(self, text: str) -> None:
        self._line(" ", text)

    def done(self, text: str) -> None:
        self._line(f"[green]{self._done}[/]", text)

    def died(self, text: str) -> None:
        self._line("[red]x[/]", f"[red]{text}[/]")

    def _line(self, mark: str, text: str) -> None:
        line = Table.grid(padding=(0, 1))
        line.add_row(" ", mark, text)
        self.console.print(line)


class LiveFigures:
    """Figures that are updated on a terminal; in a pipe, one line per second instead."""

    def __init__(self, output: DemoOutput) -> None:
        self._output = output
        self._is_live = output.console.is_terminal
        self._told_at = perf_counter()
        self.title = ""
        self.waiting: dict[str, int] = {}
        """Tasks parked now, by what they wait for, according to the store."""
        self.report = WorkerReport()
        self._before = WorkerReport()
        """The figures of the process that was killed."""

    @property
    def parked(self) -> int:
        return sum(self.waiting.values())

    @property
    def all_waiting(self) -> bool:
        """Every parcel waits or has waited: on a busy machine the first sleeps end early."""
        return self.parked + self.delivered >= PARCELS

    @property
    def letters(self) -> int:
        return self._before.letters + self.report.letters

    @property
    def delivered(self) -> int:
        return self._before.delivered + self.report.delivered

    @property
    def peak(self) -> int:
        return max(self._before.peak, self.report.peak)

    def restart(self) -> None:
        self._before = WorkerReport(letters=self.letters, delivered=self.delivered, peak=self.peak)
        self.report = WorkerReport()
        self.waiting = {}

    @contextmanager
    def shown(self, title: str) -> Generator[None]:
        self.title = title
        with (
            Live(
                get_renderable=self._table,
                console=self._output.console,
                refresh_per_second=10,
                transient=True,
            )
            if self._is_live
            else nullcontext()
        ):
            yield

    def update_figures(self, report: WorkerReport, waiting: dict[str, int]) -> None:
        self.report, self.waiting = report, waiting
        if not self._is_live and perf_counter() - self._told_at >= 1:
            self._told_at = perf_counter()
            self._output.say(
                f"[dim]{self.parked} wait, {report.held} of {SLOTS} slots busy, "
                f"{self.letters} letters done, {self.delivered} parcels delivered[/]"
            )

    def _table(self) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        for name, value, total, style, text in (
            ("slots", self.report.held, SLOTS, "yellow", f"{self.report.held} of {SLOTS} busy"),
            ("waiting", self.parked, PARCELS, "cyan", f"{self.parked} parcels"),
            ("delivered", self.delivered, PARCELS, "green", f"{self.delivered} parcels"),
        ):
            width = max(5, min(50, self._output.console.width - 41))
            bar = ProgressBar(total, value, width, complete_style=style, finished_style=style)
            bars.add_row("  ", name, bar, text)
        bars.add_row("  ", "letters", f"[bold]{self.letters}[/] done")
        framed = Table.grid()
        framed.add_column(no_wrap=True, overflow="ellipsis")
        framed.add_row(f"    [dim]{self.title}[/]")
        framed.add_row(bars)
        return framed


class WorkerProcess:
    """The process that runs the tasks, seen from outside: its reports, and what is stored."""

    def __init__(self, process: Process, place: DemoPlace, life: int) -> None:
        self.process = process
        self._place = place
        self._life = life

    async def watch(self, figures: LiveFigures, until: Callable[[], bool]) -> None:
        """Follow its reports until the condition holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not until():
                    figures.update_figures(await self._report(), self._place.waiting(self._life))
        except TimeoutError:
            raise LaybyError(
                f"the demo's process {self.process.pid} made no progress for {PATIENCE_S:.0f} s: "
                "try again when the machine is less busy"
            ) from None

    async def watch_for(self, figures: LiveFigures, seconds: float) -> None:
        end = perf_counter() + seconds
        await self.watch(figures, lambda: perf_counter() >= end)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    def examples(self) -> list[tuple[str, str]]:
        return self._place.examples(self._life)

    async def _report(self) -> WorkerReport:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            said = (self._place.folder / "errors").read_text().strip() or "it printed nothing"
            if await self.process.wait() == REFUSED:
                raise LaybyError(said.splitlines()[-1])
            raise LaybyError(f"the demo's own process ended by itself; please report this: {said}")
        return msgspec.json.decode(line, type=WorkerReport)


@click.command()
@click.option(
    "--db", metavar="ADDRESS", help="A PostgreSQL database.  [default: a SQLite file of its own]"
)
def demo(db: str | None) -> None:
    """Show 200 waiting tasks on 4 slots, and a kill -9 in between: for real, in 12 seconds."""
    database = None if db is None else _database(db)
    output = DemoOutput(showing.literal_console())
    output.console.print("[bold]layby[/]: a task that waits holds no slot.")
    with TemporaryDirectory(prefix="layby-demo-") as folder:
        place = DemoPlace(Path(folder), database)
        where = "a PostgreSQL database" if database else "one SQLite file"
        output.console.print(f"[dim]Everything below happens in {where}:[/]")
        output.console.print(f"[dim]{escape(place.shown)}[/]", soft_wrap=True)
        asyncio.run(_play(output, place))
        _verdict(output, place)
    if place.prefix:
        output.say(f"[dim]its runs stay there; their ids begin with {place.prefix}[/]")


def _database(db: str) -> str:
    """Not a file: the demo makes one, and takes it away again."""
    place = find_place(None, None, db)
    if place.database is None:
        raise UsageError("demo --db takes a PostgreSQL database: postgresql://USER@HOST/DATABASE")
    migrate_in(place.database, click.echo)
    return place.database


async def _play(output: DemoOutput, place: DemoPlace) -> None:
    figures = LiveFigures(output)
    async with AsyncExitStack() as lives:
        worker = await lives.enter_async_context(_start_worker(place, life=1))
        await _waiting(output, figures, worker)
        killed_at = await _kill(output, figures, worker, place)
        worker = await lives.enter_async_context(_start_worker(place, life=2))
        await _recovery(output, figures, worker, place, killed_at)
        await _ending(output, figures, worker, place.folder)


# --- the parts ---------------------------------------------------------------------------


async def _waiting(output: DemoOutput, figures: LiveFigures, worker: WorkerProcess) -> None:
    output.heading(
        f"1  {PARCELS} tasks wait, {SLOTS} slots work",
        f"parcels wait for something; letters are ordinary work, {LETTER_S * 1000:.0f} ms each",
    )
    output.say(f"started a process with {SLOTS} slots: {worker.process.pid}")
    with figures.shown("parcels are packed, and begin to wait"):
        await worker.watch(figures, lambda: figures.all_waiting)
        letters_before = figures.letters
        figures.title = "every parcel waits; letters go through meanwhile"
        await worker.watch_for(figures, WATCH_S)
    condition, promise, sleep = (figures.waiting.get(kind, 0) for kind in KINDS)
    output.done(
        f"[cyan]{figures.parked}[/] parcels wait: {condition} for a door, "
        f"{promise} for a signature, {sleep} for their hour"
    )
    for run_id, sentence in worker.examples():
        output.say(f"[blue]{run_id}[/]: {escape(sentence)}")
    output.done(
        f"meanwhile [cyan]{figures.letters - letters_before}[/] letters went through "
        f"{SLOTS} slots; at most {figures.peak} were held at once"
    )
    output.say(
        "[dim]if a waiting task kept its slot, 4 parcels would wait and nothing would move[/]"
    )


async def _kill(
    output: DemoOutput, figures: LiveFigures, worker: WorkerProcess, place: DemoPlace
) -> float:
    why = f"the process dies with everything it has in memory; the {place.noun} does not"
    output.heading("2  kill -9", why)
    await worker.kill()
    output.died(
        f"kill -9 {worker.process.pid}, with {figures.parked} tasks waiting and others at work"
    )
    figures.restart()
    return perf_counter()


async def _recovery(
    output: DemoOutput,
    figures: LiveFigures,
    worker: WorkerProcess,
    place: DemoPlace,
    killed_at: float,
) -> None:
    output.say(f"started again on the same {place.noun}: process {worker.process.pid}")
    with figures.shown("what was parked is taken up, and waits again"):
        await worker.watch(figures, lambda: figures.all_waiting)
        took, waiting = perf_counter() - killed_at, figures.parked
        await worker.watch_for(figures, AFTERWARDS_S)  # on a slow machine some arrive meanwhile
    output.done(
        f"{took:.1f} s after the kill all [cyan]{waiting}[/] wait again, Python's start included"
    )
    output.done(
        f"letters go on, {figures.report.letters} more; {figures.report.recovered} that were "
        "cut off have been run again"
    )


async def _ending(
    output: DemoOutput, figures: LiveFigures, worker: WorkerProcess, folder: Path
) -> None:
    output.heading("3  What they waited for", "the door opens, signatures come, hours strike")
    with figures.shown("the door is open"):
        (folder / "door").touch()
        opened_at = perf_counter()
        awake = PARCELS - figures.waiting.get("sleep", 0)
        await worker.watch(figures, lambda: figures.delivered >= awake)
        took = perf_counter() - opened_at
        figures.title = f"the others sleep {SLEEP_S:.0f} s from when they began, kill or no kill"
        await worker.watch(figures, lambda: figures.delivered >= PARCELS)
    output.done(f"{awake} parcels woken and delivered in {took:.1f} s, on {SLOTS} slots")
    output.done(
        f"{PARCELS - awake} slept {SLEEP_S:.0f} s, the death of their process included: "
        f"{figures.report.late_ms:.0f} ms late at most"
    )
    await worker.process.wait()
    for book in ("packed", "delivered"):
        names = (folder / book).read_text().split()
        output.done(
            f"{book}: {len(set(names))} of {PARCELS} parcels, "
            f"{len(names) - len(set(names)) or 'none'} of them twice"
        )
    output.done(
        f"in all, {figures.letters} letters; never more than {figures.peak} of {SLOTS} slots held"
    )


def _verdict(output: DemoOutput, place: DemoPlace) -> None:
    output.heading("4  The doctor", f"the {place.noun} is checked against every invariant")
    report = place.examine()
    show(report, output.console)
    if not report.is_sound:
        raise LaybyError(f"{place.shown}: the demo broke this {place.noun}; please report this")


# --- the process -------------------------------------------------------------------------


@asynccontextmanager
async def _start_worker(place: DemoPlace, life: int) -> AsyncGenerator[WorkerProcess]:
    """Started in its own session, so that Ctrl-C reaches only this process."""
    command = [sys.executable, "-m", "layby.cli.demo_worker", str(place.folder), str(life)]
    with (place.folder / "errors").open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            start_new_session=True,
            env=place.environment,
        )
    try:
        yield WorkerProcess(process, place, life)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
