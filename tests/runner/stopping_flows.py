"""Bodies that a worker finds running when it is asked to stop.

Each writes a line to the file EFFECTS when it begins and when it ends: what, try, process, and
the time in milliseconds. `FOLDER/go` lets those end that wait for it.
"""

import asyncio
import os
import threading
import time
from pathlib import Path

from layby import Workflow, task

FOLDER = Path(os.environ["FOLDER"])


def effect(what: str, number: int = 0) -> None:
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{what} {number} {os.getpid()} {time.time_ns() // 1_000_000}\n")


def is_open() -> bool:
    return (FOLDER / "go").exists()


def wait_until_open() -> None:
    while not is_open():
        threading.Event().wait(0.01)


@task
def charges(context, handle):
    """A plain `def`, in the middle of something that must not happen twice."""
    effect("begins", handle.try_number)
    wait_until_open()
    effect("ends", handle.try_number)
    context["charged"] = handle.try_number


@task(process=True)
def computes(context):
    effect("begins")
    wait_until_open()
    effect("ends")
    context["computed"] = True


@task
async def deaf(context, handle):
    """Swallows every cancel."""
    effect("begins", handle.try_number)
    while not is_open():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            effect("cancelled", handle.try_number)
    effect("ends", handle.try_number)


@task
async def steps(context, handle):
    """In the middle of a checkpoint's function."""
    effect("begins", handle.try_number)
    context["step"] = await handle.checkpoint("step", step)
    effect("goes-on", handle.try_number)
    if handle.try_number == 1:
        await asyncio.sleep(3600)


async def step() -> int:
    effect("step")
    while not is_open():  # noqa: ASYNC110 - a file tells nobody
        await asyncio.sleep(0.01)
    effect("stepped")
    return os.getpid()


@task
async def waits(context, handle):
    effect("begins", handle.try_number)
    await handle.wait_for("never")


charging = Workflow("charging", tasks=[charges])
computing = Workflow("computing", tasks=[computes])
deafness = Workflow("deafness", tasks=[deaf])
stepping = Workflow("stepping", tasks=[steps])
waiting = Workflow("waiting", tasks=[waits])
