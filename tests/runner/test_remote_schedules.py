"""Schedules of a server, made and seen by a Runner elsewhere, on the real clock."""

import asyncio
from pathlib import Path

import pytest

from layby import Runner, UsageError, Workflow, task
from tests.helpers.server_process import ServerProcess

PATIENCE_S = 90


def test_a_server_starts_the_runs_and_a_runner_elsewhere_works_on_them(tmp_path: Path) -> None:
    """A second Runner finds the schedule again, and the runs that the first one left behind."""

    async def main(url: str) -> None:
        begun: asyncio.Queue[str] = asyncio.Queue()

        @task
        async def beat(context, handle):
            context["beats"] += 1
            begun.put_nowait(handle.task_execution_id)

        pulse = Workflow("pulse", tasks=[beat])
        async with asyncio.timeout(PATIENCE_S), Runner(url) as runner:
            schedule = await runner.schedule(pulse, "* * * * * *", context={"beats": 1})
            assert (schedule.flow, schedule.timezone, schedule.catch_up) == ("pulse", "UTC", False)
            with pytest.raises(UsageError, match=r"differs in cron .*runner\.unschedule\('pulse'"):
                await runner.schedule(pulse, "* * * * *", context={"beats": 1})
            assert (await begun.get()).startswith("run/pulse-")
        async with asyncio.timeout(PATIENCE_S), Runner(url) as runner:
            (again,) = await runner.schedules()
            assert (
                again.id == (await runner.schedule(pulse, "* * * * * *", context={"beats": 1})).id
            )
            await begun.get()
            await again.delete()
            assert await runner.schedules() == []
            results = [await run.result() for run in await again.runs()]
            assert len(results) >= 2
            assert all(each == {"beats": 2} for each in results)

    with ServerProcess(tmp_path) as server:
        asyncio.run(main(f"http://127.0.0.1:{server.port}"))
