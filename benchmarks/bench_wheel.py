"""100,000 parked conditions at 30 s: the wheel beside a sleeping coroutine for each.

    python benchmarks/bench_wheel.py [COUNT] [SECONDS]

Each form runs in a process of its own, so that memory is its own; phases come as they come when
tasks park over a few seconds.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from layby.worker.wheel import Wheel

INTERVAL = 30.0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def condition_of(number: int) -> Callable[[], bool]:
    return lambda: number < 0


async def sleeping(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the form we measure against
        await asyncio.sleep(INTERVAL)


async def awaiting(wheel: Wheel, condition: Callable[[], bool]) -> None:
    await wheel.watch(condition, INTERVAL).future


def former(form: str) -> Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]:
    wheel = Wheel()
    return sleeping if form == "coroutine" else lambda condition: awaiting(wheel, condition)


async def bare(count: int) -> list[Any]:
    wheel = Wheel()
    polls = []
    for number in range(count):
        polls.append(wheel.watch(condition_of(number), INTERVAL))
        if number % 1_000 == 0:
            await asyncio.sleep(0.05)
    return polls


async def tasks(form: str, count: int) -> list[Any]:
    start = former(form)
    started = []
    for number in range(count):
        started.append(asyncio.create_task(start(condition_of(number))))
        if number % 1_000 == 0:
            await asyncio.sleep(0.05)
    return started


async def measure(form: str, count: int, seconds: float) -> None:
    before = resident()
    parked = await (bare(count) if form == "poll" else tasks(form, count))
    await asyncio.sleep(0.1)
    size = (resident() - before) / count
    cpu, wall, worst = time.process_time(), time.perf_counter(), 0.0
    while (now := time.perf_counter()) - wall < seconds:
        await asyncio.sleep(0.01)
        worst = max(worst, time.perf_counter() - now - 0.01)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    print(
        f"{form:<15} {len(parked):,} parked: {size:6.0f} bytes RSS each, {share:5.1%} of a core "
        f"(this probe included), loop late by {worst * 1000:.1f} ms at worst"
    )
    os._exit(0)  # nobody needs to see 100,000 cancellations


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    if len(sys.argv) > 3:
        asyncio.run(measure(sys.argv[3], count, seconds))
        return
    for form in ("poll", "coroutine+poll", "coroutine"):
        subprocess.run([sys.executable, "-u", __file__, str(count), str(seconds), form], check=True)


if __name__ == "__main__":
    main()
