"""The ten facts of the Cloacina study, each as a test that we pass."""

import asyncio
import threading

import pytest

from layby import ConditionError, RunFailed, Runner, task
from layby.testing import SlotWatch, current_clock, virtual_test
from tests.helpers.workers import crashing, flow_of, look, rows, settled_down


@virtual_test
async def test_1_deferral_frees_slots_on_sqlite(tmp_path):
    """Fact 1: on SQLite one deferred task stopped their whole engine, and unrelated runs with it.

    50 deferred and 50 work tasks on 4 slots: all 50 park, the work is done meanwhile, 4 at a time.
    """
    is_open = asyncio.Event()

    @task
    async def waits(context, handle):
        await handle.defer_until(is_open.is_set, poll_interval=1)

    @task
    async def works(context):
        await asyncio.sleep(1)

    async with Runner(f"sqlite:{tmp_path / 'a.db'}", slots=4, durability="normal") as runner:
        with SlotWatch(runner) as slots:
            waiting = [await runner.start(flow_of(waits, name="w")) for _ in range(50)]
            begin = runner.now()
            working = [await runner.start(flow_of(works, name="b")) for _ in range(50)]
            await asyncio.gather(*(run.result() for run in working))
            assert runner.now() - begin <= 14_000
            states = [(await look(run, "waits")).sub_status for run in waiting]
            assert states == ["Deferred"] * 50
            is_open.set()
            await asyncio.gather(*(run.result() for run in waiting))
            slots.assert_never_more_than(4)
            assert slots.peak == 4


@virtual_test
async def test_2_a_thousand_deferred_tasks_hold_no_thread():
    """Fact 2: at 512 deferred Python tasks their engine deadlocked: each held an OS thread.

    1,000 parked, the thread count flat, new work served, then all resume.
    """
    is_open = asyncio.Event()

    @task
    async def waits(context, handle):
        await handle.defer_until(is_open.is_set, poll_interval=1)

    @task
    async def works(context):
        pass

    async with Runner("memory:", slots=4) as runner:
        threads = threading.active_count()
        runs = [await runner.start(flow_of(waits, name="w")) for _ in range(1000)]
        await asyncio.sleep(5)
        assert runner.worker.credit.parked == 1000
        assert (
            threading.active_count() <= threads + 2
        )  # who asks all conditions, who watches the loop
        await runner.execute(flow_of(works, name="b"))
        is_open.set()
        await asyncio.gather(*(run.result() for run in runs))


@virtual_test
async def test_3_async_tasks_and_the_seeds_sample_work():
    """Fact 3: `async def` tasks did not work there; the coroutine was never awaited."""

    @task(id="wait_for_approval")
    async def wait_for_approval(context, handle):
        await handle.defer_until(
            condition=lambda: check_approval_status(context["job_id"]),
            poll_interval_ms=10000,
        )
        context["approved"] = True

    answers = iter([False, False, True])

    def check_approval_status(_):
        return next(answers)

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(wait_for_approval), {"job_id": 1})
        assert result["approved"] is True


@virtual_test
async def test_4_deferred_time_does_not_count_against_the_timeout():
    """Fact 4: a defer longer than the task timeout (5 minutes by default) failed the task."""

    @task(timeout=300)
    async def waits(context, handle):
        begin = runner.now()
        await handle.defer_until(lambda: runner.now() - begin >= 7_200_000, poll_interval=30)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(waits))


@virtual_test
async def test_5_no_zombie_after_a_timeout(tmp_path):
    """Fact 5: after a timeout the body polled on, took a slot, and wrote Active on a Failed row."""
    path, log = tmp_path / "a.db", []

    @task(timeout=5, retries=2)
    async def waits(context, handle):
        log.append("begin")
        await asyncio.sleep(3)
        await handle.defer_until(lambda: log.append("poll"), poll_interval=1, timeout=10, key="k")
        log.append("zombie")

    @task(timeout=5, retries=2)
    async def works(context, handle):
        await asyncio.sleep(3)
        answers = iter([False, True])
        await handle.defer_until(lambda: next(answers), poll_interval=1)
        await asyncio.sleep(3)
        log.append("zombie")

    async with Runner(f"sqlite:{path}") as runner:
        with SlotWatch(runner) as slots:
            for each in (waits, works):
                with pytest.raises(RunFailed):
                    await runner.execute(flow_of(each, name=each.id))
            polls = log.count("poll")
            await asyncio.sleep(1000)
            slots.assert_none_held()
    assert log.count("poll") == polls
    assert "zombie" not in log
    assert {row["sub_status"] for row in rows(path)} == {None}


@virtual_test
async def test_6_check_first_then_sleep():
    """Fact 6: an already-true condition cost a full interval and a release/reclaim round."""
    clock = current_clock()

    @task
    async def waits(context, handle):
        begin = clock.now()
        await handle.defer_until(lambda: True, poll_interval_ms=500)
        context["ms"] = clock.now() - begin

    async with Runner("memory:") as runner:
        with SlotWatch(runner) as slots:
            assert (await runner.execute(flow_of(waits)))["ms"] == 0
            assert len(slots.history) == 3


@virtual_test
async def test_7_a_condition_that_raises_does_not_do_so_for_ever():
    """Fact 7: errors meant "not yet" for ever, no callable was checked, "yes" was False."""

    def broken():
        raise OSError("no route")

    @task
    async def waits(context, handle):
        with pytest.raises(ConditionError, match="no route"):
            await handle.defer_until(broken, poll_interval=1)
        with pytest.raises(TypeError, match="callable"):
            await handle.defer_until(True, poll_interval=1)
        for truth in (1, "yes", [0]):
            answers = iter([0, "", None, truth])
            await handle.defer_until(lambda answers=answers: next(answers), poll_interval=1)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        await asyncio.sleep(3)
        waiting_on = (await look(run, "waits")).waiting_on
        assert waiting_on is not None
        assert waiting_on.last_error == "OSError: no route"
        await run.result()


@virtual_test
async def test_8_a_crash_costs_no_minute_and_repeats_nothing_recorded(tmp_path):
    """Fact 8: after kill -9 recovery took 60 s and began at the first line, forgetting all."""
    address, log = f"sqlite:{tmp_path / 'a.db'}", []

    @task
    async def waits(context, handle):
        await handle.checkpoint("submitted", lambda: log.append("submit"))
        await handle.defer_until(lambda: len(log) > 1, poll_interval=1)

    flow = flow_of(waits)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(10)
    async with Runner(address) as runner:
        begin = runner.now()
        runner.register(flow)
        await settled_down()
        run = await runner.get("r")
        assert (await look(run, "waits")).sub_status == "Deferred"
        assert runner.now() - begin < 1_000
        log.append("done")
        await run.result()
    assert log == ["submit", "done"]


@virtual_test
async def test_9_a_failed_dependency_stops_its_dependents():
    """Fact 9: dependents of a failed task ran; rules with short task names hung the workflow."""
    log = []

    @task(id="a")
    async def fails(context):
        raise OSError("broke")

    @task(dependencies=["a"])
    async def after(context):
        log.append("after")

    @task(dependencies=["a"], rule="one_failed")
    async def repairs(context):
        log.append("repairs")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(fails, after, repairs))
        with pytest.raises(RunFailed, match="broke"):
            await run.result()
        states = {each.id: each.status for each in (await run.status()).tasks.values()}
        assert states == {"a": "Failed", "after": "Skipped", "repairs": "Completed"}
    assert log == ["repairs"]


@virtual_test
async def test_10_a_runner_without_the_code_leaves_the_work_alone(tmp_path):
    """Fact 10: a runner that did not know a workflow claimed its tasks and failed them.

    Twenty runs wait in the file; a Runner that knows another flow touches none of them.
    """
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def works(context):
        await asyncio.sleep(1)

    @task
    async def other(context):
        pass

    mine, others = flow_of(works, name="mine"), flow_of(other, name="others")
    async with Runner(address, slots=1, durability="normal") as runner:
        for n in range(20):
            await runner.start(mine, run_id=f"r{n}")
    async with Runner(address, durability="normal") as runner:
        await runner.execute(others)
        await asyncio.sleep(100)
        states = [(await look(await runner.get(f"r{n}"), "works")).status for n in range(20)]
        assert set(states) == {"Ready"}
    async with Runner(address, durability="normal") as runner:
        runner.register(mine)
        for n in range(20):
            run = await runner.get(f"r{n}")
            await run.result()
            assert (await look(run, "works")).failures == 0
