"""Many tasks that wait at once, in real time on a real file."""

import asyncio
import threading
from pathlib import Path

import pytest

from layby import Runner, task
from layby.engine.read_turns import THREADS
from tests.helpers.flows import flow_of


@pytest.mark.parametrize(
    "count",
    [3_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_parked_tasks_cost_no_thread_and_all_resume(count: int, tmp_path: Path):
    """Parked in `defer_until` on 4 slots; other work goes on meanwhile; then all end."""
    asyncio.run(park_and_resume(count, tmp_path / "layby.db"))


async def park_and_resume(count: int, file: Path) -> None:
    is_open = asyncio.Event()
    resumed = 0

    @task
    async def waits(context, handle):
        nonlocal resumed
        await handle.defer_until(is_open.is_set, poll_interval=3_600, wake=is_open)
        resumed += 1

    @task
    async def other(context):
        context["done"] = True

    async with Runner(f"sqlite:{file}", slots=4) as runner:
        flow, unrelated = flow_of(waits), flow_of(other, name="other")
        await runner.execute(unrelated)
        threads = threading.active_count()
        runs = []
        for start in range(0, count, 1_000):
            starts = (runner.start(flow, run_id=f"r{start + n}") for n in range(1_000))
            runs += await asyncio.gather(*starts)
        await all_parked(runner, count)
        # One asks all conditions, and a few look at what is parked.
        assert threading.active_count() <= threads + 1 + THREADS
        assert runner.worker.credit.held == 0
        assert (await runner.execute(unrelated, timeout=10)) == {"done": True}
        is_open.set()
        for run in runs:
            await run.result()
        assert resumed == count
        # Conditions that met a pause of the machine may have had threads of their own for once.
        assert threading.active_count() <= threads + THREADS + 33
        assert runner.worker.attempts == {}


async def all_parked(runner: Runner, count: int) -> None:
    """A status of the last one is answered after what the others told before it."""
    while len(runner.worker.attempts) < count or runner.worker.credit.held:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    status = await (await runner.get(f"r{count - 1}")).status()
    assert status.tasks["waits"].sub_status == "Deferred"
