"""A program with a schedule that kills itself: `python schedule_child.py ADDRESS WHERE TIMES`.

WHERE is a place in the commit of a change of the schedule's row: `inside` (written, but not
committed) or `after` (committed, but told nobody); `never` ends the program as programs end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from layby import Runner, Workflow, task
from layby.store.sql import SqlStore

ADDRESS, WHERE, TIMES = sys.argv[1], sys.argv[2], int(sys.argv[3])
written = 0
write, transaction = SqlStore.save, SqlStore.transaction


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save(self: SqlStore, changes: Any, now: int = 0) -> None:
    global written  # noqa: PLW0603 - one number of a script
    write(self, changes, now)
    written += any(each is not None and each.last_run_at for each in changes.schedules.values())
    if written == TIMES and WHERE == "inside":
        die()


@contextmanager
def committed(self: SqlStore, *, lazily: bool = False) -> Generator[None]:
    with transaction(self, lazily=lazily):
        yield
    if written == TIMES and WHERE == "after":
        die()


@task
async def first(context, handle):
    await handle.sleep(1.3)


@task(dependencies=[first])
async def second(context):
    pass


flow = Workflow("work", tasks=[first, second])


async def main() -> None:
    async with Runner(ADDRESS) as runner:
        for overlap in ("skip", "queue_one"):
            await runner.schedule(flow, "* * * * * *", id=overlap, overlap=overlap, catch_up=True)
        while written < TIMES:  # noqa: ASYNC110 - it counts what is written elsewhere
            await asyncio.sleep(0.05)


SqlStore.save, SqlStore.transaction = save, committed
asyncio.run(main())
