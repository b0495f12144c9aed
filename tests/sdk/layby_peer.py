"""A worker of layby beside those of the SDKs: it takes orders and tells, as js/peer.mjs does."""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import json
import sys

from layby import PromiseRejected, Runner, Workflow, task
from layby.errors import LaybyError


def tell(said: str, **fields: object) -> None:
    print(json.dumps({"said": said, **fields}), flush=True)


@task
async def calls(context, handle):
    """Of an SDK's function by name, and what comes of it."""
    try:
        context["answer"] = await handle.rpc(context["name"], *context["args"])
    except PromiseRejected as error:
        context["answer"] = f"caught: {error.message}"


CALLS = Workflow("calls", tasks=[calls])


async def obey(runner: Runner, order: dict) -> None:
    run_id = order["id"]
    try:
        context = {"name": order["name"], "args": order["args"]}
        run = await runner.start(CALLS, context, run_id=run_id)
        tell("created", id=run_id)
        tell("result", id=run_id, value=(await run.result())["answer"])
    except LaybyError as error:
        tell("error", id=run_id, message=str(error))


async def main() -> None:
    options = json.loads(sys.argv[1])
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Runner(options["url"], group=options["group"]) as runner:
        tell("connected")
        async with asyncio.TaskGroup() as orders:
            while line := await lines.readline():
                orders.create_task(obey(runner, json.loads(line)))


asyncio.run(main())
