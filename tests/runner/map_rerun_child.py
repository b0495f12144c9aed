"""A process whose map fails, and that is killed: `python map_rerun_child.py FILE ADDRESS`.

Each effect, and each body that goes on after its effects, is a line on stdout. While there is no
FILE.mended, item 1 fails when all have come so far; while there is no FILE.open, odd items wait.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import sys
from pathlib import Path

from layby import RunFailed, Runner, Workflow, task

MENDED, OPEN = (Path(sys.argv[1]).with_suffix(each) for each in (".mended", ".open"))
PAID: set[int] = set()


def say(what: str, item: int) -> int:
    print(what, item, flush=True)
    return item


@task
async def deliver(context):
    say("deliver", context["item"])


PARCEL = Workflow("parcel", tasks=[deliver])


@task
async def order(context, handle, item):
    await handle.checkpoint("pay", say, "pay", item)
    child = await handle.start(PARCEL, {"item": item})
    await child.result()
    PAID.add(say("goes on", item))
    if MENDED.exists():
        if item % 2:
            await handle.defer_until(OPEN.exists, poll_interval=0.01)
    else:
        await handle.defer_until(lambda: len(PAID) == 4, poll_interval=0.01)
        if item == 1:
            raise ValueError("not today")
        await handle.sleep(3600)
    return say("ends", item)


@task
async def orders(context, handle):
    return await handle.map(order, range(4))


FLOW = Workflow("orders", tasks=[orders])


async def main() -> None:
    async with Runner(sys.argv[2], slots=8, lease=3) as runner:
        run = await runner.start(FLOW, run_id="r")
        if MENDED.exists() and (await run.status()).lives == 1:
            await run.rerun()
        try:
            print("result", (await run.result()).result(orders), flush=True)
        except RunFailed:
            print("failed", flush=True)
        await asyncio.Event().wait()  # until it is killed


asyncio.run(main())
