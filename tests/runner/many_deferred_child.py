"""A process that comes to a store with many deferred tasks: `… ADDRESS COUNT`.

It says what it costs to be there, then settles every event and says what each task was given.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

from layby import Runner, Workflow, task, triggers

IN_FLIGHT = 256
got: dict[int, Any] = {}
all_came = asyncio.Event()


async def go_on(context: Any, handle: Any, event: Any, n: int) -> None:
    got[n] = event
    if len(got) == int(sys.argv[2]):
        all_came.set()


@task
async def waits(context: Any, handle: Any) -> None:
    n = context["n"]
    await handle.defer(triggers.Event(f"e-{n}"), resume=go_on, kwargs={"n": n})


@task
async def works(context: Any) -> None: ...


flow = Workflow("many", tasks=[waits])
warm_up = Workflow("warm-up", tasks=[works])


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


async def settle_all(runner: Runner, count: int) -> None:
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def settle(n: int) -> None:
        async with gate:
            await runner.resolve(f"e-{n}", {"n": n})

    await asyncio.gather(*(settle(n) for n in range(count)))


async def main(address: str, count: int) -> None:
    async with Runner(address, slots=4) as runner:
        runner.register(flow)
        await runner.execute(warm_up)
        gc.collect()
        costs = {
            "kb": resident_kb(),
            "coroutines": len(asyncio.all_tasks()),
            "held": len(runner.worker.attempts) + len(runner.worker.holds),
        }
        print(f"costs {json.dumps(costs)}", flush=True)
        if count:
            await settle_all(runner, count)
            await all_came.wait()
        right = sum(got.get(n) == {"n": n} for n in range(count))
    print(f"right {right}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
