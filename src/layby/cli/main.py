"""The `layby` command. Each command lives in a module of its own and is only listed here.

Exit codes are the same everywhere: 0 it worked, 1 it ran and the answer is no, 2 it could not
run, 130 it was interrupted; which error has which is said by its class (`layby.errors`). Expected
failures are one line on stderr.
"""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import click

import layby
from layby.cli.command_groups import CommandGroup, LazyCommand
from layby.cli.printable import printable
from layby.cli.process_list import hide_passwords
from layby.errors import LaybyError
from layby.server.signals import end_when_asked
from layby.store.postgres_address import without_password

HELP = """Durable Python tasks that hold no slot while they wait.

\b
New here? Try:
  layby demo             see it work, in a few seconds
  layby run FILE.py      run a workflow of yours and watch it
  layby waiting          see what waits, and for what
  layby doctor FILE      check that a layby file is sound
"""
EPILOG = """
\b
Exit codes:
  0    it worked
  1    it ran, and the answer is no: a run failed, or an id is unknown
  2    it could not run: wrong usage, a file or a server that cannot be used
  130  interrupted
"""
SECTIONS: Final[dict[str, tuple[LazyCommand, ...]]] = {
    "Begin": (
        LazyCommand("demo", "demo", "See it work, in a few seconds."),
        LazyCommand("run", "run", "Run a workflow and watch it."),
        LazyCommand("dev", "dev", "A server and a worker in one process, to develop with."),
        LazyCommand("graph", "graph", "Check, plan, run and draw an in-process graph."),
    ),
    "Look": (
        LazyCommand("runs", "runs", "List runs, the newest first."),
        LazyCommand("waiting", "waiting", "List what waits now, the longest first."),
        LazyCommand("triggers", "triggers", "List what deferred tasks wait for."),
        LazyCommand("approvals", "approving", "List questions that wait for an answer."),
        LazyCommand("why", "why", "Say in one sentence why something waits."),
        LazyCommand("tree", "tree", "Draw a run, or a tree of calls."),
        LazyCommand("doctor", "doctor", "Check that a file or a server is sound."),
    ),
    "Act": (
        LazyCommand("approve", "approving", "Say yes to an approval."),
        LazyCommand("deny", "approving", "Say no to an approval."),
        LazyCommand("resolve", "steering", "Resolve a promise; it may be new."),
        LazyCommand("reject", "steering", "Reject a promise; it may be new."),
        LazyCommand("cancel", "steering", "Cancel a run, a task or a promise."),
        LazyCommand("halt", "steering", "Stop a run or a task until it is continued."),
        LazyCommand("continue", "steering", "Let a halted run or task go on."),
        LazyCommand("wake", "triggers", "End the wait of a task now."),
        LazyCommand("extend", "triggers", "Move the deadline of a task's wait."),
        LazyCommand("rerun", "rerun", "Run again what failed in a run that has ended."),
        LazyCommand("invoke", "invoke", "Call a function of a worker in any language."),
        LazyCommand("schedules", "schedules", "Cron rules: list, add, pause, start now, delete."),
        LazyCommand("limits", "limits", "How many tasks run at once on all machines: list, set."),
    ),
    "Low-level (protocol)": (
        LazyCommand("promises", "promises", "Promises: get, create, settle, search, register."),
        LazyCommand("tasks", "tasks", "Tasks: what a worker does, by hand."),
    ),
    "Operate": (
        LazyCommand("serve", "serve", "Serve many processes and languages over HTTP."),
        LazyCommand("worker", "worker", "Run the tasks of a module for a server."),
        LazyCommand("prune", "prune", "Delete runs that ended long enough ago."),
        LazyCommand("migrate", "migrate", "Bring a file to the schema of this version."),
        LazyCommand("completion", "completion", "Let your shell complete commands."),
    ),
}
"""Every command: its name, its module, and its line in the list of commands."""


TOLD: Final = (
    "layby.client.first_answer",
    "layby.client.outage",
    "layby.runner.flow_directory",
)
"""Loggers, by name since loading them takes time: a server or a database does not answer, a worker
is missing.
"""


LASTING: Final = (["serve"], ["worker"], ["dev"])
"""They work until they are asked to stop, and then it worked."""


MEANT: Final = {
    "list": "runs",
    "ls": "runs",
    "ps": "runs",
    "start": "run",
    "status": "why",
    "show": "tree",
    "logs": "tree",
    "top": "waiting",
    "stop": "cancel",
    "retry": "rerun",
    "server": "serve",
    "check": "doctor",
    "upgrade": "migrate",
    "help": "--help",
}
"""What other systems call it: somebody who types that is told what to type here."""


class Commands(CommandGroup):
    """Shows expected failures as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _telling():
                return super().invoke(ctx)
        except LaybyError as error:
            click.echo(f"layby: {printable(str(error))}", err=True)
            ctx.exit(error.exit_code)
        except click.ClickException as error:  # it repeats what was typed
            error.message = without_password(error.message)  # pyright: ignore[reportAttributeAccessIssue] - Final since click 8.4
            raise
        except KeyboardInterrupt:
            click.echo("layby: interrupted", err=True)
            ctx.exit(130)


class _Teller(logging.Handler):
    """Shows a line of the log as a line of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"layby: {printable(record.getMessage())}", err=True)


@contextmanager
def _telling() -> Generator[None]:
    """What a person must hear while a command runs, however the log is configured."""
    teller = _Teller()
    for each in map(logging.getLogger, TOLD):
        each.addHandler(teller)
        each.propagate = False
    try:
        yield
    finally:
        for each in map(logging.getLogger, TOLD):
            each.propagate = True
            each.removeHandler(teller)


@click.group(
    cls=Commands,
    sections=SECTIONS,
    meant=MEANT,
    aliases={"promise": "promises", "task": "tasks", "schedule": "schedules", "limit": "limits"},
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(layby.__version__, prog_name="layby")
def cli() -> None:
    """The group; its help text is HELP."""


def main() -> None:
    hide_passwords(sys.argv)
    if sys.argv[1:2] in LASTING:
        end_when_asked()
    cli(prog_name="layby")
