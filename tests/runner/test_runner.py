"""The verbs of a Runner, under virtual time."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from layby import (
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runner,
    UsageError,
    Workflow,
    task,
)
from layby.core.invariants import check
from layby.errors import EngineStopped, StoreOwned
from layby.testing import current_clock, virtual_test
from tests.helpers.flows import flow_of, sound


@virtual_test
async def test_a_started_run_gives_its_final_context():
    """`start` returns at once; `result` is the context as the last task left it."""

    @task
    async def double(context):
        context["twice"] = context["n"] * 2

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(double), {"n": 21}, run_id="r")
        assert run.id == "r"
        assert await run.result() == {"n": 21, "twice": 42}
        assert (await run.status()).state == "Completed"


@virtual_test
async def test_the_same_id_is_the_same_run():
    """Starting twice, one after the other or both at once, runs the task once."""
    calls = []

    @task
    async def once(context):
        calls.append(context["n"])

    async with Runner("memory:") as runner:
        flow = flow_of(once)
        runs = await asyncio.gather(*(runner.start(flow, {"n": n}, run_id="r") for n in range(5)))
        results = [await run.result() for run in runs]
        again = await runner.execute(flow, {"n": 9}, run_id="r")
    assert calls == [0]
    assert [*results, again] == [{"n": 0}] * 6


@virtual_test
async def test_a_run_is_the_same_after_a_restart(tmp_path: Path):
    """A finished run keeps its result in the file; starting it again starts nothing."""
    calls = []

    @task
    async def once(context):
        calls.append(1)
        context["done"] = True

    flow, address = flow_of(once), f"sqlite:{tmp_path / 'layby.db'}"
    for _ in range(2):
        async with Runner(address) as runner:
            assert await runner.execute(flow, run_id="r") == {"done": True}
    assert calls == [1]


@virtual_test
async def test_start_registers_code_for_a_run_of_an_earlier_process(tmp_path: Path):
    """What was parked when the first Runner closed goes on when the second is given the flow."""

    @task
    async def patient(context, handle):
        context["answer"] = await handle.wait_for("question")

    flow, address = flow_of(patient), f"sqlite:{tmp_path / 'layby.db'}"
    async with Runner(address) as runner:
        await runner.start(flow, run_id="r")
        await current_clock().advance(5)
    async with Runner(address) as runner:
        await runner.resolve("question", 42)
        await current_clock().advance(5)
        run = await runner.get("r")
        assert (await run.status()).tasks["patient"].status == "Ready"
        assert await (await runner.start(flow, run_id="r")).result() == {"answer": 42}
    assert (await _status_of(address, "r")).tasks["patient"].crashes == 0


async def _status_of(address: str, run_id: str):
    async with Runner(address) as runner:
        return await (await runner.get(run_id)).status()


@virtual_test
async def test_register_alone_is_enough_to_go_on(tmp_path: Path):
    """`register` gives code without starting anything."""

    @task
    async def work(context):
        context["done"] = True

    flow, address = flow_of(work), f"sqlite:{tmp_path / 'layby.db'}"
    async with Runner(address) as runner:
        runner._program.names = ()
        runner.worker.code_changed()
        await runner.worker.start_run(_planned(flow, "r"))
    async with Runner(address) as runner:
        runner.register(flow)
        assert await (await runner.get("r")).result() == {"done": True}


def _planned(flow: Workflow, run_id: str):
    from layby.core.model import NEVER
    from layby.workflow import plan

    return plan.plan(flow, run_id, None, "default", NEVER)


@virtual_test
async def test_result_inside_a_task_parks_it():
    """With one slot a parent can wait for its child: waiting holds no slot."""

    @task
    async def child(context):
        context["from_child"] = 7

    inner = flow_of(child, name="inner")
    async with Runner("memory:", slots=1) as runner:

        @task
        async def parent(context):
            run = await runner.start(inner, run_id="the-child")
            context.update(await run.result())

        assert await runner.execute(flow_of(parent, name="outer")) == {"from_child": 7}


@virtual_test
async def test_results_of_several_children_at_once():
    """Waits for different runs may overlap; the slot comes back when the last one ends."""

    @task
    async def child(context, handle):
        await handle.sleep(context["n"])
        context["square"] = context["n"] ** 2

    inner = flow_of(child, name="inner")
    async with Runner("memory:", slots=1) as runner:

        @task
        async def parent(context):
            runs = [await runner.start(inner, {"n": n}) for n in range(1, 5)]
            results = await asyncio.gather(*(run.result() for run in runs))
            context["squares"] = [each["square"] for each in results]

        assert await runner.execute(flow_of(parent, name="outer")) == {"squares": [1, 4, 9, 16]}


@virtual_test
async def test_two_runners_in_one_loop_do_not_mix_their_tasks(tmp_path: Path):
    """A task of one Runner may wait for a run of another one."""

    @task
    async def work(context):
        context["there"] = True

    there = flow_of(work, name="there")
    async with Runner("memory:") as one, Runner(f"sqlite:{tmp_path / 'two.db'}") as two:

        @task
        async def ask(context):
            context.update(await two.execute(there))

        assert await one.execute(flow_of(ask, name="here")) == {"there": True}


@virtual_test
async def test_a_timeout_of_result_leaves_the_run_alone():
    """The caller stops waiting and is told so; the run goes on."""

    @task
    async def slow(context, handle):
        await handle.sleep(100)
        context["done"] = True

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(slow), run_id="r")
        with pytest.raises(TimeoutError, match="run 'r' has no result after 5 s"):
            await run.result(timeout=5)
        assert await run.result(timeout=timedelta(hours=1)) == {"done": True}


@virtual_test
async def test_a_deadline_ends_the_run():
    """At its deadline a run fails, its parked task is cancelled and its `finally` runs."""
    left = []

    @task
    async def endless(context, handle):
        try:
            await handle.wait_for("never")
        finally:
            left.append(current_clock().now())

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(endless), deadline=timedelta(seconds=10), run_id="r")
        begun = current_clock().now()
        with pytest.raises(RunFailed, match="deadline passed"):
            await run.result()
        await current_clock().advance(1)
        status = await run.status()
        assert (status.state, status.tasks["endless"].status) == ("Failed", "Failed")
        await sound(runner)
    assert left == [begun + 10_000]


@virtual_test
async def test_a_failed_run_names_its_tasks():
    """`RunFailed.failed` maps the ids of failed tasks to what went wrong; skipped ones are not."""

    @task
    async def bad(context):
        raise ValueError("no such order")

    @task(dependencies=[bad])
    async def after(context): ...

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(bad, after), run_id="r")
        with pytest.raises(
            RunFailed, match="run 'r' failed: task 'bad' failed: ValueError"
        ) as told:
            await run.result()
        status = await run.status()
    assert told.value.failed == {"bad": "ValueError: no such order"}
    assert status.state == "Failed"
    assert status.tasks["after"].status == "Skipped"
    assert "'bad' is Failed" in (status.tasks["after"].reason or "")


@virtual_test
async def test_cancelling_a_run_reaches_all_its_tasks():
    """Running, parked and pending tasks end at once, `finally` runs, who and why are kept."""
    left = []

    @task
    async def parked(context, handle):
        try:
            await handle.wait_for("never")
        finally:
            left.append("parked")

    @task
    async def running(context):
        try:
            await asyncio.sleep(1_000)
        finally:
            left.append("running")

    @task(dependencies=[parked])
    async def pending(context):
        left.append("must not run")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(parked, running, pending), run_id="r")
        await current_clock().advance(1)
        at = current_clock().now()
        await run.cancel(by="ada", reason="no longer wanted")
        with pytest.raises(RunCancelled, match="'r' was cancelled by ada: no longer wanted"):
            await run.result()
        await current_clock().settled()
        assert sorted(left) == ["parked", "running"]
        assert current_clock().now() == at
        status = await run.status()
        assert status.state == "Cancelled"
        assert {each.status for each in status.tasks.values()} == {"Cancelled"}
        assert runner.worker.credit.held == 0
        await sound(runner)


@virtual_test
async def test_cancelling_one_task_leaves_the_others():
    """A cancelled task counts as failed for those after it; the rest of the run goes on."""

    @task
    async def doomed(context, handle):
        await handle.wait_for("never")

    @task(dependencies=[doomed])
    async def after(context): ...

    @task(dependencies=[doomed], rule="all_done")
    async def anyway(context):
        context["anyway"] = True

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(doomed, after, anyway), run_id="r")
        await current_clock().advance(1)
        await runner.cancel("r", "doomed", by="bob", reason="tired")
        with pytest.raises(RunFailed, match="doomed"):
            await run.result()
        tasks = (await run.status()).tasks
    assert [each.status for each in tasks.values()] == ["Cancelled", "Skipped", "Completed"]
    assert "bob" in (tasks["doomed"].error or "")


@virtual_test
async def test_cancelling_a_task_before_its_turn():
    """One that still waits for its dependency may be cancelled; those after it go on at once."""
    order, seen = [], []

    @task
    async def first(context, handle):
        await handle.sleep(10)
        context["first"] = True
        order.append("first")

    @task(dependencies=[first])
    async def middle(context):
        order.append("middle")

    @task(dependencies=[middle], rule="all_done")
    async def last(context):
        order.append("last")
        seen.append(context.to_dict())

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(first, middle, last), {"x": 1}, run_id="r")
        await runner.cancel("r", "middle")
        with pytest.raises(RunFailed, match="middle"):
            await run.result()
        assert (await run.status()).tasks["last"].status == "Completed"
        await current_clock().settled()
        await sound(runner)
    assert order == ["last", "first"]
    assert seen == [{"x": 1}]


@virtual_test
async def test_tasks_before_one_that_was_cancelled_have_their_turn():
    """Those after it were loaded when these had not begun; they begin all the same."""

    @task
    async def first(context, handle):
        await handle.sleep(10)
        context["first"] = True

    @task(dependencies=[first])
    async def second(context):
        context["second"] = context["first"]

    @task(dependencies=[second])
    async def third(context): ...

    @task(dependencies=[third], rule="all_done")
    async def last(context): ...

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(first, second, third, last), run_id="r")
        await runner.cancel("r", "third")
        await current_clock().advance(20)
        tasks = (await run.status()).tasks
        assert (await run.context())["second"] is True
    states = [each.status for each in tasks.values()]
    assert states == ["Completed", "Completed", "Cancelled", "Completed"]


@virtual_test
async def test_halt_and_continue():
    """A halted run does nothing, whatever settles; continued it goes on and is not repeated."""
    calls = []

    @task
    async def waits(context, handle):
        calls.append(handle.try_number)
        await handle.checkpoint("paid", calls.append, "paid")
        await handle.wait_for("go")

    @task(dependencies=[waits])
    async def after(context):
        calls.append("after")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits, after), run_id="r")
        await current_clock().advance(1)
        await run.halt()
        await runner.resolve("go")
        await current_clock().advance(1_000)
        status = await run.status()
        assert status.state == "Halted"
        assert [each.status for each in status.tasks.values()] == ["Halted", "Halted"]
        assert runner.worker.credit.held == 0
        await run.continue_()
        await run.result()
        await sound(runner)
    assert calls == [1, "paid", 2, "after"]


@virtual_test
async def test_halting_one_task_lets_the_others_go_on():
    """And halting or continuing what has ended or was never halted says so."""

    @task
    async def one(context, handle):
        await handle.sleep(1)

    @task
    async def two(context): ...

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(one, two), run_id="r")
        await runner.halt("r", "one", by="ann", reason="the bank is closed")
        told = (await (await runner.get("r")).status()).tasks["one"].waiting_on
        assert told is not None
        assert told.sentence == "is halted by ann (the bank is closed) until somebody continues it"
        await current_clock().advance(10)
        tasks = (await run.status()).tasks
        assert (tasks["one"].status, tasks["two"].status) == ("Halted", "Completed")
        with pytest.raises(UsageError, match="task 'two' of run 'r'"):
            await runner.halt("r", "two")
        await runner.continue_("r", "one")
        with pytest.raises(UsageError, match="not halted"):
            await runner.continue_("r", "one")
        await run.result()


@virtual_test
async def test_resolve_and_reject_reach_a_waiting_task():
    """A value is returned by the wait and a rejection raised there; before or after the wait."""

    @task
    async def ask(context, handle):
        try:
            context["got"] = await handle.wait_for(context["id"])
        except Exception as error:  # noqa: BLE001 - what came is the point
            context["got"] = str(error)

    flow = flow_of(ask)
    async with Runner("memory:") as runner:
        await runner.resolve("early", [1, 2])
        assert (await runner.execute(flow, {"id": "early"}))["got"] == [1, 2]
        runs = [await runner.start(flow, {"id": each}) for each in ("late", "bad", "worse")]
        await current_clock().advance(1)
        await runner.resolve("late", {"a": None})
        await runner.resolve("late", "the first answer stands")
        await runner.reject("bad", "too expensive")
        await runner.reject("worse", KeyError("k"))
        late, bad, worse = [(await run.result())["got"] for run in runs]
    assert late == {"a": None}
    assert "too expensive" in bad
    assert "KeyError" in worse


@virtual_test
async def test_listing_runs():
    """By state and by workflow, in the order of their ids, at most `limit`."""

    @task
    async def work(context, handle):
        if context.get("fail"):
            raise ValueError
        if context.get("wait"):
            await handle.wait_for("never")

    a, b = flow_of(work, name="a"), flow_of(work, name="b")
    async with Runner("memory:") as runner:
        for each, context in (
            ("1", {}),
            ("2", {"fail": 1}),
            ("3", {"wait": 1}),
            ("4", {"wait": 1}),
        ):
            await runner.start(a, context, run_id=each)
        await runner.start(b, {"wait": 1}, run_id="5", deadline=3)
        await runner.cancel("4")
        await current_clock().advance(5)

        async def ids(**options):
            return [run.id for run in await runner.list(**options)]

        assert await ids() == ["1", "2", "3", "4", "5"]
        assert await ids(limit=2) == ["1", "2"]
        assert await ids(state="Completed") == ["1"]
        assert await ids(state="Failed") == ["2", "5"]
        assert await ids(state="Running") == ["3"]
        assert await ids(state="Cancelled") == ["4"]
        assert await ids(flow="b") == ["5"]
        with pytest.raises(UsageError, match="Running, Completed, Failed, Cancelled"):
            await runner.list(state="Halted")  # pyright: ignore[reportArgumentType]


@virtual_test
async def test_listing_goes_over_pages():
    """More runs than one page of the store."""

    @task
    async def work(context): ...

    flow = flow_of(work)
    async with Runner("memory:", slots=64) as runner:
        names = [f"{number:05}" for number in range(1_205)]
        await asyncio.gather(*(runner.start(flow, run_id=each) for each in names))
        assert [run.id for run in await runner.list(limit=1_201)] == names[:1_201]
        assert len(await runner.list(limit=5_000)) == 1_205


@virtual_test
async def test_closing_ends_waits_for_results(tmp_path: Path):
    """Whoever waits for a result when the Runner closes is told so, and what to do."""

    @task
    async def endless(context, handle):
        await handle.wait_for("never")

    async with Runner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
        run = await runner.start(flow_of(endless))
        waiting = asyncio.ensure_future(run.result())
        await current_clock().advance(1)
    with pytest.raises(EngineStopped, match="open another one"):
        await waiting


@virtual_test
async def test_a_runner_may_be_opened_again(tmp_path: Path):
    """Each opening is a holder of its own; what was handed back is taken again."""

    @task
    async def waits(context, handle):
        context["tries"] = handle.try_number
        await handle.wait_for("go")

    runner = Runner(f"sqlite:{tmp_path / 'layby.db'}")
    flow = flow_of(waits)
    async with runner:
        await runner.start(flow, run_id="r")
        await current_clock().advance(1)
    async with runner:
        await runner.resolve("go")
        assert await runner.execute(flow, run_id="r") == {"tries": 2}
        with pytest.raises(UsageError, match="already open"):
            await runner.__aenter__()
    await runner.close()


@virtual_test
async def test_two_runners_on_one_file(tmp_path: Path):
    """The second is refused and told who has the file; a failed opening keeps nothing."""
    address = f"sqlite:{tmp_path / 'layby.db'}"
    async with Runner(address):
        with pytest.raises(StoreOwned, match="already open in this process"):
            await Runner(address).__aenter__()
    async with Runner(address) as runner:
        assert await runner.list() == []


@virtual_test
async def test_the_store_is_sound_after_a_busy_hour():
    """Retries, skips, waits and cancels leave nothing behind that an invariant forbids."""

    @task(retry=RetryPolicy(max_attempts=3, delay=10))
    async def flaky(context, handle):
        await handle.sleep(5)
        if handle.try_number < 3:
            raise ValueError

    @task(dependencies=[flaky])
    async def after(context, handle):
        await handle.defer_until(lambda: current_clock().now() % 7 == 0, poll_interval_ms=3)

    flow = flow_of(flaky, after)
    async with Runner("memory:", slots=2) as runner:
        runs = [await runner.start(flow, run_id=f"r{n}") for n in range(30)]
        await current_clock().advance(7)
        for run in runs[::3]:
            await run.cancel()
        results = await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
        assert sum(isinstance(each, RunCancelled) for each in results) == 10
        assert sum(isinstance(each, BaseException) for each in results) == 10
        await current_clock().settled()
        state = runner.engine._store.dump()
        assert check(state, runner.now()) == []
        assert runner.worker.attempts == {}
        assert runner.worker.credit.held == 0
