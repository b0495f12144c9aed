"""What processes on one database run."""

import os
import sys

from layby import Workflow, task


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


@task
async def first(context):
    context["first"] = os.getpid()


@task(dependencies=["first"])
async def second(context, handle):
    await handle.sleep(0.05)
    context["second"] = os.getpid()


@task
async def waits(context, handle):
    say(f"begun in {os.getpid()}")
    context["answer"] = await handle.wait_for(context["for"])
    context["by"] = os.getpid()


@task
async def charge(context, handle):
    async def pay() -> int:
        say(f"paid in {os.getpid()}")
        return os.getpid()

    context["paid"] = await handle.checkpoint("pay", pay)
    say(f"recorded in {os.getpid()}")
    context["answer"] = await handle.wait_for(context["for"])


steps = Workflow("steps", tasks=[first, second])
held = Workflow("held", tasks=[waits])
charges = Workflow("charges", tasks=[charge])
