"""A process whose run fails and that is then killed: `python rerun_child.py FILE ADDRESS`.

Each body that runs is a line on stdout; the test kills the process when the run has failed.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import sys
from pathlib import Path

from layby import RunFailed, Runner, Workflow, task

MENDED = Path(sys.argv[1]).with_suffix(".mended")


@task
async def reserve(context):
    print("reserve", flush=True)
    context["reserved"] = True


def pay() -> None:
    print("pay", flush=True)


@task(dependencies=[reserve])
async def charge(context, handle):
    await handle.checkpoint("pay", pay)
    if not MENDED.exists():
        raise ValueError("the printer is broken")
    context["charged"] = True


@task(dependencies=[charge])
async def ship(context):
    print("ship", flush=True)
    context["shipped"] = True


FLOW = Workflow("order", tasks=[reserve, charge, ship])


async def main() -> None:
    async with Runner(sys.argv[2]) as runner:
        run = await runner.start(FLOW, {"order": 7}, run_id="order-7")
        if MENDED.exists():
            await run.rerun()
            print(f"result {sorted(await run.result())}", flush=True)
            return
        try:
            await run.result()
        except RunFailed:
            print("failed", flush=True)
        await asyncio.Event().wait()  # until it is killed


asyncio.run(main())
