"""Engine, worker and trigger managers in one process: `… ADDRESS FOLDER COUNT SEED PACE LEASE`.

It starts the runs and lets their events and files come, and does so again when it is started again:
the same id is the same run, and what is settled stays as it is.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import random
import sys
from pathlib import Path

from layby import Runner, TriggerAccess

sys.path.insert(0, str(Path(__file__).parent))
import defer_chaos_flows as flows

ADDRESS, FOLDER, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
CHANCE, PACE_S, LEASE_S = random.Random(int(sys.argv[4])), float(sys.argv[5]), float(sys.argv[6])


async def fire(runner: Runner, number: int, step: int) -> None:
    await asyncio.sleep(CHANCE.random())
    kind = flows.kind_of(number, step)
    if kind == "file":
        flows.write_file(number, step)
    if kind == "event":
        await runner.resolve(flows.event_of(number, step), {"number": number, "step": step})


async def play(runner: Runner, number: int) -> None:
    run = await runner.start(flows.flow, {"number": number}, run_id=f"hopping-{number}")
    await asyncio.gather(*(fire(runner, number, step) for step in range(len(flows.KINDS))))
    await run.result()


async def main() -> None:
    access = TriggerAccess(folders=(FOLDER,))
    async with Runner(
        ADDRESS, slots=4, lease=LEASE_S, max_crashes=1000, trigger_access=access
    ) as runner:
        print("open", flush=True)
        playing: list[asyncio.Task[None]] = []
        for number in range(COUNT):
            playing.append(asyncio.create_task(play(runner, number)))
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*playing)
    print("done", flush=True)


asyncio.run(main())
