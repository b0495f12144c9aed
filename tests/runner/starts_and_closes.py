"""`python starts_and_closes.py URL FLOW GRACE`: start a run, see its body begin, and go home."""

import asyncio
import sys

from layby import Runner
from tests.runner import stopping_flows as flows

URL, FLOW, GRACE = sys.argv[1], sys.argv[2], float(sys.argv[3])


async def main() -> None:
    async with Runner(URL, slots=1, lease=2, grace=GRACE) as runner:
        await runner.start(getattr(flows, FLOW), run_id="r")
        while not runner.worker.running:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    print("@closed", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
