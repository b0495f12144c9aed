"""What the history of a task says about tries that were lost, handed back or halted."""

import asyncio
import threading
from pathlib import Path

import pytest

from layby import RunFailed, Runner, task
from layby.core.commands import GetTask
from layby.core.replies import TaskData
from layby.testing import virtual_test
from layby.workflow.history import MAX_TRIES, History, Try, read_history, started, without_gap
from tests.helpers.callers import call
from tests.helpers.workers import crashing, flow_of, look, until


def outcomes(seen) -> list[tuple[int, str, str | None]]:
    return [(each.number, each.why, each.outcome) for each in seen.tries]


# --- tries that left no trace ----------------------------------------------------------------


def test_a_try_that_left_no_trace_was_lost():
    history = started(History(), 3, "recovered", 10)
    assert outcomes(history) == [
        (1, "first", "Lost"),
        (2, "recovered", "Lost"),
        (3, "recovered", None),
    ]


def test_a_long_gap_is_counted_not_listed():
    history = started(History((Try(1, "first", outcome="Failed"),)), 1000, "recovered", 10)
    assert len(history.tries) == MAX_TRIES
    assert history.tries[-1].number == 1000
    assert history.folded + len(history.tries) == 1000


def test_without_a_gap_nothing_changes():
    history = started(History(), 1, "first", 10)
    assert without_gap(history, 2) == history
    assert without_gap(History(), 1) == History()


@virtual_test
async def test_a_try_that_died_while_it_ran_is_listed_as_lost(tmp_path: Path):
    """Nothing of it was written: no wait, no progress. It counts as a crash."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def works(context, handle):
        if handle.try_number < 3:
            await asyncio.sleep(3600)

    flow = flow_of(works)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
        assert outcomes(await look(await runner.get("r"), "works")) == [(1, "first", None)]
    async with Runner(address) as runner:  # one that has no code for it
        seen = await look(await runner.get("r"), "works")
        assert (seen.status, seen.crashes, outcomes(seen)) == ("Ready", 1, [(1, "first", "Lost")])
    async with crashing(address) as runner:
        runner.register(flow)
        await asyncio.sleep(1)
        assert outcomes(await look(await runner.get("r"), "works"))[0] == (1, "first", "Lost")
    async with Runner(address) as runner:
        runner.register(flow)
        run = await runner.get("r")
        await run.result()
        seen = await look(run, "works")
        assert (seen.crashes, seen.try_number) == (2, 3)
        assert outcomes(seen) == [
            (1, "first", "Lost"),
            (2, "recovered", "Lost"),
            (3, "recovered", "Completed"),
        ]


@virtual_test
async def test_a_task_that_is_given_up_lists_all_its_lost_tries(tmp_path: Path):
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def poison(context):
        await asyncio.sleep(3600)

    flow = flow_of(poison)
    for _ in range(2):
        async with crashing(address, max_crashes=2) as runner:
            await runner.start(flow, run_id="r")
            await asyncio.sleep(1)
    async with Runner(address, max_crashes=2) as runner:
        runner.register(flow)
        run = await runner.get("r")
        with pytest.raises(RunFailed, match="WorkerLost"):
            await run.result()
        seen = await look(run, "poison")
        assert [each.outcome for each in seen.tries] == ["Lost", "Lost"]


# --- calls -----------------------------------------------------------------------------------


@virtual_test
async def test_a_call_that_is_handed_back_says_so(tmp_path: Path):
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(rpc="work")
    async def works(context):
        await asyncio.sleep(3600)

    async with Runner(address) as runner:
        runner.register(works)
        await call(runner, "c", "work")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        found = await runner.send(GetTask(id="c"))
        assert isinstance(found.data, TaskData)
        assert found.data.task.state == "pending"
        tries = read_history(found.data.task.history).tries
        assert [each.outcome for each in tries] == ["Released"]


# --- bodies that go on -----------------------------------------------------------------------


def test_a_body_that_goes_on_is_seen():
    """Cancelled, and its thread does not know: the status of the run says so until it ends."""
    go_on = threading.Event()

    @task
    def computes(context):
        go_on.wait(30)

    async def main() -> None:
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(computes), run_id="r")
            await until(lambda: runner.worker.running)
            assert not (await look(run, "computes")).stuck
            await run.cancel()
            await until(lambda: runner.worker.stuck)
            seen = await look(run, "computes")
            assert (seen.status, seen.stuck) == ("Cancelled", True)
            go_on.set()
            while (await look(run, "computes")).stuck:  # noqa: ASYNC110 - the store hears later
                await asyncio.sleep(0.001)

    asyncio.run(main())
