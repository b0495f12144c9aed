"""The bars of part 5: few slots that are fast, and wake-ups; embedded and through a server.

Only the public API is used, and what bodies themselves write down: nothing here depends on how the
worker is built.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import reference
from bars import Bench, Result, percentile
from bench_server import remote_runs_per_s, server, settle_to_code_ms
from bench_worker import IN_FLIGHT, commits, runs_per_s

from layby import Run, Runner, Workflow, task
from layby.core.model import NEVER
from layby.core.replies import RunData
from layby.workflow import plan

# ruff: noqa: ASYNC110 - bodies take a context; a load generator looks again and again

FEW = 4

# --- one-task runs on few slots --------------------------------------------------------------


def few_slots() -> Iterator[Result]:
    """The two take turns, so that a slower minute meets both."""
    found: dict[int, list[float]] = {FEW: [], IN_FLIGHT: []}
    for _ in range(2):
        for slots, rates in found.items():
            with reference.folder() as path:
                address = f"sqlite:{path / 'layby.db'}"
                rates.append(asyncio.run(runs_per_s(address, slots, 1_920))[0])
    few, many = (max(rates) for rates in found.values())
    yield Result(
        "one-task runs, 64 in flight, 4 slots, embedded",
        f"{few:,.0f} runs/s",
        "≥ 2,000 runs/s",
        few >= 2_000,
        commits(),
    )
    yield Result(
        "… beside the same on 64 slots",
        f"{few / many:.0%} of {many:,.0f} runs/s",
        "≥ 80 %",
        few >= 0.8 * many,
        commits(),
        few / many * 100,
        "%",
    )


def few_slots_remote() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        found = asyncio.run(remote_runs_per_s(f"http://127.0.0.1:{port}", FEW, 1_920))
    yield Result(
        "one-task runs, 64 in flight, 4 slots, server + remote worker",
        f"{found:,.0f} runs/s",
        "≥ 1,300 runs/s",
        found >= 1_300,
        commits(),
    )


# --- from settled to running -----------------------------------------------------------------

RESTS_S = (0.002, 0.02)


class Woken:
    at = 0.0


@task
async def waits(context, handle):
    await handle.wait_for(context["id"])
    Woken.at = time.perf_counter()


WAITS = Workflow("waits", tasks=[waits])


async def parked(run: Run) -> None:
    while (await run.status()).tasks["waits"].sub_status != "Deferred":
        await asyncio.sleep(0.001)


async def wake_ms(path: Path, rest_s: float, count: int) -> list[float]:
    found: list[float] = []
    async with Runner(f"sqlite:{path}") as runner:
        for number in range(count):
            run = await runner.start(WAITS, {"id": f"p{number}"})
            await parked(run)
            await asyncio.sleep(rest_s)
            settled = time.perf_counter()
            await runner.resolve(f"p{number}")
            await run.result()
            found.append((Woken.at - settled) * 1000)
    return found[count // 10 :]


def wake_after_rest() -> Iterator[Result]:
    """A promise is settled; until the line after `wait_for` runs. Idle processors fall asleep."""
    for rest_s in RESTS_S:
        with reference.folder() as path:
            found = asyncio.run(wake_ms(path / "layby.db", rest_s, 440))
        p50 = percentile(found, 0.5)
        yield Result(
            f"promise settled → code after wait_for, after {rest_s * 1000:.0f} ms of rest",
            f"p50 {p50:.2f} ms, p99 {percentile(found, 0.99):.2f} ms",
            "p50 ≤ 1 ms",
            p50 <= 1,
            _after(rest_s),
        )


def _after(rest_s: float) -> str:
    bare = reference.handed_over_p50_ms(rest_s)
    return (
        f"loop → thread → bare FULL commit → loop, after {rest_s * 1000:.0f} ms of rest: "
        f"p50 {bare:.2f} ms; without rest the commit alone {reference.commit_p50_ms():.2f} ms"
    )


def wake_remote() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        found = asyncio.run(settle_to_code_ms(f"http://127.0.0.1:{port}"))
    p50 = percentile(found, 0.5)
    yield Result(
        "promise settled → code after wait_for in a remote worker",
        f"p50 {p50:.2f} ms, p99 {percentile(found, 0.99):.2f} ms",
        "p50 ≤ 2.5 ms",
        p50 <= 2.5,
        _after(0.02),
    )


# --- two workers share -----------------------------------------------------------------------

RUNS = 10_000
LATE_MS = 50
FLOWS = Path(__file__).with_name("shared_flow.py")


class Ran(NamedTuple):
    """One body, as it wrote it down itself, in milliseconds of the wall clock."""

    pid: int
    run: str
    began: float
    ended: float


class Gap(NamedTuple):
    """A slot that was free."""

    since: float
    until: float


def shared() -> Iterator[Result]:
    """Twice as many in flight as there are slots: always work, and processors to spare.

    With 64 in flight, four processes keep two processors busy: then a task waits for those, not
    for a slot, and how long is only told.
    """
    for in_flight in (4 * FEW, IN_FLIGHT):
        rate, bodies, ready = _shared_by_two(in_flight)
        by_worker = defaultdict(list)
        for body in bodies:
            by_worker[body.pid].append(body)
        shares = sorted(len(each) / len(bodies) for each in by_worker.values())
        most = shares[-1] if len(shares) > 1 else 1.0
        yield Result(
            f"two workers, 4 slots each, 1 ms bodies, {RUNS:,} runs, {in_flight} in flight: shares",
            f"{most:.1%} and {1 - most:.1%}; {rate:,.0f} runs/s",
            "within 60 : 40",
            most <= 0.6,
            commits(),
            most * 100,
            "%",
        )
        has_bar = in_flight < IN_FLIGHT
        waited_ms, late = _while_a_slot_was_free(bodies, list(by_worker.values()), ready)
        yield Result(
            f"… {in_flight} in flight: longest wait of a ready task beside a free slot",
            f"{waited_ms:.1f} ms ({late} tasks waited longer than {LATE_MS} ms)",
            f"≤ {LATE_MS} ms" if has_bar else "none: the processors are busy",
            waited_ms <= LATE_MS or not has_bar,
            commits(),
            waited_ms,
            "ms",
        )


def _shared_by_two(in_flight: int) -> tuple[float, list[Ran], dict[str, float]]:
    with reference.folder() as folder, server(folder) as port:
        rate, ready = _with_two_workers(folder, f"http://127.0.0.1:{port}", in_flight)
        return rate, _read_bodies(folder / "bodies"), ready


def _with_two_workers(folder: Path, url: str, in_flight: int) -> tuple[float, dict[str, float]]:
    """Runs per second, and when the task of each run was ready."""
    flags = ["--url", url, "--slots", str(FEW)]
    command = [sys.executable, "-m", "layby.cli", "worker", str(FLOWS), *flags]
    environment = os.environ | {"BODIES": str(folder / "bodies")}
    workers = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for each in workers:
            assert each.stderr is not None
            while "works for" not in each.stderr.readline():
                assert each.poll() is None, "a worker has ended"
        return asyncio.run(_load(url, in_flight))
    finally:
        for each in workers:
            each.terminate()
        for each in workers:
            each.communicate(timeout=30)


async def _load(url: str, in_flight: int) -> tuple[float, dict[str, float]]:
    """By somebody who takes none; the store says when each task was ready."""
    from shared_flow import flow  # noqa: PLC0415 - it opens the file that the workers write to

    ready: dict[str, float] = {}

    async def caller(runner: Runner, number: int, count: int, part: str) -> None:
        for index in range(count // in_flight):
            run_id = f"{part}-{number}-{index}"
            command = plan.plan(flow, run_id, {"run": run_id}, "default", NEVER)
            reply = await runner.send(command)
            assert isinstance(reply.data, RunData), reply
            ready[run_id] = reply.data.promise.created_at
            await Run(runner, run_id).result()  # as `start` does, without a second request

    async def callers(runner: Runner, count: int, part: str) -> None:
        await asyncio.gather(*(caller(runner, n, count, part) for n in range(in_flight)))

    async with Runner(url) as runner:
        await callers(runner, 640, "warm")
        ready.clear()
        began = time.perf_counter()
        await callers(runner, RUNS, "hot")
        return len(ready) / (time.perf_counter() - began), ready


def _read_bodies(file: Path) -> list[Ran]:
    split = (line.split() for line in file.read_text().splitlines())
    return [
        Ran(int(pid), run, float(began), float(ended))
        for pid, run, began, ended in split
        if not run.startswith("warm")
    ]


def _while_a_slot_was_free(
    bodies: list[Ran], by_worker: list[list[Ran]], ready: dict[str, float]
) -> tuple[float, int]:
    """The longest that any task was ready and not begun while one slot was free all the time."""
    first = min(ready.values())
    gaps = [gap for each in by_worker for gap in _gaps(each, first)]
    longest, late = 0.0, set[str]()
    for gap in sorted(gaps, key=lambda gap: gap.since - gap.until):
        if gap.until - gap.since <= min(longest, LATE_MS):
            break  # nobody can have waited longer beside it, or any shorter one
        for body in bodies:
            waited = min(body.began, gap.until) - max(ready[body.run], gap.since)
            longest = max(longest, waited)
            if waited > LATE_MS:
                late.add(body.run)
    return longest, len(late)


def _gaps(bodies: list[Ran], first: float) -> Iterator[Gap]:
    """When each slot of a worker was free; a body has the one that was free for longest."""
    free = [first] * FEW
    for body in sorted(bodies, key=lambda each: each.began):
        free.sort()
        yield Gap(free[0], body.began)
        free[0] = body.ended
    for since in free:
        yield Gap(since, float("inf"))


BENCHES: tuple[Bench, ...] = (few_slots, few_slots_remote, wake_after_rest, wake_remote, shared)
