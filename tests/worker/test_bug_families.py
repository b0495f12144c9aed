"""Bug families other systems had, from users-and-reliability.md; the source is in the docstring."""

import asyncio
import logging
import time

import pytest

from layby import DeferTimeout, RetryPolicy, RunCancelled, RunFailed, Runner, task
from layby.testing import SlotWatch, current_clock, virtual_test
from tests.helpers.workers import crashing, flow_of, look, rows, settled_down

# --- A1: slots, limits and starvation ----------------------------------------------------


@virtual_test
async def test_parking_happens_at_the_await():
    """restatedev/restate#2758: slots were held until an inactivity timeout of 60 s."""

    @task
    async def waits(context, handle):
        await handle.wait_for("p")

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(waits))
        begin = runner.now()
        await settled_down()
        assert runner.worker.credit.held == 0
        assert runner.now() == begin
        await runner.resolve("p")
        await run.result()


@virtual_test
async def test_a_parent_waiting_for_its_child_at_full_concurrency_does_not_deadlock():
    """triggerdotdev/trigger.dev PR#1272, PR#1933: nested, deeper than there are slots."""

    @task
    async def nested(context):
        depth = context["depth"]
        if depth:
            run = await runner.start(flow_of(nested), {"depth": depth - 1})
            context["depth"] = (await run.result())["depth"] + 1

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            assert (await runner.execute(flow_of(nested), {"depth": 10}))["depth"] == 10
            slots.assert_never_more_than(1)
            slots.assert_none_held()


@virtual_test
async def test_a_child_that_finished_first_leaks_no_slot():
    """triggerdotdev/trigger.dev PR#1296: the freed token leaked when the child was done before."""

    @task
    async def child(context):
        pass

    @task
    async def parent(context):
        for n in range(20):
            run = await runner.start(flow_of(child, name="c"), run_id=f"c{n}")
            await asyncio.sleep(n % 2)
            await run.result()

    async with Runner("memory:", slots=2) as runner:
        with SlotWatch(runner) as slots:
            await runner.execute(flow_of(parent, name="p"))
            await settled_down()
            slots.assert_none_held()
        assert runner.worker.credit.free == 2


@virtual_test
async def test_a_dead_owner_holds_no_slot(tmp_path):
    """dbos-transact-py#805, opsmill/infrahub#9856: a dead process kept its slot for ever."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def works(context, handle):
        await asyncio.sleep(1 if handle.try_number > 1 else 1000)

    async with crashing(address, slots=1) as runner:
        await runner.start(flow_of(works), run_id="dead")
        await asyncio.sleep(1)
    async with Runner(address, slots=1) as runner:
        await runner.execute(flow_of(works), run_id="new", timeout=1100)
        assert (await (await runner.get("dead")).result(timeout=10)) is not None


@virtual_test
async def test_a_freed_slot_goes_to_the_next_at_once():
    """PrefectHQ/prefect#23183: free slots were given out only when a retry sleep ended."""

    @task
    async def works(context):
        await asyncio.sleep(0.12)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        runs = [await runner.start(flow_of(works)) for _ in range(100)]
        await asyncio.gather(*(run.result() for run in runs))
        assert runner.now() - begin == 12_000


@virtual_test
async def test_future_work_waits_in_the_store_not_in_the_worker():
    """celery/celery#9849: ETA tasks were prefetched without bound into memory."""

    @task(retry=RetryPolicy(max_attempts=2, delay=1000, max_delay=1000))
    async def fails(context, handle):
        if handle.try_number == 1:
            raise OSError("once")

    async with Runner("memory:", slots=2) as runner:
        runs = [await runner.start(flow_of(fails)) for _ in range(50)]
        await asyncio.sleep(500)
        assert (len(runner.worker.attempts), runner.worker.credit.waiting) == (0, 0)
        await asyncio.gather(*(run.result() for run in runs))


@virtual_test
async def test_threads_that_wait_do_not_stop_async_work():
    """temporalio/sdk-python#1642: a small thread pool deadlocked the worker with slots free."""

    @task
    def waits(context, handle):
        handle.wait_for("p")

    @task
    async def works(context):
        await runner.resolve("p")

    async with Runner("memory:", slots=2, max_threads=2) as runner:
        runs = [await runner.start(flow_of(waits, name="w")) for _ in range(2)]
        await asyncio.sleep(1)
        await runner.execute(flow_of(works, name="b"), timeout=10)
        await asyncio.gather(*(run.result() for run in runs))


# --- A4: resume order, herds, storms -----------------------------------------------------


@virtual_test
async def test_a_resumed_task_does_not_wait_behind_a_backlog():
    """apache/airflow#57210: a task back from deferral waited behind all new work."""
    log = []

    @task
    async def waits(context, handle):
        await handle.wait_for("p")
        log.append("resumed")

    @task
    async def works(context):
        await asyncio.sleep(1)
        log.append("new")

    async with Runner("memory:", slots=1) as runner:
        first = await runner.start(flow_of(waits, name="w"))
        await settled_down()
        runs = [await runner.start(flow_of(works, name="n")) for _ in range(3)]
        await asyncio.sleep(0.5)
        await runner.resolve("p")
        await asyncio.sleep(0.1)
        runs += [await runner.start(flow_of(works, name="n")) for _ in range(100)]
        await asyncio.gather(first.result(), *(run.result() for run in runs))
    assert log.index("resumed") == 3, "after what was ready before it, and nothing else"


@virtual_test
async def test_a_herd_of_woken_tasks_passes_the_slots_in_order():
    """temporalio/sdk-java#1580: thousands of timers at the same time."""

    @task
    async def waits(context, handle):
        await handle.wait_for("p")
        log.append(context["n"])

    log = []
    async with Runner("memory:", slots=4) as runner:
        with SlotWatch(runner) as slots:
            runs = [await runner.start(flow_of(waits), {"n": n}) for n in range(500)]
            await settled_down()
            await runner.resolve("p")
            await asyncio.gather(*(run.result() for run in runs))
            slots.assert_never_more_than(4)
    assert sorted(log) == list(range(500))


@virtual_test
async def test_jitter_spreads_polls_that_began_together():
    """dagster-io/dagster#20484: all sensors ticked together."""
    asked = set()

    @task
    async def waits(context, handle):
        def condition():
            asked.add(current_clock().now())
            return False

        await handle.defer_until(condition, poll_interval=10, jitter=0.5, timeout=12)

    async with Runner("memory:") as runner:
        runs = [await runner.start(flow_of(waits)) for _ in range(50)]
        for run in runs:
            with pytest.raises(RunFailed, match="DeferTimeout"):
                await run.result()
    assert len(asked) > 25


def test_a_condition_that_blocks_is_named(caplog):
    """apache/airflow#50185: twenty blocking triggers locked the runner, nobody said which."""

    @task
    async def waits(context, handle):
        answers = iter([False, False])

        def blocks():
            done = next(answers, None) is None
            begin = time.perf_counter()
            while "blocks" not in caplog.text and time.perf_counter() - begin < 10:
                pass
            return done

        await handle.defer_until(blocks, poll_interval=0.01)

    async def main():
        async with Runner("memory:") as runner:
            await runner.execute(flow_of(waits))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "blocks" in caplog.text


# --- A5: deadlines, timeouts, cancellation -----------------------------------------------


@virtual_test
async def test_the_clock_of_the_slot_neither_restarts_nor_runs_while_parked():
    """apache/airflow#19382, #69678: execution_timeout restarted at each deferral."""

    @task(timeout=10)
    async def works(context, handle):
        for _ in range(10):
            await asyncio.sleep(1.5)
            await handle.sleep(100)
            turns.append(1)

    turns = []
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match="TaskTimeout"):
            await runner.execute(flow_of(works))
    assert len(turns) == 6


@virtual_test
async def test_a_parked_task_is_not_run_twice_by_any_timeout():
    """hatchet-dev/hatchet#4128: a parked task hit the run timeout, and a duplicate ran."""

    @task(timeout=1, retries=5)
    async def waits(context, handle):
        tries.append(handle.try_number)
        await handle.sleep(100_000)

    tries = []
    async with Runner("memory:") as runner:
        await runner.execute(flow_of(waits))
    assert tries == [1]


@virtual_test
async def test_a_failure_while_waiting_is_retried_like_any_other():
    """apache/airflow#69819, #56704: failing through the trigger skipped retries, or re-entered."""

    @task(retries=1)
    async def waits(context, handle):
        log.append("begin")
        await handle.defer_until(lambda: handle.try_number > 1, poll_interval=1, timeout=5)
        log.append("end")

    log = []
    async with Runner("memory:") as runner:
        await runner.execute(flow_of(waits))
    assert log == ["begin", "begin", "end"]


@virtual_test
async def test_cancelling_a_parked_task_lets_it_clean_up_and_a_restart_does_not(tmp_path):
    """apache/airflow#36090, #41231: cleanup did not run on cancel, or killed jobs on hand-over."""
    address, killed = f"sqlite:{tmp_path / 'a.db'}", []

    @task
    async def remote_job(context, handle):
        try:
            await handle.wait_for("done")
        except asyncio.CancelledError:
            try:
                status = await (await runner.get("r")).status()
            except Exception:  # noqa: BLE001 - the Runner is being closed: it is no cancel
                raise asyncio.CancelledError from None
            if status.state == "Cancelled":
                killed.append("job")
            raise

    flow = flow_of(remote_job)
    async with Runner(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
    assert killed == []
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(5)
        run = await runner.get("r")
        await run.cancel(by="ada")
        with pytest.raises(RunCancelled):
            await run.result()
        await settled_down()
        assert killed == ["job"]


@virtual_test
async def test_the_loser_of_a_race_does_not_keep_the_run_going():
    """inngest/inngest-js#1617: the losing branch stayed waiting, the run stayed Running for 4 h."""

    @task
    async def races(context, handle):
        done, lost = await asyncio.wait(
            [
                asyncio.create_task(handle.sleep(5, key="fast")),
                asyncio.create_task(handle.sleep(14_400, key="slow")),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert len(done) == 1
        for each in lost:
            each.cancel()
        await asyncio.gather(*lost, return_exceptions=True)

    async with Runner("memory:") as runner:
        begin = runner.now()
        run = await runner.start(flow_of(races))
        await run.result()
        assert runner.now() - begin == 5_000
        assert (await run.status()).state == "Completed"


@virtual_test
async def test_a_parked_task_can_always_be_cancelled():
    """hatchet-dev/hatchet#2573: stuck RUNNING, it could not be cancelled."""

    @task
    async def waits(context, handle):
        await handle.wait_for("never")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        await asyncio.sleep(100_000)
        begin = runner.now()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert runner.now() == begin


@virtual_test
async def test_a_halted_task_is_not_woken_by_what_it_waited_for():
    """apache/airflow#54927: triggers of a paused DAG fired and scheduled tasks."""

    @task
    async def waits(context, handle):
        log.append(handle.try_number)
        context["got"] = await handle.wait_for("p")

    log = []
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits), run_id="r")
        await asyncio.sleep(1)
        await run.halt()
        await runner.resolve("p", 5)
        await asyncio.sleep(1000)
        assert log == [1]
        await run.continue_()
        assert (await run.result())["got"] == 5


# --- A6: seeing why something waits ------------------------------------------------------


@virtual_test
async def test_every_wait_says_what_it_waits_for(tmp_path):
    """temporalio/features#65, ui#1002, Archon#3432: waiting and stuck looked the same."""
    path = tmp_path / "a.db"

    @task
    async def on_condition(context, handle):
        await handle.defer_until(lambda: False, poll_interval=5)

    @task
    async def on_clock(context, handle):
        await handle.sleep(1000)

    @task
    async def on_promise(context, handle):
        await handle.wait_for("paid", timeout=500)

    @task
    async def on_token(context, handle):
        await (await handle.promise("approval"))

    @task(dependencies=[on_clock])
    async def on_dependency(context):
        pass

    async with Runner(f"sqlite:{path}", slots=8) as runner:
        begin = runner.now()
        tasks = (on_condition, on_clock, on_promise, on_token, on_dependency)
        run = await runner.start(flow_of(*tasks))
        await asyncio.sleep(7)
        seen = {each.id: each.waiting_on for each in (await run.status()).tasks.values()}
        assert {key: each and each.kind for key, each in seen.items()} == {
            "on_condition": "condition",
            "on_clock": "sleep",
            "on_promise": "promise",
            "on_token": "promise",
            "on_dependency": "dependency",
        }
        assert all(each and each.sentence and each.since >= begin for each in seen.values())
        assert seen["on_clock"] is not None
        assert seen["on_clock"].deadline == begin + 1_000_000
        assert seen["on_promise"] is not None
        assert seen["on_promise"].deadline == begin + 500_000
        found = rows(
            path,
            "SELECT id FROM task_executions"
            " WHERE json_extract(waiting_on, '$.kind') = 'promise' ORDER BY id",
        )
        assert [row["id"].partition(":")[2] for row in found] == ["on_promise", "on_token"]
        await run.cancel()


@virtual_test
async def test_parked_time_is_shown_as_parked():
    """apache/airflow#43822, #35288, #55028: deferred time was lost, or drawn as running."""

    @task
    async def works(context, handle):
        await asyncio.sleep(1)
        await handle.sleep(100)
        await asyncio.sleep(2)
        await handle.sleep(200)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        await run.result()
        (only,) = (await look(run, "works")).tries
        spent: dict[str, int] = {}
        for span in only.spans:
            spent[span.kind] = spent.get(span.kind, 0) + (span.end or 0) - span.start
        assert spent == {"queued": 0, "running": 3_000, "parked": 300_000}


# --- A8: testing time --------------------------------------------------------------------


@virtual_test
async def test_days_of_waiting_take_no_time():
    """dbos-transact-ts#1304, apache/airflow#28865: time could not be tested, dag.test() hung."""

    @task
    async def waits(context, handle):
        await handle.sleep(2 * 86_400)
        begin = runner.now()
        await handle.defer_until(lambda: runner.now() - begin > 86_400_000, poll_interval=3600)

    async with Runner("memory:") as runner:
        began_at = runner.now()
        await runner.execute(flow_of(waits))
        assert runner.now() - began_at > 3 * 86_400_000  # the test has two minutes for it


# --- A10: ergonomics ---------------------------------------------------------------------


@virtual_test
async def test_state_is_not_passed_by_hand():
    """apache/airflow#33663: to defer, a method was split in two and its state passed along."""

    @task
    async def works(context, handle):
        with open("/dev/null") as file:  # noqa: ASYNC230, PTH123 - something that has no JSON form
            for step in range(3):
                await handle.sleep(60)
                assert not file.closed
                context["step"] = step

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(works)))["step"] == 2


@virtual_test
async def test_all_of_several_events_and_any_of_them():
    """inngest/inngest#1315, #1046: wait for any or all of several events."""

    @task
    async def waits(context, handle):
        names = ("a", "b", "c")
        context["all"] = await asyncio.gather(*(handle.wait_for(n, key=n) for n in names))
        any_of = [asyncio.create_task(handle.wait_for(n, key=n)) for n in ("d", "e")]
        done, others = await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        context["any"] = [each.result() for each in done]
        assert handle.is_slot_held()

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        for number, name in enumerate("cba"):
            await asyncio.sleep(1)
            await runner.resolve(name, number)
        await asyncio.sleep(1)
        await runner.resolve("e", "e")
        assert (await run.result()).to_dict() == {"all": [2, 1, 0], "any": ["e"]}


@virtual_test
async def test_a_wait_inside_except_and_finally():
    """PrefectHQ/prefect#16915: suspending printed a stack trace; a wait is ordinary code."""

    @task
    async def works(context, handle):
        try:
            with pytest.raises(DeferTimeout):
                await handle.wait_for("p", timeout=5)
            raise OSError("broke")  # noqa: TRY301 - as users write it
        except OSError:
            await handle.sleep(10)
            context["repaired"] = True
        finally:
            await handle.sleep(10)

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(works)))["repaired"] is True
