"""`layby demo`: what layby does, shown for real on a SQLite file in a temporary folder.

Nothing here is staged: the worker that dies is a process of its own, killed with SIGKILL.
"""

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table

from layby.cli.doctor import examine, show
from layby.client.local import LocalClient
from layby.core.commands import (
    CreatePromise,
    FinishTask,
    RegisterCallback,
    SettlePromise,
    SuspendAction,
    SuspendTask,
    Take,
    Value,
    WatchPromise,
)
from layby.core.model import NEVER
from layby.core.replies import Claim, FinishData, PromiseData, Reply, TakeData
from layby.core.rows import Settings
from layby.engine.calendar import next_after
from layby.engine.clock import SystemClock
from layby.engine.engine import Engine
from layby.errors import LaybyError
from layby.store.sqlite import SqliteStore

GROUP: Final = "demo"
OURS: Final = {"resonate:target": f"poll://any@layby.{GROUP}"}
SLEEP_MS: Final = 2_000
STEPS_BEFORE_THE_KILL: Final = 3


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


@click.command()
def demo() -> None:
    """Show a promise, a killed worker and a timer, for real, in a few seconds."""
    stage = Stage(Console(highlight=False))
    stage.console.print("[bold]layby[/]: a task that waits holds no slot.")
    with TemporaryDirectory(prefix="layby-demo-") as folder:
        file = Path(folder) / "demo.db"
        stage.console.print("[dim]Everything below happens in one SQLite file:[/]")
        stage.console.print(f"[dim]{file}[/]", soft_wrap=True)
        asyncio.run(_play(stage, file))


async def _play(stage: Stage, file: Path) -> None:
    async with opened(file) as (engine, client):
        await _promise(stage, engine, client)
        await client.send(_task("charge-card"))
    await _killed_worker(stage, file)
    async with opened(file) as (engine, client):
        await _recovery(stage, client)
        await _timer(stage, client)
        _verdict(stage, file)


# --- the acts ----------------------------------------------------------------------------


async def _promise(stage: Stage, engine: Engine, client: LocalClient) -> None:
    stage.act("1  A promise", "a value that will come, kept on disk: whoever needs it waits for it")
    deadline = engine.clock.now() + 60_000
    await client.send(CreatePromise(id="approval", timeout_at=deadline))
    stage.done("created the promise [cyan]approval[/]")
    waiting = asyncio.create_task(client.send(WatchPromise(id="approval")))
    await asyncio.sleep(0)
    stage.say("somebody waits for it ...")
    settle = SettlePromise(id="approval", state="resolved", value=encoded("yes, by Ada"))
    started = perf_counter()
    await asyncio.to_thread(engine.call, settle)  # from another thread, as a person would
    promise = promise_of(await waiting)
    took = (perf_counter() - started) * 1000
    text = f"settled from elsewhere and safe on disk; {took:.1f} ms later the waiter has"
    stage.done(f"{text} [cyan]{decoded(promise.value)}[/]")


async def _killed_worker(stage: Stage, file: Path) -> None:
    stage.act(
        "2  A worker is killed",
        "a task is taken under a lease: when its process dies, the task does not",
    )
    with _worker(file) as worker:
        stage.say(f"started a worker: process {worker.pid}")
        for line in _lines(worker):
            stage.say(f"[blue]worker:[/] {line}")
        worker.kill()
        worker.wait()
    stage.died(f"kill -9 {worker.pid}, in the middle of its work")


async def _recovery(stage: Stage, client: LocalClient) -> None:
    started = perf_counter()
    claim = await take(client, "worker-2", "charge-card")
    took = (perf_counter() - started) * 1000
    stage.say("the file is opened again, by another worker")
    text = f"it has the task {took:.1f} ms later: [cyan]{claim.task.id}[/]"
    stage.done(f"{text} at version {claim.task.version}, after {claim.task.crashes} crash")
    late = FinishTask(id=claim.task.id, version=claim.task.version - 1, value=encoded("twice?"))
    refused = await client.send(late)
    stage.done(f"a late write of the dead worker, at version 1, is refused ({refused.status})")
    promise = await finish(client, claim, "charged once")
    stage.done(f"finished: [cyan]{decoded(promise.value)}[/]")


async def _timer(stage: Stage, client: LocalClient) -> None:
    stage.act("3  A timer", "a sleeping task is a row on disk: it holds no slot, no thread")
    await client.send(_task("remind"))
    claim = await take(client, "worker-2", "remind")
    due_at = SystemClock().now() + SLEEP_MS
    timer = CreatePromise(id="remind.sleep", timeout_at=due_at, tags={"resonate:timer": "true"})
    await client.send(timer)
    await client.send(_suspension(claim, timer.id))
    stage.done(
        f"the task [cyan]remind[/] sleeps for {SLEEP_MS / 1000:.0f} s, suspended in the file"
    )
    with stage.console.status("[dim]nobody holds it[/]", spinner="line"):
        claim = await take(client, "worker-2", "remind", wait_ms=SLEEP_MS * 5)
    late = SystemClock().now() - due_at
    stage.done(f"woken {late} ms after its time, at version {claim.task.version}")
    await finish(client, claim, "reminded")


def _verdict(stage: Stage, file: Path) -> None:
    stage.act("4  The doctor", "the file is checked against every invariant while it is in use")
    report = examine(file, limit=10)
    show(report, stage.console)
    if not report.is_sound:
        raise LaybyError(f"{file}: the demo broke its own file; please report this")


# --- what the acts are made of -----------------------------------------------------------


@asynccontextmanager
async def opened(file: Path) -> AsyncGenerator[tuple[Engine, LocalClient]]:
    engine = Engine(SqliteStore(file, Settings(), next_after), SystemClock())
    engine.start()
    try:
        yield engine, LocalClient(engine)
    finally:
        await asyncio.to_thread(engine.stop)


async def take(client: LocalClient, pid: str, name: str, wait_ms: int = 10_000) -> Claim:
    """Take one task of this name as an embedded holder, waiting until there is one."""
    wish = Take(
        pid=pid,
        incarnation=f"{pid}-1",
        group=GROUP,
        names=(name,),
        free=1,
        embedded=True,
        wait_ms=wait_ms,
    )
    reply = await client.send(wish)
    if not isinstance(reply.data, TakeData) or not reply.data.claims:
        raise LaybyError(f"no task {name} came within {wait_ms} ms ({reply.data})")
    return reply.data.claims[0]


async def finish(client: LocalClient, claim: Claim, result: str) -> Any:
    task = claim.task
    reply = await client.send(FinishTask(id=task.id, version=task.version, value=encoded(result)))
    return promise_of(reply)


def promise_of(reply: Reply) -> Any:
    if not isinstance(reply.data, PromiseData | FinishData):
        raise LaybyError(f"refused: {reply.data}")
    return reply.data.promise


def encoded(value: object) -> Value:
    return Value(headers={}, data=base64.b64encode(msgspec.json.encode(value)).decode())


def decoded(stored: str) -> Any:
    return msgspec.json.decode(base64.b64decode(msgspec.json.decode(stored)["data"]))


def _task(name: str) -> CreatePromise:
    return CreatePromise(id=name, timeout_at=NEVER, tags={**OURS, "layby:name": name})


def _suspension(claim: Claim, awaited: str) -> SuspendTask:
    task = claim.task
    wait = RegisterCallback(awaited=awaited, awaiter=task.id)
    action = SuspendAction(kind=wait.kind, head={}, data=wait)
    return SuspendTask(id=task.id, version=task.version, actions=[action])


@contextmanager
def _worker(file: Path) -> Generator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "layby.cli.demo_worker", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:  # noqa: S603 - our own module
        try:
            yield worker
        finally:
            worker.kill()


def _lines(worker: "subprocess.Popen[str]") -> Iterator[str]:
    """What the worker says until it is in the middle of its work."""
    assert worker.stdout is not None
    for number, line in enumerate(worker.stdout):
        yield line.strip()
        if number == STEPS_BEFORE_THE_KILL:
            return
    raise LaybyError("the demo's worker ended by itself: see what it wrote above")
