"""The bar of issue 15 for child runs: from the start of one to its result, in the body of a task.

Embedded, SQLite with synchronous=FULL, through the public API. `LAYBY_BENCH_CHILDREN` is how many
are started one after the other (default 300).
"""

import asyncio
import os
import time
from collections.abc import Iterator

import reference
from bars import Bench, Result, percentile
from bench_worker import commits

from layby import Context, Runner, TaskHandle, Workflow, task

# ruff: noqa: ARG001 - a task takes a context

COUNT = int(os.environ.get("LAYBY_BENCH_CHILDREN", "300"))
WARM = 20
"""The first few are not counted."""

took: list[float] = []


@task
async def nothing(context: Context) -> None: ...


CHILD = Workflow("nothing", tasks=[nothing])


@task
async def calls(context: Context, handle: TaskHandle) -> None:
    for _ in range(WARM + COUNT):
        began = time.perf_counter()
        child = await handle.start(CHILD)
        await child.result()
        took.append((time.perf_counter() - began) * 1000)


PARENT = Workflow("calls", tasks=[calls])


def child_runs() -> Iterator[Result]:
    async def measured(slots: int) -> list[float]:
        took.clear()
        with reference.folder() as path:
            async with Runner(f"sqlite:{path / 'layby.db'}", slots=slots) as runner:
                await runner.execute(PARENT, {})
        return took[WARM:]

    for slots in (4, 1):
        lengths = asyncio.run(measured(slots))
        p50, p99 = percentile(lengths, 0.5), percentile(lengths, 0.99)
        plural = "s" if slots > 1 else ""
        yield Result(
            f"child run, start → result, embedded, {slots} slot{plural}",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            "p50 ≤ 4 ms",
            p50 <= 4,
            commits(),
        )


BENCHES: tuple[Bench, ...] = (child_runs,)
