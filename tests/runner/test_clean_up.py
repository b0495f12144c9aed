"""Tasks with rule="finally": they run last, whatever happens, and beside no other body."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from layby import BlockingRunner, RunCancelled, RunFailed, Runner, Workflow, task
from layby.core.commands import Released, ReleaseTasks
from layby.core.runs import MAX_CLEANUPS
from layby.core.settings import Settings
from layby.testing import virtual_test
from tests.helpers.flows import sound
from tests.helpers.process_bodies import write_ending
from tests.helpers.server_thread import Elsewhere, play, server_elsewhere, soon
from tests.helpers.workers import crashing, flow_of, look, settled_down, until

CLEANING_S = 3


class Order:
    """reserve, charge, ship and compensate; what happens is written down."""

    def __init__(self, **compensating) -> None:
        self.log: list[str] = []
        self.endings: list[Any] = []
        compensating = {"rule": "finally", "timeout": 60} | compensating

        @task
        async def reserve(context):
            context["reserved"] = True
            self.log.append("reserve")

        @task(dependencies=[reserve])
        async def charge(context, handle):
            context["charged"] = True
            self.log.append("charge begins")
            try:
                await asyncio.sleep(context.get("charging_s", 0))
            finally:
                await asyncio.sleep(context.get("ending_s", 0))
                self.log.append("charge ends")

        @task(dependencies=[charge])
        async def ship(context):
            if context.get("is_lost"):
                raise RuntimeError("the parcel is lost")
            self.log.append("ship")

        @task(**compensating)
        async def compensate(context, handle):
            self.log.append(f"compensate {sorted(context)}")
            self.endings.append(context.ending)
            await asyncio.sleep(context.get("compensating_s", 0))
            if context.get("is_broke"):
                raise RuntimeError("no money")
            context["compensated"] = True

        self.flow = Workflow("order", tasks=[compensate, reserve, charge, ship])

    @property
    def ending(self):
        (ending,) = self.endings
        return ending


# --- a run that ends by itself ------------------------------------------------------------


@virtual_test
async def test_it_runs_after_all_others_and_its_changes_are_in_the_result():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, run_id="r")
        result = await run.result()
        assert order.log == [
            "reserve",
            "charge begins",
            "charge ends",
            "ship",
            "compensate ['charged', 'reserved']",
        ]
        assert result["compensated"]
        assert order.ending.state == "Completed"
        assert order.ending.outcomes == dict.fromkeys(["reserve", "charge", "ship"], "Completed")
        status = await run.cleaned_up()
        assert (status.state, status.is_cleaning_up) == ("Completed", False)
        await sound(runner)


@virtual_test
async def test_of_a_failed_run_it_is_told_what_failed():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, {"is_lost": True})
        with pytest.raises(RunFailed) as raised:
            await run.result()
        assert list(raised.value.failed) == ["ship"]
        assert order.log[-1] == "compensate ['charged', 'is_lost', 'reserved']"
        assert order.ending.state == "Failed"
        assert order.ending.failed == {"ship": "RuntimeError: the parcel is lost"}
        assert order.ending.outcomes["ship"] == "Failed"


@virtual_test
async def test_its_failure_fails_a_run_that_had_completed():
    order = Order()
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match="task 'compensate' failed: RuntimeError: no money"):
            await runner.execute(order.flow, {"is_broke": True})
        with pytest.raises(RunFailed) as raised:
            await runner.execute(order.flow, {"is_broke": True, "is_lost": True})
        assert set(raised.value.failed) == {"ship", "compensate"}


@virtual_test
async def test_while_it_cleans_up_the_run_is_not_over():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, {"compensating_s": 10})
        assert not (await run.status()).is_cleaning_up
        await asyncio.sleep(5)
        status = await run.status()
        assert (status.state, status.is_cleaning_up) == ("Running", True)
        await run.result()


@virtual_test
async def test_it_is_retried_like_any_task():
    tries = []

    @task
    async def works(context): ...

    @task(rule="finally", timeout=5, retries=2)
    async def cleans(context, handle):
        tries.append(handle.try_number)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works, cleans))
        assert tries == [1, 2, 3]


@virtual_test
async def test_its_timeout_ends_it():
    order = Order(timeout=2)
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match="task 'compensate' failed: TaskTimeout"):
            await runner.execute(order.flow, {"compensating_s": 10})


@virtual_test
async def test_several_begin_together_and_may_be_put_in_order():
    log = []

    @task
    async def works(context): ...

    @task(rule="finally", timeout=5)
    async def one(context):
        await asyncio.sleep(1)
        log.append("one")
        raise RuntimeError("one fails")

    @task(rule="finally", timeout=5)
    async def two(context):
        log.append("two")
        context["two"] = 2

    @task(rule="finally", timeout=5, dependencies=[one, two])
    async def three(context):
        log.append(f"three {context['two']}")

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed):
            await runner.execute(flow_of(works, one, two, three))
        assert log == ["two", "one", "three 2"]


# --- a run that ends early ----------------------------------------------------------------


@virtual_test
async def test_after_a_cancel_the_run_is_over_at_once_and_cleaned_up_when_the_body_has_ended():
    """Nobody compensates a charge that is still being made."""
    order = Order()
    async with Runner("memory:") as runner:
        context = {"charging_s": 3600, "ending_s": CLEANING_S}
        run = await runner.start(order.flow, context, run_id="r")
        await asyncio.sleep(1)
        begin = runner.now()
        await run.cancel(by="ada", reason="ordered twice")
        with pytest.raises(RunCancelled):
            await run.result()
        assert runner.now() == begin
        await asyncio.sleep(1)
        status = await run.status()
        assert (status.state, status.is_cleaning_up) == ("Cancelled", True)
        assert status.tasks["charge"].stuck
        waiting_on = status.tasks["compensate"].waiting_on
        assert waiting_on is not None
        assert waiting_on.sentence == "waits for the end of the body of 'charge'"
        status = await run.cleaned_up()
        assert runner.now() - begin == CLEANING_S * 1000
        assert order.log[-2:] == [
            "charge ends",
            "compensate ['charging_s', 'ending_s', 'reserved']",
        ]
        assert (order.ending.state, order.ending.by) == ("Cancelled", "ada")
        assert order.ending.reason == "ordered twice"
        assert order.ending.outcomes == {
            "reserve": "Completed",
            "charge": "Cancelled",
            "ship": "Cancelled",
        }
        assert (status.state, status.is_cleaning_up) == ("Cancelled", False)
        assert status.tasks["compensate"].status == "Completed"
        assert not status.tasks["charge"].stuck
        await sound(runner)


@virtual_test
async def test_after_the_deadline_too_and_it_has_none_itself():
    order = Order()
    async with Runner("memory:") as runner:
        context = {"charging_s": 3600, "ending_s": CLEANING_S, "compensating_s": 40}
        run = await runner.start(order.flow, context, deadline=5)
        begin = runner.now()
        with pytest.raises(RunFailed, match="deadline passed"):
            await run.result()
        assert runner.now() - begin == 5_000
        status = await run.cleaned_up()
        assert runner.now() - begin == (5 + CLEANING_S + 40) * 1000
        assert status.state == "Failed"
        assert status.tasks["compensate"].status == "Completed"
        assert order.ending.state == "Failed"
        assert "deadline passed" in order.ending.reason


@virtual_test
async def test_its_failure_never_changes_a_cancelled_run():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, {"charging_s": 3600, "is_broke": True})
        await asyncio.sleep(1)
        await run.cancel()
        status = await run.cleaned_up()
        assert status.state == "Cancelled"
        assert status.tasks["compensate"].status == "Failed"
        with pytest.raises(RunCancelled):
            await run.result()


@virtual_test
async def test_cancelling_again_does_not_end_the_clean_up():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, {"compensating_s": 10})
        await asyncio.sleep(5)
        await run.cancel()
        await run.cancel()
        status = await run.cleaned_up()
        assert (status.state, status.tasks["compensate"].status) == ("Cancelled", "Completed")


@virtual_test
async def test_it_can_be_cancelled_and_halted_by_its_own_id():
    order = Order()
    async with Runner("memory:") as runner:
        run = await runner.start(order.flow, {"compensating_s": 3600}, run_id="r")
        await asyncio.sleep(5)
        await run.cancel()
        await runner.halt("r", "compensate")
        await settled_down()
        assert (await look(run, "compensate")).status == "Halted"
        await runner.continue_("r", "compensate")
        await asyncio.sleep(5)
        await runner.cancel("r", "compensate")
        assert (await run.cleaned_up()).tasks["compensate"].status == "Cancelled"


@virtual_test
async def test_what_waits_for_a_person_ends_at_once():
    """A parked body holds no slot; it cleans up after itself, and then the run is cleaned up."""
    log = []

    @task
    async def asks(context, handle):
        try:
            await handle.wait_for("approved")
        finally:
            log.append("asks ends")

    @task(rule="finally", timeout=5)
    async def cleans(context):
        log.append("cleans")

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(asks, cleans))
        await asyncio.sleep(1)
        await run.cancel()
        await run.cleaned_up()
        assert log == ["asks ends", "cleans"]


@virtual_test
async def test_a_run_that_never_began_is_cleaned_up_as_well():
    order = Order()
    async with Runner("memory:", slots=1) as runner:
        blocker = await runner.start(order.flow, {"charging_s": 100})
        await asyncio.sleep(1)
        run = await runner.start(order.flow)
        await run.cancel()
        await blocker.result()
        await run.cleaned_up()
        assert "compensate []" in order.log


@virtual_test
async def test_nothing_to_clean_up_is_cleaned_up_when_the_run_is_over():
    @task
    async def works(context):
        await asyncio.sleep(3)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        with pytest.raises(TimeoutError, match="is not cleaned up after 1 s"):
            await run.cleaned_up(timeout=1)
        assert (await run.cleaned_up()).state == "Completed"
        other = await runner.start(flow_of(works))
        await other.cancel()
        assert not (await other.status()).is_cleaning_up
        assert (await other.cleaned_up()).state == "Cancelled"


@virtual_test
async def test_whoever_waits_for_a_long_clean_up_is_told_their_own_number():
    """And not to cancel what is cancelled."""

    @task
    async def works(context):
        await asyncio.sleep(3)

    @task(rule="finally", timeout=60)
    async def cleans(context):
        await asyncio.sleep(30)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works, cleans))
        with pytest.raises(
            TimeoutError, match="is not cleaned up after 5 s and is still running: wait again, or"
        ):
            await run.cleaned_up(timeout=5)
        await run.cancel()
        with pytest.raises(TimeoutError, match=r"after 7 s: wait again$"):
            await run.cleaned_up(timeout=7)


@virtual_test
async def test_cleaned_up_can_be_waited_for_in_a_task():
    order = Order()

    @task
    async def outer(context, handle):
        run = await runner.get("inner")
        context["state"] = (await run.cleaned_up()).state

    async with Runner("memory:", slots=1) as runner:
        inner = await runner.start(order.flow, {"charging_s": 3600, "ending_s": 3}, run_id="inner")
        await asyncio.sleep(1)
        waiting = await runner.start(flow_of(outer))
        await inner.cancel()
        assert (await waiting.result())["state"] == "Cancelled"
        assert order.endings


def test_a_thread_is_waited_for_however_long_it_goes_on():
    go_on, log = threading.Event(), []

    @task
    def charges(context):
        log.append("charge begins")
        go_on.wait(60)
        log.append("charge ends")

    @task(rule="finally", timeout=60)
    def compensates(context):
        log.append("compensate")

    async def main() -> None:
        async with Runner("memory:", slots=2) as runner:
            run = await runner.start(flow_of(charges, compensates), run_id="r")
            await until(lambda: log)
            await run.cancel()
            await until(lambda: runner.worker.stuck)
            assert log == ["charge begins"]
            assert (await run.status()).is_cleaning_up
            go_on.set()
            await run.cleaned_up(timeout=60)
            assert log == ["charge begins", "charge ends", "compensate"]

    asyncio.run(main())


def test_a_thread_that_outlasts_its_own_timeout_is_waited_for_too():
    """Its task fails at once; that it goes on is told."""
    go_on, log = threading.Event(), []

    @task(timeout=0.05)
    def charges(context):
        log.append("charge begins")
        go_on.wait(60)
        log.append("charge ends")

    @task(rule="finally", timeout=60)
    def compensates(context):
        log.append("compensate")

    async def main() -> None:
        async with Runner("memory:", slots=2) as runner:
            run = await runner.start(flow_of(charges, compensates), run_id="r")
            await until(lambda: runner.worker.stuck)
            while (await look(run, "charges")).status != "Failed":  # noqa: ASYNC110 - see until
                await asyncio.sleep(0.001)
            await settled_down()
            assert log == ["charge begins"]
            assert (await run.status()).is_cleaning_up
            go_on.set()
            with pytest.raises(RunFailed, match="TaskTimeout"):
                await run.result(timeout=60)
            assert log == ["charge begins", "charge ends", "compensate"]
            assert runner.worker.holds_nothing

    asyncio.run(main())


def test_a_process_is_told_how_the_run_ended(tmp_path: Path):
    @task
    async def fails(context):
        raise RuntimeError("on purpose")

    async def main() -> None:
        async with Runner("memory:") as runner:
            with pytest.raises(RunFailed):
                await runner.execute(
                    flow_of(fails, write_ending), {"file": str(tmp_path / "ending")}
                )

    asyncio.run(main())
    assert (tmp_path / "ending").read_text() == "Failed {'fails': 'RuntimeError: on purpose'}"


def test_without_an_event_loop():
    @task
    async def asks(context, handle):
        await handle.wait_for("approved")

    @task(rule="finally", timeout=5)
    def cleans(context): ...

    with BlockingRunner("memory:") as runner:
        run = runner.start(flow_of(asks, cleans))
        run.cancel()
        status = run.cleaned_up(timeout=60)
        assert status.tasks["cleans"].status == "Completed"


# --- processes that die --------------------------------------------------------------------


@virtual_test
async def test_clean_up_goes_on_in_the_next_process(tmp_path: Path):
    """Whether the body of another task ran when the process died, or the clean-up itself."""
    file = f"sqlite:{tmp_path / 'orders.db'}"
    order = Order()
    context = {"charging_s": 3600, "ending_s": 3600, "compensating_s": 20}
    async with crashing(file) as runner:
        run = await runner.start(order.flow, context, run_id="r")
        await until(lambda: "charge begins" in order.log)
        await run.cancel()
        await settled_down()
        assert not order.endings
    async with crashing(file) as runner:
        runner.register(order.flow)
        await until(lambda: order.endings)
    async with Runner(file) as runner:
        runner.register(order.flow)
        status = await (await runner.get("r")).cleaned_up()
        assert status.tasks["compensate"].status == "Completed"
        assert status.tasks["compensate"].crashes == 1
        assert status.tasks["charge"].crashes == 0
    assert [each.state for each in order.endings] == ["Cancelled", "Cancelled"]


@virtual_test
async def test_a_runner_that_is_closed_hands_the_clean_up_back(tmp_path: Path):
    file = f"sqlite:{tmp_path / 'orders.db'}"
    order = Order()
    async with Runner(file) as runner:
        run = await runner.start(order.flow, {"charging_s": 3600, "ending_s": 1}, run_id="r")
        await until(lambda: "charge begins" in order.log)
        await run.cancel()
    async with Runner(file) as runner:
        runner.register(order.flow)
        status = await (await runner.get("r")).cleaned_up()
        assert status.tasks["compensate"].status == "Completed"


# --- across a server -------------------------------------------------------------------------


def test_another_worker_waits_for_the_end_of_the_body():
    """And everybody sees what it waits for."""
    go_on, log = threading.Event(), []

    @task
    def charges(context):
        log.append("charge begins")
        go_on.wait(60)
        log.append("charge ends")

    @task(rule="finally", timeout=60, group="cleaners")
    async def compensates(context):
        log.append(f"compensate after {context.ending.state}")

    flow = flow_of(charges, compensates)

    async def scene(elsewhere: Elsewhere) -> None:
        async with elsewhere.runner() as one, elsewhere.runner(group="cleaners") as two:
            run = await one.start(flow, run_id="r")
            two.register(flow)
            await soon(lambda: log)
            await two.cancel("r")
            seen = await (await two.get("r")).status()
            assert (seen.state, seen.is_cleaning_up) == ("Cancelled", True)
            assert seen.tasks["charges"].stuck
            waiting_on = seen.tasks["compensates"].waiting_on
            assert waiting_on is not None
            assert waiting_on.sentence == "waits for the end of the body of 'charges'"
            await soon(lambda: one.worker.stuck)
            assert log == ["charge begins"]
            go_on.set()
            status = await run.cleaned_up(timeout=60)
            assert status.tasks["compensates"].status == "Completed"
            assert log == ["charge begins", "charge ends", "compensate after Cancelled"]

    with server_elsewhere() as elsewhere:
        play(lambda: scene(elsewhere))


def test_a_worker_whose_lease_is_over_is_not_waited_for():
    """It may go on all the same: it must not be heard of any more."""
    go_on, log = threading.Event(), []

    @task
    def charges(context):
        log.append("charge begins")
        go_on.wait(60)

    @task(rule="finally", timeout=60)
    async def compensates(context):
        log.append("compensate")

    flow = flow_of(charges, compensates)

    async def scene(elsewhere: Elsewhere) -> None:
        async with elsewhere.runner(grace=0) as one, elsewhere.runner() as two:
            run = await one.start(flow, run_id="r")
            await soon(lambda: log)
            two.register(flow)
            await two.cancel("r")
            leave = replace(one.worker.registration(), incarnation="another", wait_ms=0)
            await elsewhere.ok(leave)  # as if its lease were over: another incarnation
            await (await two.get("r")).cleaned_up(timeout=60)
            assert log == ["charge begins", "compensate"]
            go_on.set()
            ended = (Released("run/r:charges", 1),)
            late = ReleaseTasks(pid=one.worker.config.pid, incarnation="1", tasks=ended)
            await elsewhere.ok(late)
            assert run.id == "r"

    try:
        with server_elsewhere() as elsewhere:
            play(lambda: scene(elsewhere))
    finally:
        go_on.set()


def test_the_settings_leave_room():
    """A step resumes more waits than there may be tasks that clean up."""
    assert Settings().hop_limit > MAX_CLEANUPS
