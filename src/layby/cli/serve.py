"""`layby serve`: a server for many processes and languages."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

EPILOG = """
\b
Examples:
  layby serve                                  on 127.0.0.1:8001, in ./layby.db
  layby serve --db sqlite:/var/lib/layby.db --host 0.0.0.0
  LAYBY_LOG__FORMAT=json layby serve --config /etc/layby.toml

Every setting can stand in layby.toml, in a variable LAYBY_SECTION__NAME, or be a flag; flags win.
SIGTERM and Ctrl-C answer what is under way, then stop.
"""


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """One flag for each setting: what it is called and means is said once, in the config."""
    from layby.server.config import KEYS  # noqa: PLC0415 - the server's libraries are an extra

    for key in reversed(KEYS.values()):
        name = key.name.replace(".", "__")
        shown = key.shown(key.default)
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
    from layby.server import config, logs, server  # noqa: PLC0415

    flags = {name.replace("__", "."): value for name, value in given.items() if value is not None}
    loaded = config.load(flags, os.environ, file)
    logs.configure(loaded.log)
    _run(server.serve(loaded, _tell))


def _tell(server: Any) -> None:
    click.echo(f"layby serves {server.config.db} at {server.url}  (Ctrl-C stops it)", err=True)


def _run(serving: Any) -> None:
    try:
        import uvloop  # noqa: PLC0415 - faster where it is installed
    except ImportError:
        asyncio.run(serving)
        return
    uvloop.run(serving)
