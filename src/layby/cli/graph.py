"""`layby graph`: check, plan, run and draw a graph, from Python or from YAML."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import click

from layby.cli import showing
from layby.cli.command_groups import CommandGroup
from layby.cli.expected_replies import Refused
from layby.cli.options import DURATION, as_json, json_or_text
from layby.cli.user_code import complete_files, find_graph
from layby.errors import UsageError
from layby.executors import (
    DeterministicTaskExecutor,
    TaskExecutor,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.graph import Graph, GraphError, GraphFormError, GraphRuntime, load_graph
from layby.graph.progress import MAX_EPOCHS

ADMITTED = 1_024
"""Work items that may wait for the executor of `layby graph run`."""

target = click.argument("target", metavar="TARGET", shell_complete=complete_files)


@click.group(cls=CommandGroup)
def graph() -> None:
    """In-process graphs: components, ports and edges.

    TARGET is a YAML file, or MODULE:GRAPH as for `layby run`; leave out `:GRAPH` if there
    is only one graph.
    """


@graph.command(
    epilog="""\b
Examples:
  layby graph validate camera.yaml
  layby graph validate camera.py:graph --json"""
)
@target
@as_json
@click.pass_context
def validate(ctx: click.Context, target: str, *, as_json: bool) -> None:
    """Check a graph, and that its functions are there.

    Nothing is run. Exit code 1 says that something is wrong with it; every problem is a line.
    """
    problems: list[str] = []
    warnings: list[str] = []
    said = ""
    try:
        found = _load(target, resolve=True)
        warnings = found.warnings()
        said = f"{found.name}: {_sizes(found)}, can run"
    except GraphFormError as error:
        problems = error.problems
    except GraphError as error:
        problems = [str(error)]
    if as_json:
        showing.print_json({"ok": not problems, "problems": problems, "warnings": warnings})
    else:
        for line in (*problems, *([said] if said else []), *(f"warning: {w}" for w in warnings)):
            showing.print_line(line)
    ctx.exit(1 if problems else 0)


@graph.command(
    epilog="""\b
Examples:
  layby graph plan camera.yaml
  layby graph plan camera.py:graph --json"""
)
@target
@as_json
def plan(target: str, *, as_json: bool) -> None:
    """Show the order of components and the bounds of edges.

    An epoch visits each component once, in this order.
    """
    with _told():
        made = _load(target, resolve=False).plan()
    if as_json:
        showing.print_json(
            {
                "graph": made.graph,
                "components": [each._asdict() for each in made.components],
                "edges": [each._asdict() for each in made.edges],
                "warnings": made.warnings,
            }
        )
        return
    showing.print_table(
        ("ORDER", "COMPONENT", "TRIGGER", "INPUTS", "OUTPUTS"),
        (
            (str(number), each.name, _trigger(each), _listed(each.inputs), _listed(each.outputs))
            for number, each in enumerate(made.components, 1)
        ),
        prose=("INPUTS", "OUTPUTS"),
    )
    if made.edges:
        showing.print_line("")
        showing.print_table(
            ("FROM", "TO", "KIND", "VISIBLE", "MODE", "CAPACITY", "IN FLIGHT", "WHEN FULL"),
            (
                (
                    each.source,
                    each.target,
                    each.kind,
                    each.visible,
                    each.mode,
                    str(each.capacity),
                    str(each.max_inflight or "-"),
                    each.overflow,
                )
                for each in made.edges
            ),
        )
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)


@graph.command(
    epilog="""\b
Examples:
  layby graph run camera.yaml
  layby graph run camera.py:graph --fire sensor --threads 4 --timeout 30s
  layby graph run camera.yaml --fire 'sensor={"frame": 21}' --epochs 3 --trace 100 --json"""
)
@target
@click.option(
    "--fire",
    "fires",
    multiple=True,
    metavar="COMPONENT[=JSON]",
    help="Let this component run, with this payload.  [default: all with trigger manual]",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="Run this many epochs.  [default: until nothing is left]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Run work in this many threads instead of between epochs.",
)
@click.option("--timeout", type=DURATION, help="How long it may take.")
@click.option(
    "--max-epochs",
    default=MAX_EPOCHS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Stop after this many epochs, in case the graph never becomes idle.",
)
@click.option(
    "--trace", default=0, type=click.IntRange(min=0), help="Print the last N events.", metavar="N"
)
@as_json
def run(
    target: str,
    fires: tuple[str, ...],
    epochs: int | None,
    threads: int | None,
    timeout: int | None,
    max_epochs: int,
    trace: int,
    *,
    as_json: bool,
) -> None:
    """Run epochs until nothing is left; show the counters.

    What components print goes to stdout, with --json to stderr. Between epochs all work is done,
    in threads too. Exit code 1 says that a component raised, or that the graph was not idle within
    --timeout or --max-epochs.
    """
    output: AbstractContextManager[Any] = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with output, _told():
        found = _load(target, resolve=True)
        executor = _executor(threads)
        runtime = _runtime(found, executor, trace, len(fires))
        _fire(found, runtime, fires)
        limits = _Limits(epochs, None if timeout is None else timeout / 1000, max_epochs)
        error = _run(runtime, executor, limits)
    _show_run(runtime, found.name, error, as_json=as_json)
    if error is not None:
        raise Refused(_what(error))


@graph.command(
    epilog="""\b
Examples:
  layby graph render camera.yaml > camera.mmd
  layby graph render camera.py:graph --format svg --output camera.svg"""
)
@target
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "svg"]),
    default="mermaid",
    show_default=True,
    help="svg needs mermaid-cli (the command mmdc).",
)
@click.option("--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="Write here.")
@as_json
def render(target: str, form: str, output: str | None, *, as_json: bool) -> None:
    """Draw a graph: dotted arrows are async edges."""
    with _told():
        text = _load(target, resolve=False).mermaid()
    picture = text if form == "mermaid" else _svg(text)
    if output is not None:
        _write(output, picture)
    if as_json:
        told = {"file": output} if output is not None else {"text": picture}
        showing.print_json({"format": form, **told})
    elif output is None:
        click.echo(picture, nl=False)
    else:
        showing.print_line(f"{output} is written")


def _write(output: str, picture: str) -> None:
    try:
        Path(output).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None


# -- loading


def _load(target: str, *, resolve: bool) -> Graph:
    with redirect_stdout(sys.stderr):  # what modules print while they are imported
        return _found(target, resolve=resolve)


def _found(target: str, *, resolve: bool) -> Graph:
    if not target.endswith((".yaml", ".yml")):
        return find_graph(target)
    if not Path(target).is_file():
        raise UsageError(f"there is no file {target}: give a YAML file, or MODULE:GRAPH")
    for folder in (str(Path(target).resolve().parent), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return load_graph(target, resolve=resolve)


@contextmanager
def _told() -> Generator[None]:
    """A graph that cannot be is wrong usage here."""
    try:
        yield
    except GraphError as error:
        raise UsageError(str(error)) from None


# -- running


class _Limits(NamedTuple):
    epochs: int | None
    timeout: float | None
    max_epochs: int


def _runtime(found: Graph, executor: TaskExecutor, trace: int, fires: int) -> GraphRuntime:
    """With room for all that is to be fired; what it warns of is a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runtime = found.runtime(
            task_executor=executor, trace_capacity=trace, fire_capacity=max(ADMITTED, fires)
        )
    for each in caught:
        click.echo(f"warning: {each.message}", err=True)
    return runtime


def _executor(threads: int | None) -> TaskExecutor:
    if threads is None:
        return DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=ADMITTED))
    config = ThreadedTaskExecutorConfig(
        max_workers=threads, max_inflight=threads, queue_capacity=ADMITTED
    )
    return ThreadedTaskExecutor(config)


def _fire(found: Graph, runtime: GraphRuntime, fires: tuple[str, ...]) -> None:
    manual = [each.name for each in found.components.values() if each.trigger.kind == "manual"]
    if not fires and not manual:
        raise UsageError(
            f"graph '{found.name}' has no component with trigger manual: say which one runs first, "
            f"--fire {next(iter(found.components))}"
        )
    for each in fires or manual:
        component, equals, payload = each.partition("=")
        fired = runtime.fire(component, json_or_text(payload) if equals else None)
        if not fired:
            raise UsageError(f"--fire {component} was refused: {fired.reason}")


def _run(runtime: GraphRuntime, executor: TaskExecutor, limits: _Limits) -> BaseException | None:
    """What a component raised, or that time ran out."""
    try:
        if any(state.is_async for state in runtime.order):
            asyncio.run(_drive_async(runtime, executor, limits))
        else:
            _drive(runtime, executor, limits)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is its own
        return error
    finally:
        runtime.close()
        executor.shutdown(None if limits.timeout is None else 0)
    return None


def _drive(runtime: GraphRuntime, executor: TaskExecutor, limits: _Limits) -> None:
    if limits.epochs is None:
        runtime.run_until_idle(timeout=limits.timeout, max_epochs=limits.max_epochs)
        return
    between = _Between(runtime, executor, limits)
    for _ in range(limits.epochs):
        runtime.run_epoch()
        executor.run_ready()
        between.finish(executor.wait_for_idle(between.left()) is True)


async def _drive_async(runtime: GraphRuntime, executor: TaskExecutor, limits: _Limits) -> None:
    driver = runtime.drive()
    if limits.epochs is None:
        await driver.run_until_idle(timeout=limits.timeout, max_epochs=limits.max_epochs)
        return
    between = _Between(runtime, executor, limits)
    for _ in range(limits.epochs):
        await between.within_time(driver.run_epoch())
        executor.run_ready()
        # Not on the loop: work in a thread may be waiting for something that runs there.
        is_idle = await asyncio.to_thread(executor.wait_for_idle, between.left())
        between.finish(is_idle is True)


class _Between:
    """Between two of a number of epochs all work is done, so that they mean the same every time."""

    def __init__(self, runtime: GraphRuntime, executor: TaskExecutor, limits: _Limits) -> None:
        self._runtime = runtime
        self._executor = executor
        self._timeout = limits.timeout
        self._ends_at = None if limits.timeout is None else time.monotonic() + limits.timeout

    def finish(self, is_idle: bool) -> None:  # noqa: FBT001 - what was found out
        self._executor.run_ready()
        if not is_idle or self.left() == 0:
            raise self._timed_out()

    async def within_time(self, running: Coroutine[Any, Any, int]) -> None:
        limit = asyncio.timeout(self.left())
        try:
            async with limit:
                await running
        except TimeoutError as error:
            if limit.expired() and not _is_of_component(error):
                raise self._timed_out() from None
            raise

    def left(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(
            f"graph '{self._runtime.graph_name}' is at epoch {self._runtime.epoch} after "
            f"{self._timeout} s; what is left: {self._runtime.what_is_left() or 'nothing'}"
        )


def _show_run(
    runtime: GraphRuntime, name: str, error: BaseException | None, *, as_json: bool
) -> None:
    metrics = runtime.metrics()
    events = runtime.trace()
    if error is not None and _is_of_component(error):
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    if as_json:
        showing.print_json(
            {
                "graph": name,
                "error": None if error is None else _what(error),
                "metrics": metrics,
                "channels": runtime.channel_metrics(),
                "trace": [each._asdict() for each in events],
            }
        )
        return
    if events:
        showing.print_table(
            ("NUMBER", "EPOCH", "EVENT", "OF", "DETAIL"),
            ([showing.plain(each) for each in event] for event in events),
            prose=("DETAIL",),
        )
    showing.print_table(
        ("COUNTER", "VALUE"), ((name, str(value)) for name, value in metrics.items() if value)
    )


def _is_of_component(error: BaseException) -> bool:
    """What a component raises has its name; what a driver says speaks for itself."""
    return hasattr(error, "__notes__") or isinstance(error, SystemExit)


def _what(error: BaseException) -> str:
    if not _is_of_component(error):
        return str(error)
    told = f"{type(error).__name__}: {error}"
    notes = getattr(error, "__notes__", [])
    return f"{told} ({notes[0]})" if notes else told


# -- drawing


def _svg(text: str) -> str:
    renderer = shutil.which("mmdc")
    if renderer is None:
        raise UsageError(
            "an SVG needs mermaid-cli, and there is no command mmdc here: "
            "npm install -g @mermaid-js/mermaid-cli, or render Mermaid and paste it at mermaid.live"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, drawn = Path(folder) / "graph.mmd", Path(folder) / "graph.svg"
        source.write_text(text, encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - the user's own renderer, and a file of ours
            [renderer, "--input", source, "--output", drawn],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not drawn.is_file():
            raise UsageError(f"{renderer} could not draw it: {done.stderr.strip()[-300:]}")
        return drawn.read_text(encoding="utf-8")


# -- words


def _sizes(found: Graph) -> str:
    components, edges = len(found.components), len(found.edges)
    return f"{components} component{'s' * (components != 1)}, {edges} edge{'s' * (edges != 1)}"


def _trigger(component: Any) -> str:
    is_plain = component.event in ("manual", "message", component.trigger)
    return component.trigger if is_plain else f"{component.trigger} ({component.event})"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"
