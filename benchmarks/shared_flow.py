"""What two workers share: bodies of a millisecond that write down when they ran."""

import asyncio
import os
import time

from layby import Workflow, task

FILE = os.open(os.environ.get("BODIES", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@task
async def brief(context):
    began = time.time()
    await asyncio.sleep(0.001)
    ended = time.time()
    line = f"{os.getpid()} {context['run']} {began * 1000:.3f} {ended * 1000:.3f}\n"
    os.write(FILE, line.encode())


flow = Workflow("shared", tasks=[brief])
