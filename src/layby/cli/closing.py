"""How commands that run tasks end: gracefully, reporting what they wait for."""

import asyncio
import os
import threading
from contextlib import suppress
from typing import Final

import click

from layby.runner.runner import Runner
from layby.worker.worker_stop import named

SILENT_S: Final = 0.5
"""Closing that takes no longer is not reported."""
REPEAT_S: Final = 5.0
"""How often it is reported that bodies are still running."""
THREADS_S: Final = 1.0
"""How long a process waits for running threads after all tasks are handed back."""


async def close_and_report(runner: Runner) -> None:
    """Close the Runner; while that waits for bodies, name them in a line now and then."""
    telling = asyncio.ensure_future(_tell(runner))
    try:
        await runner.close()
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _tell(runner: Runner) -> None:
    await asyncio.sleep(SILENT_S)
    while True:
        stopping = runner.stopping
        if stopping is not None and stopping.waits_for:
            tasks, left = stopping.waits_for, stopping.seconds_left
            count = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
            click.echo(
                f"layby waits for {count} to end, {left:.0f} s left: {named(tasks)}", err=True
            )
        await asyncio.sleep(REPEAT_S)


def exit_soon(code: int = 0) -> threading.Timer:
    """Exit even if bodies do not end, for example in threads."""
    timer = threading.Timer(THREADS_S, _exit_anyway, (code,))
    timer.daemon = True
    timer.start()
    return timer


def _exit_anyway(code: int) -> None:
    click.echo("layby exits though a task body is still running; its result is ignored", err=True)
    os._exit(code)
