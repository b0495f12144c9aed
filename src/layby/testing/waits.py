"""Who waits for what in a Runner, and how to end a wait from a test."""

from typing import Any

from msgspec import Struct

from layby.engine.clock import virtual_clock
from layby.runner import Runner
from layby.testing.clock import VirtualClock
from layby.workflow.status import TaskExecution, WaitingOn


class Wait(Struct, frozen=True):
    """One task that is not settled and what it waits for."""

    run_id: str
    task: TaskExecution
    on: WaitingOn

    @property
    def task_id(self) -> str:
        return self.task.id

    def __str__(self) -> str:
        return f"{self.run_id}/{self.task_id} ({self.task.status}): {self.on.sentence}"


async def waits(runner: Runner, run_id: str | None = None) -> list[Wait]:
    """Every task that waits, of one run or of all unsettled ones, by run and workflow order."""
    runs = await runner.list(state="pending", limit=1_000)
    found: list[Wait] = []
    for run in runs:
        if run_id in (None, run.id):
            tasks = (await run.status()).tasks.values()
            found += [Wait(run.id, task, task.waiting_on) for task in tasks if task.waiting_on]
    return found


async def settle(
    runner: Runner, promise_id: str, value: Any = None, *, error: str | BaseException | None = None
) -> None:
    """Settle a promise as the world outside would; under virtual time all that follows happens."""
    if error is None:
        await runner.resolve(promise_id, value)
    else:
        await runner.reject(promise_id, error)
    clock = virtual_clock.get()
    if isinstance(clock, VirtualClock):
        await clock.settled()
