"""`layby demo`: what layby does, shown for real on a SQLite file in a temporary folder.

Nothing here is staged: the tasks run in a process of their own (`demo_worker.py`), which is
killed with SIGKILL and started again; this module watches, counts and tells.
"""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import click
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table

from layby.cli.demo_worker import KINDS, LETTER_S, PARCELS, SLEEP_S, SLOTS, Report
from layby.cli.doctor import examine, show
from layby.errors import LaybyError

WATCH_S: Final = 3.0
AFTERWARDS_S: Final = 2.0
PATIENCE_S: Final = 60.0
"""A step that takes longer than this has failed, even on a very busy machine."""
PARKED: Final = """
    FROM task_executions
    WHERE sub_status = 'Deferred' AND try_number = ? AND name = 'parcel/deliver'
    GROUP BY json_extract(waiting_on, '$.kind')
"""


class Stage:
    """What the audience sees: a heading for each act, one line for each thing that happened."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._done = "v" if console.options.ascii_only else "✓"

    def act(self, title: str, why: str) -> None:
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


class Scene:
    """The figures that change while one looks at them; in a pipe, a line each second instead."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_live = stage.console.is_terminal
        self._told_at = perf_counter()
        self.title = ""
        self.waiting: dict[str, int] = {}
        """Tasks parked now, by what they wait for, as the file has it."""
        self.report = Report()
        self._before = Report()
        """What the life of the process that ended had reached."""

    @property
    def parked(self) -> int:
        return sum(self.waiting.values())

    @property
    def are_all_there(self) -> bool:
        """Every parcel waits, or did: on a very busy machine the first hours strike early."""
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

    def next_life(self) -> None:
        self._before = Report(letters=self.letters, delivered=self.delivered, peak=self.peak)
        self.report = Report()
        self.waiting = {}

    @contextmanager
    def shown(self, title: str) -> Generator[None]:
        self.title = title
        with (
            Live(
                get_renderable=self._table,
                console=self._stage.console,
                refresh_per_second=10,
                transient=True,
            )
            if self._is_live
            else nullcontext()
        ):
            yield

    def learn(self, report: Report, waiting: dict[str, int]) -> None:
        self.report, self.waiting = report, waiting
        if not self._is_live and perf_counter() - self._told_at >= 1:
            self._told_at = perf_counter()
            self._stage.say(
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
            width = max(5, min(50, self._stage.console.width - 41))
            bar = ProgressBar(total, value, width, complete_style=style, finished_style=style)
            bars.add_row("  ", name, bar, text)
        bars.add_row("  ", "letters", f"[bold]{self.letters}[/] done")
        framed = Table.grid()
        framed.add_column(no_wrap=True, overflow="ellipsis")
        framed.add_row(f"    [dim]{self.title}[/]")
        framed.add_row(bars)
        return framed


class Depot:
    """The process that runs the tasks, as seen from outside: what it tells, what is in its file."""

    def __init__(self, process: Process, folder: Path, life: int) -> None:
        self.process = process
        self._folder = folder
        self._life = life

    async def watch(self, scene: Scene, until: Callable[[], bool]) -> None:
        """Follow its reports until they say so."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not until():
                    scene.learn(await self._report(), self._waiting())
        except TimeoutError:
            raise LaybyError(
                f"the demo's process {self.process.pid} did not get there in {PATIENCE_S:.0f} s: "
                "try again when the machine is less busy"
            ) from None

    async def watch_for(self, scene: Scene, seconds: float) -> None:
        end = perf_counter() + seconds
        await self.watch(scene, lambda: perf_counter() >= end)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    def examples(self) -> list[tuple[str, str]]:
        """A waiting run of each kind, and what the file says of it."""
        found = self._asked("SELECT min(root), json_extract(waiting_on, '$.sentence')")
        return [(root.removeprefix("run/"), sentence) for root, sentence in found]

    def _waiting(self) -> dict[str, int]:
        return dict(self._asked("SELECT json_extract(waiting_on, '$.kind'), count(*)"))

    def _asked(self, select: str) -> list[Any]:
        """Of the tasks that are parked in this life of the process: each life is another try."""
        file = f"file:{self._folder / 'demo.db'}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as connection:
            return connection.execute(f"{select} {PARKED}", (self._life,)).fetchall()

    async def _report(self) -> Report:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            said = (self._folder / "errors").read_text().strip() or "it said nothing"
            raise LaybyError(f"the demo's own process ended by itself; please report this: {said}")
        return msgspec.json.decode(line, type=Report)


@click.command()
def demo() -> None:
    """Show 200 waiting tasks on 4 slots, and a kill -9 in between: for real, in 12 seconds."""
    stage = Stage(Console(highlight=False))
    stage.console.print("[bold]layby[/]: a task that waits holds no slot.")
    with TemporaryDirectory(prefix="layby-demo-") as folder:
        stage.console.print("[dim]Everything below happens in one SQLite file:[/]")
        stage.console.print(f"[dim]{folder}/demo.db[/]", soft_wrap=True)
        asyncio.run(_play(stage, Path(folder)))


async def _play(stage: Stage, folder: Path) -> None:
    scene = Scene(stage)
    async with AsyncExitStack() as lives:
        depot = await lives.enter_async_context(_depot(folder, life=1))
        await _waiting(stage, scene, depot)
        killed_at = await _kill(stage, scene, depot)
        depot = await lives.enter_async_context(_depot(folder, life=2))
        await _recovery(stage, scene, depot, killed_at)
        await _ending(stage, scene, depot, folder)
    _verdict(stage, folder / "demo.db")


# --- the acts ----------------------------------------------------------------------------


async def _waiting(stage: Stage, scene: Scene, depot: Depot) -> None:
    stage.act(
        f"1  {PARCELS} tasks wait, {SLOTS} slots work",
        f"parcels wait for something; letters are ordinary work, {LETTER_S * 1000:.0f} ms each",
    )
    stage.say(f"started a process with {SLOTS} slots: {depot.process.pid}")
    with scene.shown("parcels are packed, and begin to wait"):
        await depot.watch(scene, lambda: scene.are_all_there)
        letters_before = scene.letters
        scene.title = "every parcel waits; letters go through meanwhile"
        await depot.watch_for(scene, WATCH_S)
    condition, promise, sleep = (scene.waiting.get(kind, 0) for kind in KINDS)
    stage.done(
        f"[cyan]{scene.parked}[/] parcels wait: {condition} for a door, "
        f"{promise} for a signature, {sleep} for their hour"
    )
    for run_id, sentence in depot.examples():
        stage.say(f"[blue]{run_id}[/]: {escape(sentence)}")
    stage.done(
        f"meanwhile [cyan]{scene.letters - letters_before}[/] letters went through {SLOTS} slots; "
        f"at most {scene.peak} were held at once"
    )
    stage.say(
        "[dim]if a waiting task kept its slot, 4 parcels would wait and nothing would move[/]"
    )


async def _kill(stage: Stage, scene: Scene, depot: Depot) -> float:
    stage.act("2  kill -9", "the process dies with everything it has in memory; the file does not")
    await depot.kill()
    stage.died(f"kill -9 {depot.process.pid}, with {scene.parked} tasks waiting and others at work")
    scene.next_life()
    return perf_counter()


async def _recovery(stage: Stage, scene: Scene, depot: Depot, killed_at: float) -> None:
    stage.say(f"started again on the same file: process {depot.process.pid}")
    with scene.shown("what was parked is taken up, and waits again"):
        await depot.watch(scene, lambda: scene.are_all_there)
        took = perf_counter() - killed_at
        await depot.watch_for(scene, AFTERWARDS_S)
    stage.done(
        f"{took:.1f} s after the kill all [cyan]{scene.parked}[/] wait again, "
        "Python's start included"
    )
    stage.done(
        f"letters go on, {scene.report.letters} more; {scene.report.recovered} that were cut off "
        "have been run again"
    )


async def _ending(stage: Stage, scene: Scene, depot: Depot, folder: Path) -> None:
    stage.act("3  What they waited for", "the door opens, signatures come, hours strike")
    with scene.shown("the door is open"):
        (folder / "door").touch()
        opened_at = perf_counter()
        awake = PARCELS - scene.waiting.get("sleep", 0)
        await depot.watch(scene, lambda: scene.delivered >= awake)
        took = perf_counter() - opened_at
        scene.title = f"the others sleep {SLEEP_S:.0f} s from when they began, kill or no kill"
        await depot.watch(scene, lambda: scene.delivered >= PARCELS)
    stage.done(f"{awake} parcels woken and delivered in {took:.1f} s, on {SLOTS} slots")
    stage.done(
        f"{PARCELS - awake} slept {SLEEP_S:.0f} s, the death of their process included: "
        f"{scene.report.late_ms:.0f} ms late at most"
    )
    await depot.process.wait()
    for book in ("packed", "delivered"):
        names = (folder / book).read_text().split()
        stage.done(
            f"{book}: {len(set(names))} of {PARCELS} parcels, "
            f"{len(names) - len(set(names)) or 'none'} of them twice"
        )
    stage.done(
        f"in all, {scene.letters} letters; never more than {scene.peak} of {SLOTS} slots held"
    )


def _verdict(stage: Stage, file: Path) -> None:
    stage.act("4  The doctor", "the file is checked against every invariant")
    report = examine(file, limit=10)
    show(report, stage.console)
    if not report.is_sound:
        raise LaybyError(f"{file}: the demo broke its own file; please report this")


# --- the process -------------------------------------------------------------------------


@asynccontextmanager
async def _depot(folder: Path, life: int) -> AsyncGenerator[Depot]:
    """Started in a session of its own, so that Ctrl-C reaches this process only."""
    command = [sys.executable, "-m", "layby.cli.demo_worker", str(folder), str(life)]
    with (folder / "errors").open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True
        )
    try:
        yield Depot(process, folder, life)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
