"""Workflows that the tests of `layby run` are given by name."""

import os
from pathlib import Path
from typing import TypedDict

from layby import Workflow, task


@task
async def double(context):
    context["n"] = context["n"] * 2


@task(dependencies=["double"])
async def check(context, handle):
    handle.progress(0.5, "half-way")
    if context["n"] > 100:
        raise ValueError("too much")
    await handle.sleep(0.3)
    context["ok"] = True


@task(dependencies=["check"])
async def last(context):
    context["done"] = True


@task
async def ask(context, handle):
    context["answer"] = await handle.wait_for(context["question"])


@task(rule="finally", timeout=60)
def clean(context):
    Path("cleaned").write_text(context.ending.state)


def fails(context):
    raise ValueError("no")


all_fail = Workflow("all_fail", tasks=[task(id=f"t{number}")(fails) for number in range(5)])


@task(rule="finally", timeout=60)
async def clean_slowly(context, handle):
    await handle.wait_for("cleaned")


flow = Workflow("numbers", tasks=[double, check, last])
asking = Workflow("asking", tasks=[ask])


class Numbers(TypedDict):
    n: int


declared = Workflow("declared", tasks=[double], context=Numbers)
cleaned = Workflow("cleaned", tasks=[ask, clean])
cleaned_slowly = Workflow("cleaned_slowly", tasks=[ask, clean_slowly])


@task
def dies(context):
    os._exit(3)


deadly = Workflow("deadly", tasks=[dies])
