"""Starts runs on a server and judges their results: `python chaos_client.py URL COUNT SEED PACE`.

It takes no task itself: everything is left to the workers. PACE is how many seconds lie between
two starts. What it tells is on stdout.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from layby import Runner
from layby.core.model import NEVER
from layby.workflow import plan

sys.path.insert(0, str(Path(__file__).parent))
import chaos_flows

URL, COUNT, CHANCE = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
PACE_S = float(sys.argv[4])


def expected(flow: str, number: int, result: dict[str, Any]) -> bool:
    return {
        "chain": result.get("sum") == sum(range(5)),
        "fan": result.get("sum") == sum((number * part) ** 2 for part in range(4)),
        "poller": result.get("polled") == number + 1,
        "sleeper": result.get("slept") == number + 2,
        "blocker": result.get("blocked") == number + 3,
        "waiter": result.get("answer") == {"number": number},
        "payer": "receipt" in result
        and result["shipped"].startswith(f"{result['receipt']} shipped-")
        and result["filed"] == f"{result['receipt']} / {result['shipped']}",
    }[flow]


async def play(runner: Runner, number: int) -> None:
    flow = chaos_flows.FLOWS[number % len(chaos_flows.FLOWS)]
    run = f"{flow.name}-{number}"
    context = {"run": run, "number": number}
    reply = await runner.send(plan.plan(flow, run, context, "default", NEVER))
    assert reply.is_ok, reply
    if flow is chaos_flows.waiter:
        await asyncio.sleep(CHANCE.random() * COUNT / 200)
        await runner.resolve(f"event-{run}", {"number": number})
    result = (await (await runner.get(run)).result()).to_dict()
    if not expected(flow.name, number, result):
        print(f"wrong {run} {result}", flush=True)


async def main() -> None:
    async with Runner(URL, lease=60) as runner:
        print("started", flush=True)
        playing: list[asyncio.Task[None]] = []
        for number in range(COUNT):
            playing.append(asyncio.create_task(play(runner, number)))
            await asyncio.sleep(PACE_S)
        try:
            for done, each in enumerate(asyncio.as_completed(playing)):
                await each
                print(f"finished {done + 1}", flush=True)
        finally:  # the first failure is told last, without those that follow from it
            for each in playing:
                each.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
    print("done", flush=True)


asyncio.run(main())
