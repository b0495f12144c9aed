"""A worker that stops itself: `python lease_child.py URL EFFECTS WHEN`.

WHEN is `taken` (between the answer to its take and the body), `checkpoint` (in the body, before a
checkpoint) or `never`. Every effect is one line in the file EFFECTS.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from layby import Runner, Workflow, task
from layby.core.replies import TakeData

URL, EFFECTS, WHEN = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def effect(what: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{what} {os.getpid()}\n")


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@task
async def pays(context, handle):
    effect("begins")
    if WHEN == "checkpoint":
        stop_here()
    await handle.checkpoint("charge", effect, "charges")


@task(rule="finally", timeout=60)
async def refunds(context):
    effect(f"refunds after {context.ending.state}")


payer = Workflow("payer", tasks=[pays])
careful = Workflow("careful", tasks=[pays, refunds])


def stop_after_the_take(runner: Runner) -> None:
    send = runner.client.send

    async def sent(request: Any) -> Any:
        reply = await send(request)
        if isinstance(reply.data, TakeData) and reply.data.claims and WHEN == "taken":
            stop_here()
        return reply

    runner.client.send = sent  # pyright: ignore[reportAttributeAccessIssue]


async def main() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with Runner(URL, slots=1, lease=1.0) as runner:
        stop_after_the_take(runner)
        runner.register(payer)
        runner.register(careful)
        print("@works", flush=True)  # noqa: T201
        await over.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
