"""A worker of layby beside those of the SDKs: it takes orders and tells, as js/peer.mjs does."""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import json
import sys
import time

from layby import PromiseRejected, Runner, Workflow, task
from layby.errors import LaybyError


def tell(said: str, **fields: object) -> None:
    print(json.dumps({"said": said, "at": time.monotonic(), **fields}), flush=True)


OPTIONS = json.loads(sys.argv[1])


@task
async def calls(context, handle):
    """Of an SDK's function by name, and what comes of it."""
    try:
        context["answer"] = await handle.rpc(context["name"], *context["args"])
    except PromiseRejected as error:
        context["answer"] = f"caught: {error.message}"


@task(rpc="shout")
async def shout(context):
    return context["args"][0].upper()


@task(rpc="echo")
async def echo(context):
    return context["args"][0] if "args" in context else context.to_dict()


@task(rpc="calls_for")
async def calls_for(context, handle):
    name, args, target = context["args"]
    return await handle.rpc(name, *args, target=f"poll://any@{target}")


@task(rpc="greet")
async def greet(context):
    """One object is what it is given, and what it sets there is what it answers."""
    context["greeting"] = f"Good day, {context['name']}."


@task(rpc="refuse")
async def refuse(context):
    raise ValueError(context["args"][0])


@task(rpc="call_back")
async def call_back(context, handle):
    """Sleeps, calls a function of an SDK, and answers with its answer."""
    await handle.sleep(0.1)
    return await handle.rpc("hello", *context["args"])


@task(rpc="endure")
async def endure(context, handle):
    return [await handle.checkpoint(what, step, what) for what in ("first", "second")]


async def step(what: str) -> str:
    tell("effect", what=what)
    if OPTIONS["hangs"] == what:
        await asyncio.Event().wait()
    return what


CALLS = Workflow("calls", tasks=[calls])
FUNCTIONS = [shout, echo, calls_for, greet, refuse, call_back, endure]


async def obey(runner: Runner, order: dict) -> None:
    if order["do"] == "ping":
        tell("pong")
        return
    run_id = order["id"]
    try:
        context = {"name": order["name"], "args": order["args"]}
        run = await runner.start(CALLS, context, run_id=run_id)
        tell("created", id=run_id)
        tell("result", id=run_id, value=(await run.result())["answer"])
    except LaybyError as error:
        tell("error", id=run_id, message=str(error))


async def main() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    lease = OPTIONS["ttl"] / 1000
    async with Runner(OPTIONS["url"], group=OPTIONS["group"], lease=lease) as runner:
        for function in FUNCTIONS:
            runner.register(function)
        tell("connected")
        async with asyncio.TaskGroup() as orders:
            while line := await lines.readline():
                orders.create_task(obey(runner, json.loads(line)))


asyncio.run(main())
