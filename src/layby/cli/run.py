"""`layby run`: start a run of a workflow and watch it to its end."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from layby.cli import showing
from layby.cli.closing import close_and_report, exit_soon
from layby.cli.connection import (
    DEFAULT_FILE,
    FIRST_ANSWER_S,
    Place,
    ask,
    is_served,
    now_at,
    socket_of,
)
from layby.cli.expected_replies import Refused, run_rows
from layby.cli.options import (
    DURATION,
    JsonParam,
    as_json,
    graced,
    json_or_text,
    prioritised,
    reaching,
    slotted,
    version_tagged,
)
from layby.cli.user_code import complete_files, find_flow, find_flow_or_name
from layby.client.interface import Client
from layby.engine import engine
from layby.errors import LaybyError, RunCancelled, RunFailed, UsageError
from layby.runner.run import Run
from layby.runner.runner import Runner
from layby.server.signals import stop_requested
from layby.worker import reporting
from layby.workflow import plan
from layby.workflow.context import Context
from layby.workflow.next_life import rows_of_life
from layby.workflow.short_ids import quoted
from layby.workflow.status import RunStatus, TaskExecution

REFRESH_S = 0.2
"""How often the tasks are read while a person watches."""
OTHER_LINES = 3
"""Lines besides the tasks: the run, the tasks that are only counted, and the cursor."""
SHOWN_FIRST = (
    "Failed",
    "Running",
    "Halted",
    "Ready",
    "Pending",
    "Cancelled",
    "Skipped",
    "Completed",
)
"""Which tasks are shown first if there is no room for all."""
ENDED = {
    "resolved": "has completed",
    "rejected": "has failed",
    "rejected_canceled": "was cancelled",
    "rejected_timedout": "has failed: its deadline passed",
}
"""How a run stands that is not pending any more."""


@click.command(
    epilog="""\b
Examples:
  layby run orders.py:flow --context order=7
  layby run shop.flows:order --context '{"order": 7}' --id order-7 --deadline 2h
  layby run orders.py:flow --context @order.json --db sqlite:orders.db --json
  layby run order --url http://127.0.0.1:8001      by the name its workers know"""
)
@click.argument("target", metavar="MODULE:FLOW", shell_complete=complete_files)
@click.option(
    "--context",
    "given",
    multiple=True,
    help="Its initial context: KEY=VALUE (JSON, or else text), a JSON object, or @FILE; "
    "repeatable, later ones win.",
)
@click.option("--id", "run_id", help="The run's id; the same id is the same run.")
@click.option("--deadline", type=DURATION, help="How long the run may take.")
@prioritised
@slotted
@click.option(
    "--group", default="default", show_default=True, help="The group of workers that run its tasks."
)
@click.option("--work", is_flag=True, help="Over a URL: run its tasks here as well.")
@graced
@version_tagged
@reaching
@as_json
def run(
    place: Place,
    target: str,
    given: tuple[str, ...],
    run_id: str | None,
    deadline: int | None,
    priority: int,
    slots: int,
    group: str,
    grace: int,
    version_tag: str | None,
    *,
    work: bool,
    as_json: bool,
) -> None:
    """Start the workflow FLOW of MODULE, show its tasks, and print its result as JSON.

    MODULE is a file or an importable module. Exit code 1 means that the run failed. An interrupted
    run can be resumed: the same --id continues where it stopped. A run that was cancelled or passed
    its deadline is cleaned up first.

    Over a URL the workers of the server run its tasks, and this command only watches: FLOW alone,
    the name that the workers know, will do. With --work this command runs tasks as well.
    """
    place = _named(place)
    is_client = place.url is not None and not work
    _check_slots(is_client=is_client)
    with redirect_stdout(sys.stderr):
        flow = find_flow_or_name(target) if is_client else find_flow(target)
    context = read_context(given) if given else None  # an existing run has one
    runner = Runner(
        _address(place),
        slots=0 if is_client else slots,
        group=group,
        token=place.token,
        grace=grace / 1000,
        connect_timeout=None if place.waits else FIRST_ANSWER_S,
        version=version_tag,
    )
    seconds = None if deadline is None else deadline / 1000
    # The view shows failures itself; without a handler Python would print them once more.
    for told in (logging.getLogger(reporting.__name__), engine.failures):
        told.addHandler(logging.NullHandler())
    view = _RunView(showing.new_console(stderr=True), place, quiet=as_json)
    closer = _LoopCloser()
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result, whatever tasks print
            start = partial(
                runner.start, flow, context, run_id=run_id, deadline=seconds, priority=priority
            )
            result = closer.loop.run(_executed(runner, start, view))
    except (RunFailed, RunCancelled) as error:
        closer.code = 1
        if as_json:
            showing.print_json(_document(view, None, str(error)))
        raise Refused(str(error)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        closer.code = 130
        if view.run_id:
            again = _again(place, target, view.run_id, group, work=work)
            how = _how_it_goes_on(place, view.run_id, is_client=is_client)
            click.echo(f"the run '{view.run_id}' {how}: {again}", err=True)
        raise KeyboardInterrupt from None
    showing.print_json(_document(view, result, None) if as_json else result.to_dict())
    closer.code = 0


def _check_slots(*, is_client: bool) -> None:
    source = click.get_current_context().get_parameter_source("slots")
    if is_client and source is ParameterSource.COMMANDLINE:
        raise UsageError(
            "--slots: over a URL the workers of the server run the tasks; "
            "add --work to run them here as well"
        )


def _again(place: Place, target: str, run_id: str, group: str, *, work: bool) -> str:
    """The command that goes on with the run."""
    in_group = "" if group == "default" else f" --group {quoted(group)}"
    works = " --work" if work else ""
    return place.sent_here(f"layby run {quoted(target)} --id {quoted(run_id)}{in_group}{works}")


def _how_it_goes_on(place: Place, run_id: str, *, is_client: bool) -> str:
    """The run may have ended while this process was being ended, but for its clean-up."""
    state, cleanups = _standing(place, run_id)
    watched = "watch it again with" if is_client else "continue it with"
    if state not in ENDED:
        stays = "stays on the server, for its workers" if is_client else "is kept"
        return f"{stays}; {watched}"
    if not cleanups:
        return f"{ENDED[state]}; see how it ended with"
    tasks = " and ".join(f"'{each}'" for each in cleanups)
    still = f"tasks {tasks} still have" if len(cleanups) > 1 else f"task {tasks} still has"
    return f"{ENDED[state]}; {still} to clean up; {watched}"


def _standing(place: Place, run_id: str) -> tuple[str, tuple[str, ...]]:
    """The state of the latest life, and the tasks that have yet to clean up.

    Both are empty if nobody can tell.
    """

    async def work(client: Client) -> tuple[str, tuple[str, ...]]:
        life = rows_of_life(run_id, await run_rows(client, plan.root_id(run_id)))
        root = life.root[0].at(now)
        left = (each for each in plan.cleanups_of(root) if life.nodes[each][0].is_pending)
        return root.state, tuple(left)

    try:
        now = now_at(place)
        return ask(place, work)
    except LaybyError:
        return "", ()


class _LoopCloser:
    """Closes the loop after all output: a body still running in a thread would delay that."""

    def __init__(self) -> None:
        self.loop = asyncio.Runner()
        self.code = 2
        click.get_current_context().find_root().call_on_close(self._close)

    def _close(self) -> None:
        timer = exit_soon(self.code)
        self.loop.close()
        timer.cancel()


async def _executed(
    runner: Runner, start: Callable[[], Awaitable[Run]], view: "_RunView"
) -> Context:
    running = asyncio.current_task()
    assert running is not None
    stop_requested(running.cancel)
    await runner.__aenter__()
    try:
        started = await start()
        try:
            return await view.follow(started)
        except RunFailed as failed:
            view.print_tracebacks(failed)
            raise
    finally:
        await close_and_report(runner)


async def _ended(run: Run) -> Context:
    """The result of the run, once it is cleaned up: this process may be its only worker."""
    try:
        return await run.result()
    except (RunFailed, RunCancelled):
        await run.cleaned_up()
        raise


class _RunView:
    """What a person sees of the run: a live table, or in a pipe one line per change."""

    def __init__(self, console: Console, place: Place, *, quiet: bool) -> None:
        self._console = console
        self._place = place
        self._quiet = quiet
        self._printed: dict[str, str] = {}
        self.run_id = ""
        self.status: RunStatus | None = None

    async def follow(self, run: Run) -> Context:
        self.run_id = run.id
        result = asyncio.ensure_future(_ended(run))
        try:
            with self._shown():
                await self._update_until(result, run)
            return await result
        finally:
            result.cancel()

    def _shown(self) -> AbstractContextManager[Any]:
        if self._quiet or not self._console.is_terminal:
            return nullcontext()
        return Live(get_renderable=self._table, console=self._console, refresh_per_second=8)

    async def _update_until(self, result: "asyncio.Future[Context]", run: Run) -> None:
        while not result.done():
            self._update(await run.status())
            await asyncio.wait((result,), timeout=REFRESH_S)
        self._update(await run.status())

    def print_tracebacks(self, failed: RunFailed) -> None:
        """The first few tracebacks, since the name of an error is rarely enough."""
        told = [each for each in failed.errors.values() if each.traceback and not self._quiet]
        for each in told[: showing.TRACEBACKS]:
            click.echo(f"task '{each.task_id}':\n{each.traceback}", err=True)
        verbose = self._place.sent_here(f"layby tree {quoted(self.run_id)} --verbose")
        if more := showing.more_tracebacks(len(told), verbose):
            click.echo(more, err=True)

    def _update(self, status: RunStatus) -> None:
        self.status = status
        if self._quiet or self._console.is_terminal:
            return
        for task_id, execution in status.tasks.items():
            told = _words(execution)
            if self._printed.get(task_id, "Pending") != told:
                click.echo(f"{task_id}: {told}", err=True)
            self._printed[task_id] = told

    def _table(self) -> RenderableType:
        if self.status is None:
            return Text("starting ...", "dim")
        return drawn(self.status, max(1, self._console.height - OTHER_LINES))


def drawn(status: RunStatus, lines: int) -> RenderableType:
    """If there is little room, a task's text is cut, not its name.

    If there are more tasks than lines, the most important are shown and the others counted.
    """
    shown = list(status.tasks.items())
    if len(shown) > lines:
        shown.sort(key=lambda each: SHOWN_FIRST.index(each[1].status))
    others = Counter(each.status for _, each in shown[lines:])
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True, style="dim", ratio=1)
    for task_id, execution in shown[:lines]:
        table.add_row(showing.plain(task_id), _state(execution), showing.plain(_says(execution)))
    cleaning = ("  cleaning up" if status.is_cleaning_up else "", "dim")
    state = showing.state(status.state)
    head = Text.assemble(("run ", "dim"), status.run_id, "  ", state, cleaning)
    if not others:
        return Group(head, table)
    told = ", ".join(f"{count} {name}" for name, count in others.items())
    return Group(head, table, Text(f"... and {told}", "dim"))


def _state(execution: TaskExecution) -> Text:
    text = showing.state(execution.status)
    return text.append(f" {execution.sub_status}", "dim") if execution.sub_status else text


def _words(execution: TaskExecution) -> str:
    says = _says(execution)
    sub_status = f" {execution.sub_status}" if execution.sub_status == "Deferred" else ""
    return f"{execution.status}{sub_status}" + (f": {says}" if says else "")


def _says(execution: TaskExecution) -> str:
    if execution.waiting_on is not None and execution.waiting_on.kind != "dependency":
        return execution.waiting_on.sentence
    if execution.progress is not None and execution.status == "Running":
        done = execution.progress.fraction
        return f"{'' if done is None else f'{done:.0%} '}{execution.progress.text}".strip()
    if execution.result is not None:
        return showing.shortened(f"returned {msgspec.json.encode(execution.result).decode()}")
    return (execution.error or execution.reason or "").partition("\n")[0]


def _document(view: _RunView, result: Context | None, error: str | None) -> dict[str, Any]:
    status = view.status
    assert status is not None
    return {
        "run": {
            "id": status.run_id,
            "workflow": status.flow,
            "state": status.state,
            "is_cleaning_up": status.is_cleaning_up,
            "error": error,
            **showing.times(created=status.created_at, settled=status.settled_at),
        },
        "tasks": [_task_document(each) for each in status.tasks.values()],
        "result": None if result is None else result.to_dict(),
    }


def _task_document(execution: TaskExecution) -> dict[str, Any]:
    return {
        "id": execution.id,
        "promise_id": execution.task_execution_id,
        "status": execution.status,
        "tries": execution.try_number,
        "failures": execution.failures,
        "result": execution.result,
        "error": execution.error,
        "traceback": execution.traceback or None,
        "reason": execution.reason,
    }


def _named(place: Place) -> Place:
    """By default the file in this folder, which is created if it does not exist."""
    is_local = place.is_default and place.file is None
    return Place(file=Path(DEFAULT_FILE), flags=place.flags) if is_local else place


def _address(place: Place) -> str:
    if place.file is not None and is_served(place.file):
        return f"unix:{socket_of(place.file)}"
    return place.address


def read_context(given: tuple[str, ...]) -> dict[str, Any]:
    """Later ones win, key by key."""
    context: dict[str, Any] = {}
    for text in given:
        context |= _part(text)
    return context


def _part(text: str) -> dict[str, Any]:
    if text.startswith(("{", "@", "[")):
        try:
            found = JsonParam().convert(text, None, None)
        except click.BadParameter as error:
            raise UsageError(f"--context: {error.message}") from None
        if not isinstance(found, dict):
            raise UsageError(f"--context {text}: a context is a JSON object, {{...}}")
        return found  # pyright: ignore[reportUnknownVariableType] - JSON is what it is
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--context {text!r}: write KEY=VALUE, a JSON object, or @FILE")
    return {key: json_or_text(value)}
