"""`layby serve`: a server for many processes and languages."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from layby.cli.told_triggers import told_triggers
from layby.engine.opening import shown
from layby.server import logs, server, server_config
from layby.server.heap import keep_freed_memory
from layby.server.server_config import KEYS

EPILOG = """
\b
Examples:
  layby serve                                  on 127.0.0.1:8001, in ./layby.db
  layby serve --db sqlite:/var/lib/layby.db --host 0.0.0.0
  layby serve --db postgresql://layby@db.example.com/shop   one of several on this database
  LAYBY_LOG__FORMAT=json layby serve --config /etc/layby.toml

Every setting can be in layby.toml, a variable LAYBY_SECTION__NAME, or a flag; flags win.
On SIGTERM and Ctrl-C it answers requests under way, then stops.
"""
NO_FLAGS = ("auth.api_keys", "triggers.connections", "triggers.secrets")
"""Secrets, which other users of the machine could read in the list of processes."""


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """One flag for each setting; its name and meaning are defined once, in the config."""
    for key in reversed(KEYS.values()):
        if key.name in NO_FLAGS:
            continue
        name, shown = key.name.replace(".", "__"), key.shown(key.default)
        told = f"{key.description}." + (f"  [default: {shown}]" if shown else "")
        if isinstance(key.default, bool):
            option = click.option(f"{key.flag}/--no-{key.flag[2:]}", name, default=None, help=told)
        else:
            option = click.option(key.flag, name, help=told)
        command = option(command)
    return command


@click.command(epilog=EPILOG)
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="Read this file, not ./layby.toml."
)
@_flags
def serve(file: Path | None, **given: Any) -> None:
    """Serve the Resonate protocol and layby's own over HTTP."""
    flags = {name.replace("__", "."): value for name, value in given.items() if value is not None}
    loaded = server_config.load(flags, os.environ, file)
    logs.configure(loaded.log)
    keep_freed_memory()
    _run(server.serve(loaded, tell, beside))


@asynccontextmanager
async def beside(served: server.Server) -> AsyncGenerator[None]:
    """Run triggers, if something may be polled, and tell of those that nobody runs."""
    async with told_triggers(served):
        if not served.config.triggers.is_on:  # most servers need none of that code
            yield
            return
        from layby.cli.served_triggers import served_triggers  # noqa: PLC0415 - see above

        async with served_triggers(served):
            yield


def tell(served: server.Server) -> None:
    where = f"layby serves {shown(served.config.db)} at {served.url}"
    click.echo(f"{where}  (Ctrl-C stops it)", err=True)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # noqa: PLC0415 - faster where it is installed
    except ImportError:
        asyncio.run(serving)
        return
    uvloop.run(serving)
