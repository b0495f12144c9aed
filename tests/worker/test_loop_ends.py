"""Bodies that try to end more than themselves, and an event loop that ends under its Runner."""

import asyncio
import sys
from pathlib import Path

import pytest

from layby import RunFailed, Runner, task
from layby.testing import virtual_test
from tests.helpers.workers import flow_of, look


@task
async def quits(context):
    sys.exit(3)


@task
def quits_in_a_thread(context):
    sys.exit(0)


@task
def interrupts_in_a_thread(context):
    raise KeyboardInterrupt


@pytest.mark.parametrize("code", [quits, quits_in_a_thread, interrupts_in_a_thread])
def test_who_quits_fails_and_ends_nobody_else(code):
    """Whatever a body raises is its own failure; its neighbours and the process go on."""

    @task
    async def goes_on(context):
        await gate.wait()

    async def main():
        async with Runner("memory:") as runner:
            other = await runner.start(flow_of(goes_on, name="other"))
            with pytest.raises(RunFailed, match=r"SystemExit|KeyboardInterrupt"):
                await runner.execute(flow_of(code, name="quits"), timeout=60)
            gate.set()
            await other.result(timeout=60)

    gate = asyncio.Event()
    asyncio.run(main())


def test_a_loop_that_ends_under_the_runner_fails_no_task(tmp_path: Path, caplog):
    """As if the process had died: what runs and what is parked goes on with the next one."""
    address, begun = f"sqlite:{tmp_path / 'a.db'}", []

    @task
    async def parks(context, handle):
        await handle.wait_for("x")

    @task
    async def runs(context, handle):
        begun.append(handle.try_number)
        if len(begun) == 1:
            await asyncio.sleep(3600)

    flow = flow_of(parks, runs)

    async def forgets_to_close():
        runner = Runner(address, socket=False)
        await runner.__aenter__()
        run = await runner.start(flow, run_id="r")
        while (await look(run, "parks")).sub_status != "Deferred" or not begun:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return runner

    async def goes_on():
        async with Runner(address) as runner:
            run = await runner.start(flow, run_id="r")
            await runner.resolve("x")
            await run.result(timeout=60)
            status = await run.status()
            assert {each.failures for each in status.tasks.values()} == {0}
            assert [status.tasks[name].crashes for name in ("parks", "runs")] == [0, 1]

    runner = asyncio.run(forgets_to_close())
    assert "Use `async with Runner(...)`" in caplog.text
    runner.engine.stop()
    asyncio.run(goes_on())
    assert begun == [1, 2]


@virtual_test
async def test_the_end_of_the_loop_is_told_once_and_by_nobody_who_asks(caplog):
    """Asking whether it ends changes nothing: it is told when it happens, and nothing begins."""
    bodies: list[str] = []

    @task
    async def works(context, handle):
        bodies.append(handle.task_execution_id)
        await asyncio.sleep(60)

    async with Runner("memory:", slots=1) as runner:
        await runner.start(flow_of(works), run_id="a")
        await asyncio.sleep(1)
        worker = runner.worker
        assert worker._loop_sentinel is not None
        worker._loop_sentinel.cancel()
        assert worker.is_over
        assert worker.is_over
        assert caplog.messages == []
        await asyncio.sleep(1)
        assert [each.split(":")[0] for each in caplog.messages] == [
            "the event loop ended while the Runner was open"
        ]
        await runner.start(flow_of(works), run_id="b")
        await asyncio.sleep(120)
        assert len(bodies) == 1
        worker.has_left = True  # its engine waits for nobody


@virtual_test
async def test_the_end_of_the_loop_is_not_told_where_nothing_was_to_be_done(caplog):
    """There is no task that would be taken over."""

    @task
    async def works(context):
        pass

    async with Runner("memory:", slots=1) as runner:
        await runner.execute(flow_of(works))
        await asyncio.sleep(1)
        worker = runner.worker
        assert worker._loop_sentinel is not None
        worker._loop_sentinel.cancel()
        await asyncio.sleep(1)
        assert worker.is_over
        assert caplog.messages == []
        worker.has_left = True  # its engine waits for nobody


@pytest.mark.parametrize("first", ["sleep", "settled", "condition"])
@virtual_test
async def test_a_call_that_returns_at_once_makes_a_strand_too(first):
    """Three bodies on one slot, each with a strand that works after such a call."""
    working, peak = 0, 0

    @task
    async def works(context, handle):
        async def strand():
            nonlocal working, peak
            if first == "sleep":
                await handle.sleep(0, key="z")
            elif first == "settled":
                await handle.wait_for("known", key="z")
            else:
                await handle.defer_until(lambda: True, key="z")
            assert handle.is_slot_held()
            working += 1
            peak = max(peak, working)
            await asyncio.sleep(0.5)
            working -= 1

        await asyncio.gather(strand(), handle.sleep(5, key="b"))

    async with Runner("memory:", slots=1) as runner:
        await runner.resolve("known")
        runs = [await runner.start(flow_of(works)) for _ in range(3)]
        await asyncio.gather(*(run.result() for run in runs))
    assert peak == 1
