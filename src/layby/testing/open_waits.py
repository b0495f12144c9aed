"""Which tasks of a Runner wait, for what, and how a test ends a wait."""

from functools import partial
from typing import Any

from msgspec import Struct

from layby.client.paging import pages
from layby.clock import virtual_clock
from layby.core.queries import ListRuns
from layby.core.replies import RowPage
from layby.runner import Run, Runner
from layby.testing.virtual_clock import VirtualEngineClock
from layby.workflow.plan import parse_root_id
from layby.workflow.status import TaskExecution, WaitingOn


class Wait(Struct, frozen=True):
    """One unsettled task and what it waits for."""

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
    found: list[Wait] = []
    for each in [run_id] if run_id is not None else await _unsettled(runner):
        tasks = (await Run(runner, each).status()).tasks.values()
        found += [Wait(each, task, task.waiting_on) for task in tasks if task.waiting_on]
    return found


async def settle(
    runner: Runner, promise_id: str, value: Any = None, *, error: str | BaseException | None = None
) -> None:
    """Settle a promise as somebody outside would; virtual time lets all that follows happen."""
    if error is None:
        await runner.resolve(promise_id, value)
    else:
        await runner.reject(promise_id, error)
    clock = virtual_clock.get()
    if isinstance(clock, VirtualEngineClock):
        await clock.clock.settled()


async def _unsettled(runner: Runner) -> list[str]:
    ask, query = partial(runner.page, kind=RowPage), ListRuns(state="pending", limit=1_000)
    roots = [promise.id async for page in pages(ask, query) for promise, _ in page.rows]
    return [parse_root_id(each) or each for each in roots]
