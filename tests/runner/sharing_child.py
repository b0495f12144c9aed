"""A process on a file that others use as well: `python sharing_child.py FILE MODE [NAME]`.

`own`   opens it, works, and goes on until SIGTERM
`mute`  the same, and lets nobody else in
`plain` like `own`, in an installation without the extra `server`
`run`   runs one run called NAME, and ends
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import os
import signal
import sys
from typing import Any

from layby import Runner, Workflow, task
from layby.runner import private_socket


@task
async def works(context):
    await asyncio.sleep(0.02)
    context["pid"] = os.getpid()


@task
async def waits(context, handle):
    context["answer"] = await handle.wait_for("event")


shared = Workflow("shared", tasks=[works])
waiting = Workflow("waiting", tasks=[waits])

EXTRAS: dict[str, Any] = dict.fromkeys(("jwt", "prometheus_client", "starlette", "uvloop"))
"""What `pip install layby` leaves out, and `layby[server]` brings: None makes an import fail."""


async def own(runner: Runner) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner.register(shared)
    runner.register(waiting)
    kind = "owner" if runner._link.is_embedded else "guest"
    print(f"{kind} {os.getpid()}", flush=True)
    await stop.wait()


async def main(file: str, mode: str, *name: str) -> None:
    if mode == "plain":
        sys.modules.update(EXTRAS)
    private_socket.PATIENCE_S = 60.0  # five that start at once on a busy machine need more than 3 s
    async with Runner(f"sqlite:{file}", slots=1, socket=mode != "mute") as runner:
        if mode != "run":
            await own(runner)
            return
        result = await runner.execute(shared, run_id=name[0])
        print(f"result {result['pid']}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
