"""The process that the demo kills: takes a task, says so, and never gets to the end of it."""

import asyncio
import sys
from pathlib import Path

from layby.cli.demo import opened, take


async def work(file: Path) -> None:
    async with opened(file) as (_, client):
        claim = await take(client, "worker-1", "charge-card")
        _say(f"took {claim.task.id} at version {claim.task.version}")
        for step in range(1, 100):
            await asyncio.sleep(0.25)
            _say(f"working, step {step} of 100")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
