"""What workers run in the tests of kept promises. A body goes on when the test opens its gate.

A gate is a file in the folder that GATES names. Bodies and effects are told in the file of
`body_log`; an effect is a `begin` of a task that is called like it.
"""

import asyncio
import os
import sys
import threading
from pathlib import Path

from layby import Workflow, task

sys.path.append(str(Path(__file__).parents[2]))  # a worker may be started anywhere
from tests.helpers.body_log import VARIABLE, logged, write

GATES = Path(os.environ.get("GATES", os.devnull))


def is_open(gate: str) -> bool:
    return (GATES / gate).exists()


def pass_gate(gate: str) -> None:
    """Block the thread until it is open."""
    pause = threading.Event()
    while not is_open(gate):
        pause.wait(0.005)


async def gate_open(gate: str) -> None:
    while not is_open(gate):  # noqa: ASYNC110 - a file tells nobody that it is there
        await asyncio.sleep(0.005)


def effect(what: str, run: str, handle) -> None:
    write(os.environ[VARIABLE], what, os.getpid(), run, handle.try_number)


# --- plain `def` -----------------------------------------------------------------------------


@task
def charges(context, handle):
    """A card is charged once the gate is open; a thread cannot be stopped."""
    with logged(handle):
        pass_gate(context["run"])
        effect("charge", context["run"], handle)
    context["by"] = os.getpid()


charger = Workflow("charger", tasks=[charges])


# --- async, and slow to end ------------------------------------------------------------------


@task
async def cleans(context, handle):
    """Holds its slot; when it is ended it cleans up until the gate is open."""
    with logged(handle):
        try:
            if handle.try_number == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate_open(context["run"])
            raise
    context["by"] = os.getpid()


cleaner = Workflow("cleaner", tasks=[cleans])


# --- a checkpoint under way ------------------------------------------------------------------


@task
async def checkpoints(context, handle):
    """Its checkpoint's function ends when the gate is open."""
    run = context["run"]

    async def charge() -> int:
        effect("charging", run, handle)
        await gate_open(run)
        effect("charge", run, handle)
        return os.getpid()

    with logged(handle):
        context["by"] = await handle.checkpoint("charge", charge)


checkpointer = Workflow("checkpointer", tasks=[checkpoints])


# --- a body like any other -------------------------------------------------------------------


@task
async def works(context, handle):
    """Has a checkpoint, and ends when the gate is open."""
    with logged(handle):
        await handle.checkpoint("charge", lambda: effect("charge", context["run"], handle))
        await gate_open(context["run"])
    context["by"] = os.getpid()


worker = Workflow("worker", tasks=[works])


@task
async def probes(context, handle):
    """Is done at once: tells that whoever did it has done all that came before."""
    context["by"] = os.getpid()


prober = Workflow("prober", tasks=[probes])

FLOWS = {each.name: each for each in (charger, cleaner, checkpointer, worker, prober)}
