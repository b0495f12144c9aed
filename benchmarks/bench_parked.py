"""The bars of part 5 about tasks that are parked: their memory, and their way back after a kill.

Its loads run in processes of their own, which import nothing that a program of a user would not.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import reference
from bars import Bench, Result, percentile
from bench_worker import commits, rss
from children import kill_when_ready, numbers_from, run_asked

from layby import Run, Runner, Workflow, task

# ruff: noqa: ASYNC110 - bodies take a context; a load generator looks again and again

PARKED = 10_000


class Begun:
    count = 0


@task
async def waits_for_go(context, handle):
    Begun.count += 1
    await handle.wait_for(context["id"])


GO = Workflow("go", tasks=[waits_for_go])


async def park(runner: Runner, count: int, promise: str | None = None) -> None:
    """All have begun to wait; the last to say so has said so."""
    Begun.count = 0
    runs: list[Run] = []
    for start in range(0, count, 500):
        part = range(start, min(start + 500, count))
        context = [{"id": promise or f"p{number}"} for number in part]
        starts = (
            runner.start(GO, each, run_id=f"w{n}") for n, each in zip(part, context, strict=True)
        )
        runs += await asyncio.gather(*starts)
    while Begun.count < count:
        await asyncio.sleep(0.02)
    for run in runs[-32:]:
        while (await run.status()).tasks["waits_for_go"].sub_status != "Deferred":
            await asyncio.sleep(0.005)


def parked_memory() -> Iterator[Result]:
    """In a process of its own; RSS beside the same process before, each waits for its own."""
    with reference.folder() as path:
        [each] = numbers_from(__file__, "park", path / "layby.db", PARKED)
    yield Result(
        f"{PARKED:,} tasks parked in wait_for: memory",
        f"{each / 1024:.2f} KB RSS each",
        "≤ 7 KB each",
        each <= 7 * 1024,
        commits(),
    )


async def _park(path: Path, count: int) -> None:
    async with Runner(f"sqlite:{path}") as runner:
        await park(runner, 64, "warm")
        await runner.resolve("warm")
        for number in range(64):
            await (await runner.get(f"w{number}")).result()
    async with Runner(f"sqlite:{path.with_name('other.db')}") as runner:
        before = rss()
        await park(runner, count)
        print((rss() - before) / count, flush=True)
        os._exit(0)


# --- killed with 100 parked ------------------------------------------------------------------


def recovery_in_all() -> Iterator[Result]:
    """Kill -9 with 100 parked: from the start of the next process until all are done."""
    found, bare = [], []
    for _ in range(5):
        with reference.folder() as path:
            kill_when_ready(__file__, "hold", path / "layby.db", 100)
            start = time.perf_counter()
            numbers_from(__file__, "resume", path / "layby.db", 100)
            found.append(time.perf_counter() - start)
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import layby"], check=True)
            bare.append(time.perf_counter() - start)
    p50 = percentile(found, 0.5)
    yield Result(
        "kill -9 with 100 parked, restart → all done, in all",
        f"p50 {p50:.3f} s, best {min(found):.3f} s",
        "≤ 0.6 s",
        p50 <= 0.6,
        f"a Python that imports layby: {percentile(bare, 0.5):.3f} s; {commits()}",
    )


async def _hold(path: Path, count: int) -> None:
    async with Runner(f"sqlite:{path}") as runner:
        await park(runner, count, "go")
        print(0, flush=True)
        await asyncio.sleep(3_600)


async def _resume(path: Path, count: int) -> None:
    async with Runner(f"sqlite:{path}") as runner:
        await runner.resolve("go")
        runs = [await runner.start(GO, {"id": "go"}, run_id=f"w{n}") for n in range(count)]
        for run in runs:
            await run.result()
        print(0, flush=True)
        os._exit(0)


LOADS = {"park": _park, "hold": _hold, "resume": _resume}

BENCHES: tuple[Bench, ...] = (parked_memory, recovery_in_all)

if __name__ == "__main__":
    run_asked(LOADS)
