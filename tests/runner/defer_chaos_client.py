"""Starts runs that defer, and lets their events and files come: `… URL COUNT SEED PACE`.

Some events come before anybody waits for them, and some are settled twice.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from layby import Runner
from layby.core.model import NEVER
from layby.errors import StoreUnavailable
from layby.workflow import plan

sys.path.insert(0, str(Path(__file__).parent))
import defer_chaos_flows as flows

URL, COUNT, CHANCE = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
PACE_S = float(sys.argv[4])
T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """On a busy machine the server may be killed again and again before it serves: it is away for
    longer than a request waits for it.
    """
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            print("asking again", flush=True)


async def fire(runner: Runner, number: int, step: int) -> None:
    await asyncio.sleep(CHANCE.random() * 2)
    kind = flows.kind_of(number, step)
    if kind == "file":
        flows.write_file(number, step)
    if kind == "event":
        payload = {"number": number, "step": step}
        await patiently(lambda: runner.resolve(flows.event_of(number, step), payload))
        await patiently(lambda: runner.resolve(flows.event_of(number, step), "too late"))


async def play(runner: Runner, number: int) -> None:
    name = f"hopping-{number}"
    command = plan.plan(flows.flow, name, {"number": number}, "default", NEVER)
    firing = [asyncio.create_task(fire(runner, number, step)) for step in range(len(flows.KINDS))]
    assert (await patiently(lambda: runner.send(command))).is_ok
    await asyncio.gather(*firing)
    run = await patiently(lambda: runner.get(name))
    await patiently(run.result)


async def main() -> None:
    async with Runner(URL, lease=60, slots=0) as runner:
        print("started", flush=True)
        playing: list[asyncio.Task[None]] = []
        for number in range(COUNT):
            playing.append(asyncio.create_task(play(runner, number)))
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*playing)
    print("done", flush=True)


asyncio.run(main())
