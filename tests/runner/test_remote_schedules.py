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
            with pytest.raises(UsageError, match=r"differs in cron .*: use replace to"):
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


def test_a_schedule_is_changed_from_elsewhere(tmp_path: Path) -> None:
    """Replaced, paused, started by hand and unpaused over HTTP; a queued run waits there, too."""

    async def main(url: str) -> None:
        @task
        async def wait(context, handle):
            await handle.wait_for(f"go-{context['to']}")

        flow = Workflow("waits", tasks=[wait])
        async with asyncio.timeout(PATIENCE_S), Runner(url) as runner:
            schedule = await runner.schedule(
                flow, "* * * * * *", context={"to": "ada"}, overlap="queue_one", catch_up=True
            )
            while (await runner.schedules())[0].skipped == 0:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.05)
            await schedule.pause()
            assert schedule.next_run_at is None
            queued, first = await schedule.runs()
            told = (await queued.status()).tasks["wait"].waiting_on
            assert told is not None
            assert told.sentence == (
                f"waits for the previous run of schedule 'waits' ('{first.id}')"
            )
            replaced = await runner.schedule(
                flow, "0 0 1 1 *", context={"to": "bob"}, overlap="skip", replace=True
            )
            assert replaced.paused_at == schedule.paused_at
            assert (replaced.overlap, replaced.next_run_at) == ("skip", None)
            by_hand = await replaced.start_now()
            assert by_hand.is_new
            await runner.resolve("go-bob")
            await by_hand.result()
            await runner.resolve("go-ada")
            await first.result()
            await queued.result()
            await replaced.unpause()
            assert replaced.paused_at is None
            assert replaced.next_run_at is not None

    with ServerProcess(tmp_path) as server:
        asyncio.run(main(f"http://127.0.0.1:{server.port}"))
