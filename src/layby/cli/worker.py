"""`layby worker`: a process that runs the tasks of a module for a server."""

import asyncio
import logging
import signal
from contextlib import suppress
from types import ModuleType

import click

from layby.cli.loading import calls_in, flows_in, load_module
from layby.errors import StoreUnavailable, UsageError
from layby.runner import Runner
from layby.wire import durations

logger = logging.getLogger(__name__)

EPILOG = """
\b
Examples:
  layby worker shop.flows                          for the server at 127.0.0.1:8001
  layby worker flows.py --url https://layby.example.org --slots 16
  layby worker flows.py --url sqlite:layby.db      beside the process that owns the file

SIGTERM and Ctrl-C hand running tasks back at once; other workers go on with them.
"""


@click.command(epilog=EPILOG)
@click.argument("module")
@click.option(
    "--url",
    default="http://127.0.0.1:8001",
    show_default=True,
    envvar="LAYBY_URL",
    help="The server (or a file: sqlite:PATH).",
)
@click.option("--token", envvar="LAYBY_TOKEN", help="The server's token; better in LAYBY_TOKEN.")
@click.option("--group", default="default", show_default=True, help="Workers that share work.")
@click.option("--slots", default=4, show_default=True, help="Bodies that run at a time.")
@click.option(
    "--lease",
    default="15s",
    show_default=True,
    help="After this long without a sign of life others take over.",
)
def worker(module: str, url: str, token: str | None, group: str, slots: int, lease: str) -> None:
    """Run the tasks of MODULE for a server: its workflows, and its @task(rpc=…) functions."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code = load_module(module)
    seconds = durations.parse(lease) / 1000
    runner = Runner(url, token=token, group=group, slots=slots, lease=seconds)
    asyncio.run(work(runner, code, url))


async def work(runner: Runner, code: ModuleType, where: str) -> None:
    """Until SIGTERM or SIGINT."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working = asyncio.ensure_future(_work(runner, code, where))
    await asyncio.wait(
        (working, asyncio.ensure_future(stop.wait())), return_when=asyncio.FIRST_COMPLETED
    )
    if not working.done():
        working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _work(runner: Runner, code: ModuleType, where: str) -> None:
    """A worker may be started before its server: it says so, and waits."""
    click.echo(f"layby looks for {where} …", err=True)
    while not await _entered(runner):
        pass
    try:
        told = register(runner, code)
        click.echo(f"layby works for {where}: {told}  (Ctrl-C stops it)", err=True)
        await asyncio.Event().wait()
    finally:
        await runner.close()


async def _entered(runner: Runner) -> bool:
    try:
        await runner.__aenter__()
    except StoreUnavailable as failure:
        logger.warning("%s; trying again", failure)
        return False
    return True


def register(runner: Runner, code: ModuleType) -> str:
    """Give the Runner everything it can run of this module; what that is, for people."""
    flows, calls = flows_in(code), calls_in(code)
    if not flows and not calls:
        raise UsageError(
            f"{code.__name__} has nothing to work on: write flow = Workflow('name', tasks=[...]) "
            "or a @task(rpc='name') at its top"
        )
    for each in (*flows, *calls):
        runner.register(each)
    told = [f"workflow {flow.name}" for flow in flows]
    return ", ".join(told + [f"call {call.rpc}" for call in calls])
