"""The bars of part 3: Runner and worker on SQLite with synchronous=FULL, through the public API."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import reference
from bars import Bench, Result, percentile
from children import kill_when_ready, numbers_from, run_asked

from layby import Runner, Workflow, task

# ruff: noqa: ARG001, ASYNC110 - bodies take a context; a load generator looks again and again

IN_FLIGHT = 64


@task
async def one(context):
    context["done"] = True


ONE = Workflow("one", tasks=[one])


def commits() -> str:
    found = reference.commits_per_s()
    return f"bare FULL commit loop: {found:,.0f} commits/s; load {os.getloadavg()[0]:.1f}"


class Clocks:
    """Wall time, and the processor time of this process: what a busy machine cannot blur."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu


# --- one-task runs ---------------------------------------------------------------------------


async def run_many(runner: Runner, count: int, prefix: str) -> None:
    async def caller(number: int) -> None:
        for index in range(count // IN_FLIGHT):
            await runner.execute(ONE, {"n": index}, run_id=f"{prefix}-{number}-{index}")

    await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))


async def runs_per_s(address: str, slots: int, count: int) -> tuple[float, float]:
    """Runs per second of wall time and of processor time; the best of three parts."""
    async with Runner(address, slots=slots) as runner:
        await run_many(runner, 640, "warm")
        found = []
        for part in range(3):
            clocks = Clocks()
            await run_many(runner, count, f"hot{part}")
            found.append((count / clocks.wall, count / clocks.cpu))
    return max(found)


def one_task_runs() -> Iterator[Result]:
    found = {}
    for slots in (4, IN_FLIGHT):
        with reference.folder() as path:
            found[slots] = asyncio.run(runs_per_s(f"sqlite:{path / 'layby.db'}", slots, 3_200))
    told = ", ".join(
        f"{wall:,.0f} runs/s on {slots} slots ({cpu:,.0f} per CPU second)"
        for slots, (wall, cpu) in found.items()
    )
    best = max(wall for wall, _ in found.values())
    yield Result(
        "one-task runs, 64 in flight, start → result",
        told,
        "≥ 2,000 runs/s",
        best >= 2_000,
        commits(),
    )


# --- a chain ---------------------------------------------------------------------------------


def chain_of(count: int) -> Workflow:
    def link(number: int):
        @task(id=f"t{number}", dependencies=[f"t{number - 1}"] if number else [])
        async def step(context):
            context["n"] = number

        return step

    return Workflow("chain", tasks=[link(number) for number in range(count)])


def chain() -> Iterator[Result]:
    async def measure(path: Path) -> list[tuple[float, float]]:
        flow, found = chain_of(100), []
        async with Runner(f"sqlite:{path}") as runner:
            for _ in range(12):
                clocks = Clocks()
                await runner.execute(flow)
                found.append((clocks.wall * 10, clocks.cpu * 10))
        return found[2:]

    with reference.folder() as path:
        found = asyncio.run(measure(path / "layby.db"))
    p50 = percentile([wall for wall, _ in found], 0.5)
    cpu = percentile([each for _, each in found], 0.5)
    yield Result(
        "100-task chain",
        f"p50 {p50:.2f} ms per task, best {min(found)[0]:.2f} ({cpu:.2f} ms of CPU)",
        "≤ 1.2 ms per task",
        p50 <= 1.2,
        f"bare FULL commit p50 {reference.commit_p50_ms():.3f} ms; load {os.getloadavg()[0]:.1f}",
    )


# --- parked in defer_until -------------------------------------------------------------------

PARKED = 100_000
PARKED_FOR_PROMISES = 10_000
WATCHED_S = 60


def parked() -> Iterator[Result]:
    """In a process of its own; RSS beside the same process before the first run was started."""
    with reference.folder() as path:
        bytes_each, cpu_share = numbers_from(__file__, "park", path / "layby.db", PARKED)
    yield Result(
        f"{PARKED:,} tasks parked in defer_until: memory",
        f"{bytes_each / 1024:.2f} KB RSS each",
        "≤ 6 KB each",
        bytes_each <= 6 * 1024,
        commits(),
    )
    yield Result(
        f"… idle CPU at a poll interval of 30 s, over {WATCHED_S} s",
        f"{cpu_share:.2%} of a core",
        "≤ 5 %",
        cpu_share <= 0.05,
        commits(),
    )


def parked_for_promises() -> Iterator[Result]:
    """The same, each for a promise of its own."""
    with reference.folder() as path:
        (bytes_each,) = numbers_from(__file__, "wait", path / "layby.db", PARKED_FOR_PROMISES)
    yield Result(
        f"{PARKED_FOR_PROMISES:,} tasks parked in wait_for: memory",
        f"{bytes_each / 1024:.2f} KB RSS each",
        "≤ 7 KB each",
        bytes_each <= 7 * 1024,
        commits(),
    )


@task
async def polls(context, handle):
    await handle.defer_until(_never, poll_interval=30)


def _never() -> bool:
    return False


@task
async def awaits(context, handle):
    await handle.wait_for(f"go/{handle.task_execution_id}")


async def _wait(path: Path, count: int) -> None:
    async with Runner(f"sqlite:{path}", max_parked=count + 10) as runner:
        print(await _grown(runner, Workflow("awaits", tasks=[awaits]), count) / count, flush=True)
        os._exit(0)


async def _grown(runner: Runner, flow: Workflow, count: int) -> int:
    await run_many(runner, 640, "warm")
    before = rss()
    for start in range(0, count, 500):
        starts = (runner.start(flow, run_id=f"p{start + number}") for number in range(500))
        await asyncio.gather(*starts)
    while len(runner.worker.attempts) < count or runner.worker.credit.held:
        await asyncio.sleep(0.05)
    await (await runner.get("p0")).status()
    return rss() - before


async def _park(path: Path, count: int) -> None:
    flow = Workflow("polls", tasks=[polls])
    async with Runner(f"sqlite:{path}", max_parked=count + 10) as runner:
        grown = await _grown(runner, flow, count)
        await asyncio.sleep(5)
        clocks = Clocks()
        await asyncio.sleep(WATCHED_S)
        print(grown / count, clocks.cpu / clocks.wall, flush=True)
        os._exit(0)  # a process that dies frees its work at once; that is measured elsewhere


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- from settled to running -----------------------------------------------------------------


def wake_latency() -> Iterator[Result]:
    """A promise is settled; until the line after `wait_for` runs."""
    woken: list[float] = []

    @task
    async def waits(context, handle):
        await handle.wait_for(context["id"])
        woken.append(time.perf_counter())

    async def measure(path: Path) -> list[float]:
        flow, found = Workflow("waits", tasks=[waits]), []
        async with Runner(f"sqlite:{path}") as runner:
            for number in range(1_100):
                run = await runner.start(flow, {"id": f"p{number}"})
                while runner.worker.credit.held or not runner.worker.attempts:
                    await asyncio.sleep(0)
                await run.status()  # `Deferred` is committed
                await asyncio.sleep(0.002)  # the worker has asked for more: all is at rest
                settled = time.perf_counter()
                await runner.resolve(f"p{number}")
                await run.result()
                found.append((woken[-1] - settled) * 1000)
        return found[100:]

    with reference.folder() as path:
        found = asyncio.run(measure(path / "layby.db"))
    p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
    yield Result(
        "promise settled → code after wait_for runs",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms",
        "p50 ≤ 1 ms, p99 ≤ 10 ms",
        p50 <= 1 and p99 <= 10,
        f"bare FULL commit p50 {reference.commit_p50_ms():.3f} ms; load {os.getloadavg()[0]:.1f}",
    )


# --- from nothing to the first task ----------------------------------------------------------


def first_task() -> Iterator[Result]:
    """A fresh process on a fresh file: until its first task is done, Python's own start apart."""
    found, bare = [], []
    for _ in range(7):
        with reference.folder() as path:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append(time.perf_counter() - start)
            start = time.perf_counter()
            numbers_from(__file__, "first", path / "layby.db", 0)
            found.append(time.perf_counter() - start)
    p50 = percentile(found, 0.5)
    yield Result(
        "import layby + first task done, fresh file, whole process",
        f"p50 {p50:.3f} s, best {min(found):.3f} s",
        "≤ 0.6 s",
        p50 <= 0.6,
        f"a Python that does nothing: {percentile(bare, 0.5):.3f} s; {commits()}",
    )


async def _first(path: Path, _: int) -> None:
    async with Runner(f"sqlite:{path}") as runner:
        await runner.execute(ONE)
        print(0, flush=True)
        os._exit(0)


# --- many woken at once ----------------------------------------------------------------------


def wake_many() -> Iterator[Result]:
    """One promise, 10,000 waiters, 4 slots; meanwhile a prober resolves a promise every 5 ms."""
    with reference.folder() as path:
        seconds, cpu, probes = asyncio.run(_wake_many(path / "layby.db", 10_000))
    yield Result(
        "waking 10,000 waiters at once on 4 slots",
        f"all resumed in {seconds:.2f} s ({cpu:.2f} s of CPU)",
        "≤ 5 s",
        seconds <= 5,
        commits(),
    )
    yield Result(
        "… other commands meanwhile",
        f"p50 {percentile(probes, 0.5):.1f} ms, max {max(probes):.1f} ms over {len(probes)} probes",
        "≤ 100 ms",
        max(probes) <= 100,
        commits(),
    )


async def _wake_many(path: Path, count: int) -> tuple[float, float, list[float]]:
    resumed = 0
    all_resumed = asyncio.Event()

    @task
    async def waits(context, handle):
        nonlocal resumed
        await handle.wait_for("signal")
        resumed += 1
        if resumed == count:
            all_resumed.set()

    flow = Workflow("waits", tasks=[waits])
    async with Runner(f"sqlite:{path}") as runner:
        for start in range(0, count, 500):
            await asyncio.gather(*(runner.start(flow, run_id=f"w{start + n}") for n in range(500)))
        while len(runner.worker.attempts) < count or runner.worker.credit.held:
            await asyncio.sleep(0.05)
        await (await runner.get("w0")).status()
        probes: list[float] = []
        stop = asyncio.Event()
        prober = asyncio.ensure_future(_probe(runner, probes, stop))
        clocks = Clocks()
        await runner.resolve("signal")
        await all_resumed.wait()
        seconds, cpu = clocks.wall, clocks.cpu
        stop.set()
        await prober
        return seconds, cpu, probes


async def _probe(runner: Runner, found: list[float], stop: asyncio.Event) -> None:
    """From the moment it wanted to ask: a loop that is kept busy counts too."""
    due = time.perf_counter()
    while not stop.is_set():
        await runner.resolve(f"probe-{len(found)}")
        found.append((time.perf_counter() - due) * 1000)
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)


# --- killed with 100 parked ------------------------------------------------------------------


def recovery() -> Iterator[Result]:
    """Kill -9 a process with 100 parked tasks; the next one lets them go on until all are done."""
    found, bare = [], []
    for _ in range(5):
        with reference.folder() as path:
            kill_when_ready(__file__, "hold", path / "layby.db", 100)
            start = time.perf_counter()
            numbers_from(__file__, "resume", path / "layby.db", 100)
            found.append(time.perf_counter() - start)
            start = time.perf_counter()
            numbers_from(__file__, "first", path / "fresh.db", 0)
            bare.append(time.perf_counter() - start)
    more = percentile(found, 0.5) - percentile(bare, 0.5)
    yield Result(
        "kill -9 with 100 parked, restart → all done",
        f"{more:.3f} s more than the bare start",
        "≤ 0.8 s more",
        more <= 0.8,
        f"bare start (import, fresh file, one task): {percentile(bare, 0.5):.3f} s; {commits()}",
    )


@task
async def holds(context, handle):
    await handle.wait_for("go")


async def _hold(path: Path, count: int) -> None:
    flow = Workflow("holds", tasks=[holds])
    async with Runner(f"sqlite:{path}") as runner:
        for number in range(count):
            await runner.start(flow, run_id=f"h{number}")
        while len(runner.worker.attempts) < count or runner.worker.credit.held:
            await asyncio.sleep(0.01)
        await (await runner.get("h0")).status()
        print(0, flush=True)
        await asyncio.sleep(3_600)


async def _resume(path: Path, count: int) -> None:
    flow = Workflow("holds", tasks=[holds])
    async with Runner(f"sqlite:{path}") as runner:
        await runner.resolve("go")
        runs = [await runner.start(flow, run_id=f"h{number}") for number in range(count)]
        for run in runs:
            await run.result()
        print(0, flush=True)
        os._exit(0)


# --- processes of their own ------------------------------------------------------------------


LOADS = {"park": _park, "wait": _wait, "first": _first, "hold": _hold, "resume": _resume}

BENCHES: tuple[Bench, ...] = (
    one_task_runs,
    chain,
    wake_latency,
    first_task,
    wake_many,
    recovery,
    parked,
    parked_for_promises,
)

if __name__ == "__main__":
    run_asked(LOADS)
