"""Only starts a run and closes: `python promise_child.py URL FLOW RUN`.

It begins the run's task itself, as everybody does who has a free slot; it closes when that has
begun. Lines on stdout tell the test where the process stands.
"""

# ruff: noqa: T201, ASYNC110 - it speaks by printing, and looks again at what tells nobody

import asyncio
import sys
from pathlib import Path

from layby import Runner

sys.path.append(str(Path(__file__).parents[2]))
from tests.runner import promise_flows


async def main(url: str, flow: str, run: str) -> None:
    async with Runner(url) as runner:
        await runner.start(promise_flows.FLOWS[flow], {"run": run}, run_id=run)
        while not runner.worker.running:
            await asyncio.sleep(0.005)
        print("closes", flush=True)
    print("closed", flush=True)


asyncio.run(main(*sys.argv[1:]))
