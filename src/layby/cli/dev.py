"""`layby dev`: a server and a worker in one process, to try things out."""

import asyncio
import os
from pathlib import Path

import click

from layby.cli.closing import exit_soon
from layby.cli.options import graced, slotted, version_tagged
from layby.cli.serve import beside, tell
from layby.cli.user_code import complete_files, load_module
from layby.cli.worker import LoadedCode, asked_to_stop, work
from layby.runner import Runner
from layby.server import logs, server_config
from layby.server.server import Server, serve
from layby.server.server_config import ServerConfig

EPILOG = """
\b
Examples:
  layby dev                      a server on 127.0.0.1:8001, data in ./layby.db
  layby dev shop/flows.py        the same, and a worker with the workflows of that file
  layby dev --db memory:         keep nothing
"""


@click.command(epilog=EPILOG)
@click.argument("module", required=False, shell_complete=complete_files)
@click.option(
    "--db", help="Where data is stored: sqlite:PATH or postgresql://….  [default: sqlite:layby.db]"
)
@click.option("--port", help="Port to listen on.  [default: 8001]")
@slotted
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="Read this file, not ./layby.toml."
)
@graced
@version_tagged
def dev(
    module: str | None,
    db: str | None,
    port: str | None,
    slots: int,
    file: Path | None,
    grace: int,
    version_tag: str | None,
) -> None:
    """Serve on this machine and, with MODULE, work as well: one process, nothing to set up."""
    given = {"db": db, "server.port": port}
    flags = {name: value for name, value in given.items() if value is not None}
    loaded = server_config.load(flags, os.environ, file)
    logs.configure(loaded.log)
    if module is None:
        asyncio.run(serve(loaded, tell, beside))
        return
    code = LoadedCode(load_module(module), module, version=version_tag, slots=slots)
    asyncio.run(_dev(loaded, code, slots, grace, version_tag))


async def _dev(
    loaded: ServerConfig, code: LoadedCode, slots: int, grace: int, version: str | None
) -> None:
    server = Server(loaded)
    await server.start()
    stop = asked_to_stop()
    tell(server)
    try:
        token = os.environ.get("LAYBY_TOKEN")
        runner = Runner(server.url, slots=slots, token=token, grace=grace / 1000, version=version)
        async with beside(server):
            await work(runner, code, server.url, stop)
    finally:
        await server.stop()
        exit_soon()
