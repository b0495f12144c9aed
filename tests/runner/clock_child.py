"""Works, puts its own clock forward or back meanwhile, and tells how long everything took.

`python clock_child.py ADDRESS SECONDS`, with a clock of `tests.helpers.stepped_clock`; ADDRESS is
a file, or a server with the same clock. It prints one line of JSON.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from layby import DeferTimeout, RetryPolicy, RunFailed, Runner, Workflow, task
from layby.errors import LaybyError

sys.path.append(str(Path(__file__).parents[2]))
from tests.helpers.stepped_clock import step

LENGTH_S = 1.0
LEASE_S = 1.0
GIVE_UP_S = 25.0
"""Something that takes this long hangs until the clock has caught up."""

over = asyncio.Event()
tries: list[int] = []


@task
async def holds(context, handle):
    """Runs all the time: it must not be begun again."""
    tries.append(handle.try_number)
    await over.wait()


@task
async def sleeps(context, handle):
    await handle.sleep(LENGTH_S)


@task
async def gives_up(context, handle):
    try:
        await handle.wait_for("nothing", timeout=LENGTH_S)
    except DeferTimeout:
        context["gave_up"] = True


@task(retry=RetryPolicy(max_attempts=2, backoff="fixed", delay=LENGTH_S))
async def fails_once(context, handle):
    if handle.try_number == 1:
        raise ValueError("once")


@task
async def waits(context, handle):
    await handle.wait_for("nothing")


def flow_of(body) -> Workflow:
    return Workflow(body.id, tasks=[body])


async def past_deadline(runner: Runner) -> None:
    with suppress(RunFailed):
        await runner.execute(flow_of(waits), deadline=LENGTH_S, timeout=GIVE_UP_S)


errors: list[str] = []


async def seconds_of(work: Awaitable[Any]) -> float:
    """What went wrong is told with the rest."""
    began = time.monotonic()
    try:
        await work
    except (TimeoutError, LaybyError) as error:
        errors.append(str(error))
    return round(time.monotonic() - began, 4)


async def main(address: str, seconds: float) -> None:
    async with Runner(address, slots=8, lease=LEASE_S) as runner:
        holding = await runner.start(flow_of(holds))
        before_run = await runner.start(flow_of(sleeps), run_id="before")
        before = asyncio.create_task(seconds_of(before_run.result(GIVE_UP_S)))
        await asyncio.sleep(LENGTH_S / 4)
        apart = time.time() - time.monotonic()
        step(seconds)
        stepped = round(time.time() - time.monotonic() - apart)
        names = ("sleep", "timeout", "retry")
        flows = (sleeps, gives_up, fails_once)
        work = [runner.execute(flow_of(each), timeout=GIVE_UP_S) for each in flows]
        took = await asyncio.gather(*map(seconds_of, [*work, past_deadline(runner)]))
        told: dict[str, Any] = dict(zip([*names, "deadline"], took, strict=True))
        told["before"] = await before
        await asyncio.sleep(2 * LEASE_S)  # a lease that was lost would be seen by now
        over.set()
        await holding.result(GIVE_UP_S)
        print(
            json.dumps({**told, "stepped": stepped, "tries": tries, "errors": errors}), flush=True
        )


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
