"""The bars of issue 14 for deferring: how many, how soon they go on, how late their timeouts are.

Embedded, SQLite with synchronous=FULL, through the public API. `LAYBY_BENCH_DEFERRED` is how many
tasks wait (default 10,000).
"""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import reference
from bars import Bench, Result, percentile
from bench_worker import commits

from layby import Context, Run, Runner, TaskHandle, Workflow, task, triggers

# ruff: noqa: ARG001, ASYNC110 - resumed functions take a context; a load generator looks again

COUNT = int(os.environ.get("LAYBY_BENCH_DEFERRED", "10000"))
ONE_BY_ONE = 200
IN_FLIGHT = 256

resumed: dict[int, float] = {}
"""When the code of each task went on."""


async def go_on(context: Context, handle: TaskHandle, event: Any, n: int) -> None:
    resumed[n] = time.perf_counter()


@task
async def waits(context: Context, handle: TaskHandle) -> None:
    n = context["n"]
    await handle.defer(triggers.Event(f"e-{n}"), resume=go_on, kwargs={"n": n})


FLOW = Workflow("deferring", tasks=[waits])


async def _deferred(runner: Runner) -> tuple[list[Run], float]:
    """Runs that all wait, and how many were started and deferred in a second."""
    gate, began = asyncio.Semaphore(IN_FLIGHT), time.perf_counter()

    async def start(n: int) -> Run:
        async with gate:
            return await runner.start(FLOW, {"n": n}, run_id=f"r-{n}")

    runs = await asyncio.gather(*(start(n) for n in range(COUNT)))
    while runner.worker.holds or (await runs[-1].status()).tasks["waits"].parked_in != "store":
        await asyncio.sleep(0.01)
    return runs, COUNT / (time.perf_counter() - began)


async def _one_by_one(runner: Runner, runs: list[Run]) -> list[float]:
    """Milliseconds from an event to the code that goes on with it."""
    found: list[float] = []
    for n in range(ONE_BY_ONE):
        sent = time.perf_counter()
        await runner.resolve(f"e-{n}", {"n": n})
        await runs[n].result()
        found.append((resumed[n] - sent) * 1000)
    return found


async def _all_at_once(runner: Runner, runs: list[Run]) -> float:
    left, began = range(ONE_BY_ONE, COUNT), time.perf_counter()
    await asyncio.gather(*(runner.resolve(f"e-{n}", {"n": n}) for n in left))
    await asyncio.gather(*(runs[n].result() for n in left))
    return len(left) / (time.perf_counter() - began)


def deferring() -> Iterator[Result]:
    async def measured() -> tuple[float, list[float], float]:
        with reference.folder() as path:
            async with Runner(f"sqlite:{path / 'layby.db'}", slots=4) as runner:
                runs, rate = await _deferred(runner)
                return rate, await _one_by_one(runner, runs), await _all_at_once(runner, runs)

    rate, lags, woken = asyncio.run(measured())
    p50, p99 = percentile(lags, 0.5), percentile(lags, 0.99)
    what = f"runs started, taken and deferred, {COUNT:,} in all"
    yield Result(what, f"{rate:,.0f} defers/s", "≥ 1,500/s", rate >= 1_500, commits())
    yield Result(
        f"event → resumed code, {COUNT:,} waiting, embedded",
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        "p50 ≤ 5 ms, p99 ≤ 50 ms",
        p50 <= 5 and p99 <= 50,
        commits(),
    )
    what = f"waking {COUNT - ONE_BY_ONE:,} deferred tasks, 4 slots, event → result"
    yield Result(what, f"{woken:,.0f} tasks/s", "≥ 1,000/s", woken >= 1_000, commits())


BENCHES: tuple[Bench, ...] = (deferring,)
