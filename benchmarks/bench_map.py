"""The bars of issue 15 for `map`: items per second, and what their caller keeps in memory.

Embedded, SQLite with synchronous=FULL, four slots, through the public API. `LAYBY_BENCH_ITEMS` is
how many items there are (default 10,000).
"""

import asyncio
import os
import time
import tracemalloc
from collections.abc import Iterator

import reference
from bars import Bench, Result
from bench_worker import commits

from layby import Context, Runner, TaskHandle, Workflow, task

# ruff: noqa: ARG001 - mapped functions take a context

COUNT = int(os.environ.get("LAYBY_BENCH_ITEMS", "10000"))
MB = 2**20


@task
async def nothing(context: Context, item: int) -> int:
    return item


@task
async def maps(context: Context, handle: TaskHandle) -> float:
    began = time.perf_counter()
    results = await handle.map(nothing, range(COUNT))
    taken = time.perf_counter() - began
    assert results == list(range(COUNT))
    return taken


@task
async def maps_as_they_come(context: Context, handle: TaskHandle) -> float:
    began, found = time.perf_counter(), 0
    async for _ in handle.map_unordered(nothing, range(COUNT)):
        found += 1
    assert found == COUNT
    return time.perf_counter() - began


async def _seconds(caller: str) -> float:
    mapped = {"maps": maps, "maps_as_they_come": maps_as_they_come}[caller]
    with reference.folder() as path:
        async with Runner(f"sqlite:{path / 'layby.db'}", slots=4) as runner:
            run = await runner.start(Workflow("mapping", tasks=[mapped]))
            return (await run.result()).result(mapped)


def mapping() -> Iterator[Result]:
    rate = COUNT / asyncio.run(_seconds("maps"))
    what = f"map over {COUNT:,} items that do nothing, embedded, 4 slots"
    yield Result(what, f"{rate:,.0f} items/s", "≥ 1,500/s", rate >= 1_500, commits())
    rate = COUNT / asyncio.run(_seconds("maps_as_they_come"))
    what = f"map_unordered over {COUNT:,} items that do nothing, embedded, 4 slots"
    yield Result(what, f"{rate:,.0f} items/s", "no bar", met=True, reference=commits())


def mapping_memory() -> Iterator[Result]:
    """The most that was allocated meanwhile, the engine and the worker in the process included."""
    tracemalloc.start()
    asyncio.run(_seconds("maps"))
    most = tracemalloc.get_traced_memory()[1] / MB
    tracemalloc.stop()
    what = f"memory while {COUNT:,} items are mapped, the whole process"
    yield Result(what, f"{most:.1f} MB", "≤ 50 MB", most <= 50, commits())


BENCHES: tuple[Bench, ...] = (mapping, mapping_memory)
