"""One promise that wakes a crowd leaves room for everybody else."""

import asyncio
from pathlib import Path

from layby import Runner, task
from layby.local import DELIVERED_AT_ONCE
from layby.testing import current_clock, virtual_test
from tests.helpers.flows import flow_of


@virtual_test
async def test_a_woken_crowd_comes_in_portions():
    """In no turn of the loop more bodies go on than a portion, so timers and answers get in."""
    turn, resumed = 0, []

    @task
    async def waits(context, handle):
        await handle.wait_for("signal")
        resumed.append(turn)

    async with Runner("memory:", slots=4) as runner:
        flow, count = flow_of(waits), 400
        runs = await asyncio.gather(*(runner.start(flow) for _ in range(count)))
        await current_clock().advance(1)
        await runner.resolve("signal")
        while len(resumed) < count:
            turn += 1
            await asyncio.sleep(0)
        for run in runs:
            await run.result()
    assert max(map(resumed.count, set(resumed))) <= DELIVERED_AT_ONCE
    assert len(set(resumed)) >= count / DELIVERED_AT_ONCE


def test_a_crowd_on_a_real_engine_all_resumes(tmp_path: Path):
    """The pauses for an engine that is behind lose nobody."""

    @task
    async def waits(context, handle):
        context["n"] = await handle.wait_for("signal")

    async def main() -> None:
        async with Runner(f"sqlite:{tmp_path / 'layby.db'}", slots=4) as runner:
            flow = flow_of(waits)
            runs = await asyncio.gather(*(runner.start(flow) for _ in range(500)))
            while len(runner.worker.attempts) < 500 or runner.worker.credit.held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await runner.resolve("signal", 7)
            assert [await run.result() for run in runs] == [{"n": 7}] * 500

    asyncio.run(main())
