"""A worker that is there to be killed: `python call_child.py URL MODE`.

`calls` starts a run whose task calls `work` in group `callees`; `serves` serves `work` there and
never ends it. Lines on stdout tell the test where the process stands.
"""

# ruff: noqa: T201 - it speaks by printing

import asyncio
import sys

from layby import Runner, Workflow, task

LEASE_S = 1.0


@task
async def calls(context, handle):
    print("calls", flush=True)
    context["answer"] = await handle.rpc("work", {"n": 1}, target="poll://any@callees")


@task(rpc="work")
async def hangs(context, handle):
    await handle.checkpoint("begin", str, "once")
    print("recorded", flush=True)
    await asyncio.Event().wait()


FLOW = Workflow("calling", tasks=[calls])


async def main(url: str, mode: str) -> None:
    group = "callers" if mode == "calls" else "callees"
    async with Runner(url, group=group, lease=LEASE_S) as runner:
        if mode == "calls":
            await runner.start(FLOW, run_id="r")
        else:
            runner.register(hangs)
            print("serves", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
