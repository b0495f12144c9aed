"""People end or prolong the waits of parked bodies, which go on in place, or in a later run."""

import asyncio
from typing import Any

import pytest

from layby import ConditionError, Conflict, DeferTimeout, PromiseRejected, Runner, task, waits
from layby.core.commands import WakeTask
from layby.testing import current_clock, virtual_test
from tests.helpers.workers import crashing, flow_of, look, settled_down

began: list[str] = []


@pytest.fixture(autouse=True)
def nothing_began() -> None:
    began.clear()


@task
async def naps(context: Any, handle: Any) -> None:
    began.append("naps")
    await handle.sleep(3600)
    context["woke_at"] = current_clock().elapsed


@task
async def polls(context: Any, handle: Any) -> None:
    began.append("polls")
    await handle.defer_until(lambda: False, poll_interval=60)
    context["woke_at"] = current_clock().elapsed


@task
def plain(context: Any, handle: Any) -> None:
    began.append("plain")
    handle.defer_until(lambda: False, poll_interval=60)
    context["woke_at"] = current_clock().elapsed


WAITING = {"sleep": naps, "defer_until": polls, "in a thread": plain}


@pytest.mark.parametrize("kind", WAITING)
@virtual_test
async def test_a_parked_body_goes_on_in_place(kind):
    """Its local variables are there: it does not begin again."""
    waiting = WAITING[kind]
    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(waiting))
        await asyncio.sleep(7)
        await runner.wake(run.id, waiting.id, by="ann", reason="enough")
        assert (await run.result())["woke_at"] == 7
    assert len(began) == 1


@pytest.mark.parametrize("kind", WAITING)
@virtual_test
async def test_if_its_holder_dies_meanwhile_the_decision_counts_for_the_next(tmp_path, kind):
    waiting, path = WAITING[kind], f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(path) as runner:
        run = await runner.start(flow_of(waiting))
        await asyncio.sleep(7)
        task_id = f"run/{run.id}:{waiting.id}"
        assert runner.engine.call(WakeTask(id=task_id, exit_id="x")).is_ok
    async with Runner(path) as runner:
        runner.register(flow_of(waiting))
        again = await runner.get(run.id)
        assert (await again.result())["woke_at"] < 60
    assert len(began) == 2


@virtual_test
async def test_a_failure_is_raised_where_the_body_waits():
    @task
    async def tries(context, handle):
        try:
            await handle.defer_until(lambda: False)
        except ConditionError as error:
            context["first"] = str(error)
        try:
            await handle.sleep(3600)
        except PromiseRejected as error:
            context["second"] = error.message

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(tries))
        await asyncio.sleep(5)
        await runner.wake(run.id, "tries", error="no")
        await asyncio.sleep(5)
        await runner.wake(run.id, "tries", error="never")
        assert await run.result() == {"first": "no", "second": "never"}


async def until_true(handle: Any) -> None:
    await handle.defer_until(lambda: False, poll_interval=1, timeout=60)


async def for_a_promise(handle: Any) -> None:
    await handle.wait_for("p", timeout=60)


async def for_a_bundle(handle: Any) -> None:
    await handle.all_of(waits.wait_for("p"), waits.wait_for("q"), timeout=60)


TIMED = [until_true, for_a_promise, for_a_bundle]


def gives_up(wait: Any) -> Any:
    @task
    async def timed(context, handle):
        with pytest.raises(DeferTimeout):
            await wait(handle)
        context["gave_up_at"] = current_clock().elapsed

    return flow_of(timed)


@pytest.mark.parametrize("wait", TIMED)
@pytest.mark.parametrize("length", [10, 600])
@virtual_test
async def test_a_deadline_moves_sooner_or_later(wait, length):
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", length, by="ann")
        await settled_down()
        told = (await look(run, "timed")).waiting_on
        assert told is not None
        assert told.deadline == runner.now() + length * 1000
        assert (await run.result())["gave_up_at"] == 5 + length


@pytest.mark.parametrize("wait", TIMED)
@virtual_test
async def test_a_moved_deadline_outlives_its_worker(tmp_path, wait):
    path = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(path) as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", 600)
    async with Runner(path) as runner:
        runner.register(gives_up(wait))
        again = await runner.get(run.id)
        assert (await again.result())["gave_up_at"] == 605


@pytest.mark.parametrize("wait", TIMED)
@virtual_test
async def test_without_end_it_does_not_end_by_itself(wait):
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", None)
        await asyncio.sleep(10_000)
        assert (await look(run, "timed")).sub_status == "Deferred"
        await runner.extend(run.id, "timed", 3)
        assert (await run.result())["gave_up_at"] == 10_008


@virtual_test
async def test_a_wait_for_a_promise_says_what_to_settle_instead():
    @task
    async def asks(context, handle):
        await handle.wait_for("paid-7")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks))
        await asyncio.sleep(5)
        with pytest.raises(Conflict, match=r"'paid-7'.*resolve that promise"):
            await runner.wake(run.id, "asks")
        with pytest.raises(Conflict, match="without a deadline"):
            await runner.extend(run.id, "asks", 5)
        await runner.resolve("paid-7")
        await run.result()
