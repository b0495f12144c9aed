"""`layby worker`: a process that runs the tasks of a module for a server."""

import asyncio
import logging
import random
from contextlib import suppress
from types import ModuleType
from typing import Final, cast

import click

from layby.cli.closing import close_and_report, exit_soon
from layby.cli.connection import DEFAULT_URL, find_place, named
from layby.cli.options import DurationParam, graced, slotted, version_tagged
from layby.cli.user_code import calls_in, complete_files, flows_in, load_module
from layby.client.interface import Client
from layby.client.outage import trying_again
from layby.core.pauses import Pauses
from layby.engine.opening import shown
from layby.errors import LaybyError, StoreRefused, StoreUnavailable, UsageError
from layby.runner.runner import Runner, check_can_serve
from layby.server.signals import stop_requested
from layby.store.postgres_address import is_postgres
from layby.workflow.flow_program import FlowProgram
from layby.workflow.turn_checks import check_fits

logger = logging.getLogger(__name__)

ENTER_AGAIN: Final = Pauses(0.5, longest=10.0)
"""Between tries to enter: a database that refuses does so at once."""

EPILOG = """
\b
Examples:
  layby worker shop.flows                          for the server at 127.0.0.1:8001
  layby worker flows.py --url https://layby.example.org --slots 16
  layby worker flows.py --url sqlite:layby.db      beside the process that owns the file
  layby worker flows.py --db postgresql://layby@db.example.com/shop

SIGTERM and Ctrl-C end `async` bodies and wait for others to end, at most --grace; then other
workers continue the tasks. Another signal, a second later, ends the process at once.
"""


@click.command(epilog=EPILOG)
@click.argument("module", shell_complete=complete_files)
@click.option(
    "--url",
    metavar="URL",
    help="The server (or a file: sqlite:PATH).  [env: LAYBY_URL; default: http://127.0.0.1:8001]",
)
@click.option(
    "--db",
    metavar="ADDRESS",
    help="A file or a database instead of a server: sqlite:PATH or "
    "postgresql://USER@HOST/DATABASE.  [env: LAYBY_DB]",
)
@click.option("--token", envvar="LAYBY_TOKEN", help="The server's token; better in LAYBY_TOKEN.")
@click.option(
    "--group",
    default="default",
    show_default=True,
    help="The group of workers that it shares work with.",
)
@slotted
@click.option(
    "--lease",
    type=DurationParam(least=100),
    default="15s",
    show_default=True,
    help="After this long without a heartbeat others take over.",
)
@graced
@version_tagged
def worker(
    module: str,
    url: str | None,
    db: str | None,
    token: str | None,
    group: str,
    slots: int,
    lease: int,
    grace: int,
    version_tag: str | None,
) -> None:
    """Run the tasks of MODULE for a server: its workflows, and its @task(rpc=…) functions.

    It is one module: for the workflows of several, write one that imports them.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code = LoadedCode(load_module(module), module, group, version_tag, slots)
    address = _address(url, db)
    runner = Runner(
        address,
        token=token,
        group=group,
        slots=slots,
        lease=lease / 1000,
        grace=grace / 1000,
        connect_timeout=None,
        version=version_tag,
    )
    asyncio.run(_work_and_end(runner, code, shown(address)))


class LoadedCode:
    """The workflows and calls of a module."""

    def __init__(
        self,
        module: ModuleType,
        name: str,
        group: str = "default",
        version: str | None = None,
        slots: int = 4,
    ) -> None:
        self._version = version
        self.flows, self.calls = flows_in(module), calls_in(module)
        if not self.flows and not self.calls:
            raise UsageError(
                f"{name} has nothing to run: write flow = Workflow('name', "
                "tasks=[...]) or a @task(rpc='name') at its top"
            )
        self._check(group, slots)

    def _check(self, group: str, slots: int) -> None:
        """Refuses what a Runner would refuse, before connecting."""
        program = FlowProgram(cast("Client", None), random.random, self._version)
        for flow in self.flows:
            check_fits(flow, slots, group)
            program.register(flow)
        self.codes = program.codes
        for call in self.calls:
            program.register_function(check_can_serve(call, group))

    def __str__(self) -> str:
        told = [f"workflow {flow.name}" for flow in self.flows]
        return ", ".join(told + [f"call {call.rpc}" for call in self.calls])


def _address(url: str | None, db: str | None) -> str:
    url, db = named(url, db)
    return _checked(url or DEFAULT_URL) if db is None else find_place(None, None, db).address


def _checked(url: str) -> str:
    """A Runner also accepts a plain path; here it would be a mistyped URL and create a file."""
    if not url.startswith(("http://", "https://", "unix:", "sqlite:")) and not is_postgres(url):
        raise UsageError(
            f"{shown(url)!r} is not the address of a server: write for example {DEFAULT_URL}, "
            "or sqlite:PATH to work beside the process that owns a file"
        )
    return url


def asked_to_stop() -> asyncio.Event:
    """A signal to stop sets it; a second signal ends the process at once."""
    return stop_requested(
        lambda: click.echo("layby is stopping: tasks are handed back as they end", err=True)
    )


async def work(runner: Runner, code: LoadedCode, where: str, stop: asyncio.Event) -> None:
    """Work until it is asked to stop."""
    working = asyncio.ensure_future(_work(runner, code, where))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _work_and_end(runner: Runner, code: LoadedCode, where: str) -> None:
    exit_code = 0
    try:
        await work(runner, code, where, asked_to_stop())
    except LaybyError as error:
        exit_code = error.exit_code
        raise
    finally:
        exit_soon(exit_code)


async def _work(runner: Runner, code: LoadedCode, where: str) -> None:
    """A worker may be started before its server: it reports that, and retries.

    A database that is there and refuses the address will do so the next time, too.
    """
    click.echo(f"layby is connecting to {where} …", err=True)
    for pause in ENTER_AGAIN:
        if await _entered(runner):
            break
        await asyncio.sleep(pause)
    try:
        for each in (*code.flows, *code.calls):
            runner.register(each)
        click.echo(f"layby works for {where}: {code}  (Ctrl-C stops it)", err=True)
        for flow, name in code.codes:
            logger.info("the code of workflow %s is called %s", flow, name)
        await asyncio.Event().wait()
    finally:
        await close_and_report(runner)


async def _entered(runner: Runner) -> bool:
    try:
        await runner.__aenter__()
    except StoreRefused:
        raise
    except StoreUnavailable as failure:
        logger.warning("%s", trying_again(failure))
        return False
    return True
