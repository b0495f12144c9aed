"""A process that is killed while a task waits for its child run: `python family_child.py ADDRESS`.

Each body that runs is a line on stdout. The second task of the child goes on when the promise `go`
is settled; with the argument `go` this process settles it. With `many` a task starts many children,
one after the other.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import sys

from layby import Runner, Workflow, task


@task
async def work(context):
    print("work", flush=True)
    context["worked"] = True


@task(dependencies=[work])
async def wait(context, handle):
    print("wait", flush=True)
    context["went"] = await handle.wait_for("go")


CHILD = Workflow("child", tasks=[work, wait])


@task
async def call(context, handle):
    print("call", flush=True)
    child = await handle.start(CHILD, {"by": "call"})
    print(f"new {child.is_new}", flush=True)
    context["result"] = sorted(await child.result())


PARENT = Workflow("parent", tasks=[call])


@task
async def count(context):
    print(f"count {context['n']}", flush=True)


COUNT = Workflow("count", tasks=[count])


@task
async def call_many(context, handle):
    for n in range(20):
        child = await handle.start(COUNT, {"n": n})
        await child.result()
        print(f"done {n}", flush=True)


MANY = Workflow("many", tasks=[call_many])


async def main() -> None:
    async with Runner(sys.argv[1], lease=2) as runner:
        if "many" in sys.argv:
            await (await runner.start(MANY, {}, run_id="p")).result()
            print(f"{len(await runner.list(flow='count'))} children", flush=True)
            return
        run = await runner.start(PARENT, {}, run_id="p")
        if "go" in sys.argv:
            await runner.resolve("go", True)
        print((await run.result())["result"], flush=True)


asyncio.run(main())
