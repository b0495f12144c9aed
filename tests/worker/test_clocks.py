"""Three clocks: holding a slot, each wait, the run. After a timeout nothing keeps running."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from layby import DeferTimeout, RunFailed, Runner, task
from layby.testing import SlotWatch, virtual_test
from tests.helpers.process_bodies import doubles, never_ends, raises
from tests.helpers.workers import flow_of, look, rows, settled_down, until

# --- the clock of holding a slot ---------------------------------------------------------


@virtual_test
async def test_a_timeout_counts_only_time_with_the_slot():
    """Two waits of an hour each, two seconds of work: a timeout of three seconds is kept."""

    @task(timeout=3)
    async def works(context, handle):
        await asyncio.sleep(1)
        await handle.sleep(3600)
        await asyncio.sleep(1)
        answers = iter([False, True])
        await handle.defer_until(lambda: next(answers), poll_interval=3600)
        await asyncio.sleep(0.9)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works))


@virtual_test
async def test_a_timeout_goes_on_where_it_stopped():
    """1.5 s before the wait and 1.5 s after it are 3 s: the failure names task and timeout."""

    @task(timeout=2)
    async def works(context, handle):
        await asyncio.sleep(1.5)
        await handle.sleep(3600)
        await asyncio.sleep(1.5)

    async with Runner("memory:") as runner:
        begin = runner.now()
        with pytest.raises(RunFailed, match=r"TaskTimeout.*run/r:works.*timeout of 2 s"):
            await runner.execute(flow_of(works), run_id="r")
        assert runner.now() - begin == 3_602_000


@virtual_test
async def test_waiting_for_a_slot_does_not_count_either():
    """Neither before the first line of the body nor after a wait."""

    @task(timeout=2)
    async def works(context, handle):
        await handle.sleep(1)
        await asyncio.sleep(1)

    @task
    async def blocker(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        first = await runner.start(flow_of(works, name="a"))
        await settled_down()
        runs = [await runner.start(flow_of(blocker, name="b")) for _ in range(2)]
        runs.append(await runner.start(flow_of(works, name="a")))
        await asyncio.gather(*(run.result() for run in [first, *runs]))


@virtual_test
async def test_after_a_timeout_an_async_body_is_over():
    """It is cancelled, cleans up with its slot held, and only then is tried again."""
    log = []

    @task(timeout=1, retries=1)
    async def works(context, handle):
        log.append("begin")
        try:
            await asyncio.sleep(100)
            log.append("zombie")
        finally:
            assert handle.is_slot_held()
            assert handle.is_cancelled
            await asyncio.sleep(2)
            log.append("clean")

    async with Runner("memory:") as runner:
        with SlotWatch(runner) as slots:
            with pytest.raises(RunFailed, match="TaskTimeout"):
                await runner.execute(flow_of(works))
            await asyncio.sleep(1000)
            slots.assert_none_held()
    assert log == ["begin", "clean", "begin", "clean"]


@virtual_test
async def test_a_body_that_swallows_its_cancellation_is_cancelled_again():
    """Its failure does not wait for it; its handle raises; it is shown as stuck until it ends."""
    log = []

    @task(timeout=1)
    async def stubborn(context, handle):
        for turn in range(3):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                log.append(turn)
        with pytest.raises(asyncio.CancelledError):
            await handle.sleep(1)
        with pytest.raises(asyncio.CancelledError):
            await handle.checkpoint("k", lambda: log.append("zombie"))
        return {"late": True}

    async with Runner("memory:") as runner:
        begin = runner.now()
        run = await runner.start(flow_of(stubborn), run_id="r")
        with pytest.raises(RunFailed, match="TaskTimeout"):
            await run.result()
        assert runner.now() - begin < 10_000
        assert runner.worker.stuck == ("run/r:stubborn",)
        assert [event.kind for event in runner.worker.health.snapshot()] == ["stuck"]
        await asyncio.sleep(60)
        assert runner.worker.stuck == ()
        assert runner.worker.credit.held == 0
        assert (await look(run, "stubborn")).status == "Failed"
    assert log == [0, 1, 2]


def test_after_a_timeout_a_thread_is_reported_at_once_and_keeps_its_slot():
    """A thread cannot be ended: its handle raises on the next call, its slot is shown as stuck."""
    go_on, heard = threading.Event(), []

    @task(timeout=0.1)
    def stubborn(context, handle):
        go_on.wait(30)
        try:
            handle.sleep(0)
        except BaseException as error:
            heard.append(type(error))
            raise

    async def main():
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(stubborn), run_id="r")
            with pytest.raises(RunFailed, match="TaskTimeout"):
                await run.result(timeout=60)
            assert (await look(run, "stubborn")).status == "Failed"
            assert runner.worker.stuck == ("run/r:stubborn",)
            assert (runner.worker.credit.held, runner.worker.credit.free) == (1, 0)
            (event,) = runner.worker.health.snapshot()
            assert (event.kind, "run/r:stubborn" in event.reason) == ("stuck", True)
            go_on.set()
            await until(lambda: runner.worker.credit.held == 0)
            assert runner.worker.stuck == ()
            await until(lambda: runner.worker.credit.free == 1)

    asyncio.run(main())
    assert heard == [asyncio.CancelledError]


def test_a_thread_that_only_waits_is_not_called_stuck_when_its_task_is_cancelled(caplog):
    """It ends by itself at once: there is nothing to warn of."""

    @task
    def parked(context, handle):
        handle.wait_for("never")

    async def main():
        async with Runner("memory:") as runner:
            run = await runner.start(flow_of(parked), run_id="r")
            await until(lambda: runner.worker.credit.held == 0 and runner.worker.attempts)
            await run.cancel()
            await until(lambda: not runner.worker.attempts)
            assert runner.worker.health.snapshot() == []

    asyncio.run(main())
    assert [each.getMessage() for each in caplog.records if "still running" in each.msg] == []


def test_after_a_timeout_a_process_is_killed(tmp_path):
    """Nothing of it goes on, and its slot serves others at once."""
    path = tmp_path / "pid"

    async def main():
        async with Runner("memory:", slots=1) as runner:
            await runner.execute(flow_of(doubles, name="warm"), {"n": 1})  # the process is there
            run = await runner.start(flow_of(never_ends, name="a"), {"path": str(path)})
            with pytest.raises(RunFailed, match="TaskTimeout"):
                await run.result(timeout=30)
            pid = int(path.read_text())
            await until(lambda: not _is_alive(pid))
            result = await runner.execute(flow_of(doubles, name="b"), {"n": 4})
            assert result["doubled"] == 8
            assert result["pid"] != os.getpid()

    asyncio.run(main())


def test_an_error_in_a_process_is_told_and_retried():
    """The text of the exception comes through; the second failure ends it."""

    async def main():
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(raises))
            with pytest.raises(RunFailed, match="in the child"):
                await run.result(timeout=30)
            assert (await look(run, "raises")).failures == 2

    asyncio.run(main())


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is read
        return False


# --- the clock of the run ----------------------------------------------------------------


@virtual_test
async def test_the_deadline_of_a_run_ends_running_parked_and_pending_tasks():
    """At that very instant; finally blocks run, nothing is held afterwards."""
    ended = []

    @task
    async def running(context):
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("running")

    @task
    async def parked(context, handle):
        try:
            await handle.sleep(1000)
        finally:
            ended.append("parked")

    @task(dependencies=[running])
    async def later(context):
        ended.append("later")

    async with Runner("memory:", slots=2) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(running, parked, later), deadline=60)
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        await settled_down()
        assert runner.now() == begin + 60_000
        assert runner.worker.credit.held == 0
        assert runner.worker.attempts == {}
        states = {each.id: each.status for each in (await run.status()).tasks.values()}
        assert states == {"running": "Failed", "parked": "Failed", "later": "Failed"}
    assert sorted(ended) == ["parked", "running"]


@virtual_test
async def test_the_timeout_of_a_wait_is_its_own_clock():
    """It neither counts towards the task's timeout nor is cut by it."""

    @task(timeout=1)
    async def works(context, handle):
        with pytest.raises(DeferTimeout):
            await handle.wait_for("p", timeout=3600)
        with pytest.raises(DeferTimeout):
            await handle.defer_until(lambda: False, poll_interval=60, timeout=3600)

    async with Runner("memory:") as runner:
        begin = runner.now()
        await runner.execute(flow_of(works))
        assert runner.now() - begin == 7_200_000


@virtual_test
async def test_nothing_is_written_after_a_timeout(tmp_path):
    """No row is Failed and Active at once (Cloacina's zombies wrote that)."""
    path = tmp_path / "a.db"

    @task(timeout=1)
    async def works(context, handle):
        try:
            await asyncio.sleep(100)
        finally:
            with pytest.raises(asyncio.CancelledError):
                await handle.defer_until(lambda: False, poll_interval=1)
            with pytest.raises(asyncio.CancelledError):
                handle.progress(1.0)

    async with Runner(f"sqlite:{path}") as runner:
        with pytest.raises(RunFailed):
            await runner.execute(flow_of(works))
        await asyncio.sleep(100)
    (row,) = [row for row in rows(path) if row["name"] == "flow/works"]
    assert (row["state"], row["sub_status"], row["progress"]) == ("fulfilled", None, None)
