"""A process that runs triggers which poll, and nothing else: `… URL FOLDER LEASE`."""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import sys

from layby import Runner, TriggerAccess

URL, FOLDER, LEASE = sys.argv[1], sys.argv[2], float(sys.argv[3])


async def main() -> None:
    access = TriggerAccess(folders=(FOLDER,))
    async with Runner(URL, slots=1, group="nobody", lease=LEASE, trigger_access=access):
        print("manager is ready", flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
