"""What the tests of the worker share."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from layby import Run, Runner, TaskExecution, Workflow
from layby.core.model import Promise
from layby.worker.worker_stop import WorkerStop
from layby.workflow.workflow import AnyTask
from tests.helpers.places import rows_of


def flow_of(*tasks: AnyTask, name: str = "flow") -> Workflow:
    return Workflow(name, tasks=list(tasks))


async def settled_down() -> None:
    """Let everything that is ready to happen happen, without a tick of the clock."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something to become true, under whatever clock the test has.

    Whoever has waited long looks less often: a minute of virtual time would be 60,000 looks.
    """
    pause = 0.001
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(pause)
            pause = min(pause * 1.02, 0.05)


async def look(run: Run, task_id: str) -> TaskExecution:
    return (await run.status()).tasks[task_id]


def rows(path: Path, query: str = "SELECT * FROM task_executions") -> list[dict[str, Any]]:
    return rows_of(path, query)


def promises(runner: Runner) -> dict[str, Promise]:
    """Every promise in the store of an inline engine."""
    return dict(runner.engine._store.dump().promises)


@asynccontextmanager
async def crashing(*args: Any, **options: Any) -> AsyncGenerator[Runner]:
    """A Runner whose process dies at the end: nothing is handed back, nothing is written."""
    runner = Runner(*args, **options)
    await runner.__aenter__()
    try:
        yield runner
    finally:
        await die(runner)


async def die(runner: Runner) -> None:
    """The engine first, so that no word of the bodies reaches the store any more."""
    runner._state = "closed"
    await runner.client.close()
    runner.engine.stop()
    worker = runner.worker
    worker.stopping = WorkerStop(worker, 0)
    worker.has_left = True
    worker.credit.is_open = False
    for attempt in list(worker.attempts.values()):
        attempt.end_hard()
    if tasks := [body.task for body in worker._running if body.task is not None]:
        await asyncio.wait(tasks, timeout=1)
    worker.close()
    await settled_down()
