"""The bars of issue 14 for deferring: how many, how soon they go on, how late their timeouts are.

SQLite with synchronous=FULL, through the public API; embedded, and from a process at a server.
`LAYBY_BENCH_DEFERRED` is how many tasks wait to be woken (default 10,000), and
`LAYBY_BENCH_WAITING` how many wait beside those whose timeouts are measured (default 100,000).
"""

import asyncio
import gc
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import reference
from bars import Bench, Result, percentile
from bench_server import server
from bench_worker import commits

from layby import Context, DeferTimeout, Run, Runner, TaskHandle, Workflow, task, triggers

# ruff: noqa: ARG001, ASYNC110 - resumed functions take a context; a load generator looks again

COUNT = int(os.environ.get("LAYBY_BENCH_DEFERRED", "10000"))
WAITING = int(os.environ.get("LAYBY_BENCH_WAITING", "100000"))
ONE_BY_ONE = 200
OVER_HTTP = 1_000
TIMED = 1_000
TIMED_S = 10
"""So long after the first of the timed ones has deferred, the last of them times out."""
IN_FLIGHT = 256

resumed: dict[int, float] = {}
"""When the code of each task went on."""


async def go_on(context: Context, handle: TaskHandle, event: Any, n: int) -> None:
    resumed[n] = time.perf_counter()


@task
async def waits(context: Context, handle: TaskHandle) -> None:
    n = context["n"]
    await handle.defer(triggers.Event(f"e-{n}"), resume=go_on, kwargs={"n": n})


@task(id="waits")
async def times_out(context: Context, handle: TaskHandle) -> None:
    try:
        await handle.defer(triggers.Event(f"t-{context['n']}"), timeout=context["seconds"])
    except DeferTimeout:
        resumed[context["n"]] = time.time() * 1000


FLOW = Workflow("deferring", tasks=[waits])
TIMED_FLOW = Workflow("timing", tasks=[times_out])


async def _deferred(
    runner: Runner, count: int, flow: Workflow = FLOW, seconds: float = 0
) -> tuple[list[Run], float]:
    """Runs that all wait, and how many were started and deferred in a second."""
    gate, began = asyncio.Semaphore(IN_FLIGHT), time.perf_counter()

    async def start(n: int) -> Run:
        context = {"n": n, "seconds": seconds + TIMED_S * n / count}
        async with gate:
            return await runner.start(flow, context, run_id=f"{flow.name}-{n}")

    runs = await asyncio.gather(*(start(n) for n in range(count)))
    while runner.worker.holds or (await runs[-1].status()).tasks["waits"].parked_in != "store":
        await asyncio.sleep(0.01)
    return runs, count / (time.perf_counter() - began)


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
                runs, rate = await _deferred(runner, COUNT)
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


def deferring_over_http() -> Iterator[Result]:
    """Code and whoever settles are in this process, the server is in another."""

    async def measured(port: int) -> list[float]:
        async with Runner(f"http://127.0.0.1:{port}", slots=4) as runner:
            runs, _ = await _deferred(runner, OVER_HTTP)
            return await _one_by_one(runner, runs)

    with reference.folder() as path, server(path) as port:
        lags = asyncio.run(measured(port))
    p50, p99 = percentile(lags, 0.5), percentile(lags, 0.99)
    yield Result(
        f"event → resumed code, {OVER_HTTP:,} waiting, over HTTP",
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        "p50 ≤ 10 ms, p99 ≤ 50 ms",
        p50 <= 10 and p99 <= 50,
        commits(),
    )


# --- many that wait ------------------------------------------------------------------------


def many_deferred() -> Iterator[Result]:
    """What a process pays that comes to them, and how late timeouts are beside them."""
    with reference.folder() as path:
        (empty,) = children.numbers_from(__file__, "visit", path / "empty.db", 0)
        asyncio.run(_fill(path / "many.db"))
        (many,) = children.numbers_from(__file__, "visit", path / "many.db", WAITING)
        lateness = asyncio.run(_lateness_ms(path / "many.db"))
    each = (many - empty) / WAITING
    yield Result(
        f"memory of a new process for each of {WAITING:,} deferred tasks",
        f"{each:.3f} KB ({many / 1000:.0f} MB, and {empty / 1000:.0f} MB with an empty store)",
        "≤ 0.2 KB",
        each <= 0.2,
        commits(),
    )
    p50, p99 = percentile(lateness, 0.5), percentile(lateness, 0.99)
    yield Result(
        f"lateness of {len(lateness):,} timeouts, deadline → code, {WAITING:,} waiting",
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        "p99 ≤ 50 ms",
        p99 <= 50,
        commits(),
    )


async def _fill(path: Path) -> None:
    """Prepares, so it need not wait for the disk."""
    async with Runner(f"sqlite:{path}", slots=4, durability="normal") as runner:
        await _deferred(runner, WAITING)


async def _lateness_ms(path: Path) -> list[float]:
    """From the deadline in the store to the code that hears of it, in milliseconds."""
    resumed.clear()
    async with Runner(f"sqlite:{path}", slots=4) as runner:
        runner.register(FLOW)
        runs, _ = await _deferred(runner, TIMED, TIMED_FLOW, seconds=20)
        due = [(await run.status()).tasks["waits"].waiting_on for run in runs]
        for run in runs:
            await run.result()
        behind = time.time() * 1000 - runner.now()  # the store may be ahead of the wall
    deadlines = [None if each is None else each.deadline for each in due]
    return [
        resumed[n] - behind - deadline
        for n, deadline in enumerate(deadlines)
        if deadline is not None
    ]


async def _visit(path: Path, _count: int) -> None:
    """In a process of its own: its resident memory in KB, once it works."""
    async with Runner(f"sqlite:{path}", slots=4) as runner:
        runner.register(FLOW)
        await runner.execute(Workflow("warm-up", tasks=[works]))
        gc.collect()
        print(_resident_kb())


def _resident_kb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


@task
async def works(context: Context) -> None: ...


BENCHES: tuple[Bench, ...] = (deferring, deferring_over_http, many_deferred)

if __name__ == "__main__":
    children.run_asked({"visit": _visit})
