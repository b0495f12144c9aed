"""What the workers of the chaos tests run. Each effect is one line in the file EFFECTS names.

Where BODIES names a file, too, each body tells when it begins and when it has ended.
"""

import asyncio
import os
import sys
import threading
import time
from functools import wraps
from pathlib import Path

from layby import Workflow, task

sys.path.append(str(Path(__file__).parents[2]))  # a worker may be started anywhere
from tests.helpers.body_log import logged

WHERE = os.environ.get("EFFECTS", os.devnull)
EFFECTS = os.open(WHERE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
NAP_S = 0.3


def effect(what: str, run: str, handle) -> None:
    """`what run try milliseconds`, on disk before the task goes on."""
    line = f"{what} {run} {handle.try_number} {time.time_ns() // 1_000_000}\n"
    os.write(EFFECTS, line.encode())


def watched(body):
    """A body that is logged from its first line to its last."""

    @wraps(body)
    async def run(context, handle):
        with logged(handle):
            await body(context, handle)

    return run


# --- what a run computes, so that whoever started it can check --------------------------------


def link(number: int):
    @task(id=f"link{number}", dependencies=[f"link{number - 1}"] if number else [])
    @watched
    async def add(context, handle):
        effect(f"link{number}", context["run"], handle)
        context["sum"] = context.get("sum", 0) + number

    return add


chain = Workflow("chain", tasks=[link(number) for number in range(5)])


@task
@watched
async def split(context, handle):
    effect("split", context["run"], handle)
    context["parts"] = [context["number"] * part for part in range(4)]


def part(number: int):
    @task(id=f"part{number}", dependencies=[split])
    @watched
    async def square(context, handle):
        effect(f"part{number}", context["run"], handle)
        await asyncio.sleep(0.01)
        context[f"square{number}"] = context["parts"][number] ** 2

    return square


@task(dependencies=[f"part{number}" for number in range(4)])
@watched
async def join(context, handle):
    effect("join", context["run"], handle)
    context["sum"] = sum(context[f"square{number}"] for number in range(4))


fan = Workflow("fan", tasks=[split, *[part(number) for number in range(4)], join])


# --- waits -----------------------------------------------------------------------------------


@task
@watched
async def polls(context, handle):
    effect("polls", context["run"], handle)
    began = time.monotonic()
    await handle.defer_until(lambda: time.monotonic() - began > NAP_S, poll_interval_ms=50)
    effect("polled", context["run"], handle)
    context["polled"] = context["number"] + 1


@task
@watched
async def sleeps(context, handle):
    effect("lies-down", context["run"], handle)
    await handle.sleep(NAP_S)
    effect("gets-up", context["run"], handle)
    context["slept"] = context["number"] + 2


@task
@watched
async def waits(context, handle):
    effect("waits", context["run"], handle)
    context["answer"] = await handle.wait_for(f"event-{context['run']}")
    effect("woken", context["run"], handle)


# --- checkpoints -----------------------------------------------------------------------------


@task
@watched
async def pays(context, handle):
    run = context["run"]

    def pay() -> str:
        effect("pay", run, handle)
        return f"receipt-{handle.try_number}"

    async def ship(receipt: str) -> str:
        effect("ship", run, handle)
        await asyncio.sleep(0.005)
        return f"{receipt} shipped-{handle.try_number}"

    context["receipt"] = await handle.checkpoint("pay", pay)
    await handle.sleep(0.1)
    context["shipped"] = await handle.checkpoint("ship", ship, context["receipt"])


@task(dependencies=[pays])
@watched
async def files(context, handle):
    effect("files", context["run"], handle)
    context["filed"] = f"{context['receipt']} / {context['shipped']}"


# --- a plain def -----------------------------------------------------------------------------


@task
def blocks(context, handle):
    """In a thread, which nobody can stop."""
    with logged(handle):
        effect("blocks", context["run"], handle)
        threading.Event().wait(NAP_S)
        effect("blocked", context["run"], handle)
        context["blocked"] = context["number"] + 3


FLOWS = (
    chain,
    fan,
    Workflow("poller", tasks=[polls]),
    Workflow("sleeper", tasks=[sleeps]),
    Workflow("waiter", tasks=[waits]),
    Workflow("payer", tasks=[pays, files]),
    Workflow("blocker", tasks=[blocks]),
)
poller, sleeper, waiter, payer, blocker = FLOWS[2:]


# --- a worker that is asked to stop ----------------------------------------------------------


@task
@watched
async def holds(context, handle):
    """Keeps its slot for as long as its first worker lives."""
    effect("holds", context["run"], handle)
    if handle.try_number == 1:
        await asyncio.Event().wait()
    context["try"] = handle.try_number


holder = Workflow("holder", tasks=[holds])
