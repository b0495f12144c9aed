"""A process of many on one database: `LAYBY_URL=… python postgres_child.py NAME SLOTS`.

It says when each body begins, and runs until it is told to stop.
"""

import asyncio
import logging
import os
import signal
import sys

from layby import Runner
from tests.runner.postgres_flows import charges, held, say, steps

URL, NAME, SLOTS = os.environ["LAYBY_URL"], sys.argv[1], int(sys.argv[2])
LEASE_S = float(os.environ.get("LAYBY_TEST_LEASE", "2"))


async def main() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with Runner(URL, slots=SLOTS, lease=LEASE_S) as runner:
        for flow in (steps, held, charges):
            runner.register(flow)
        say(f"{NAME} is ready")
        await over.wait()
    say(f"{NAME} has left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    asyncio.run(main())
