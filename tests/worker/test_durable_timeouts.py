"""A wait's timeout counts from when the wait first began, whatever happened to its worker since."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from layby import DeferTimeout, RetryPolicy, Runner, TaskHandle, task
from layby.core.commands import ResolvePromise
from layby.executors import SlotPool
from layby.testing import current_clock, virtual_test
from layby.worker.wait_deadlines import WaitDeadlines
from tests.helpers.workers import crashing, flow_of, look, rows, settled_down


async def wait_for_a_promise(handle: Any, length: float) -> Any:
    return await handle.wait_for("p", timeout=length)


async def wait_for_a_condition(handle: Any, length: float) -> Any:
    return await handle.defer_until(lambda: False, poll_interval=1, timeout=length)


async def wait_for_a_token(handle: Any, length: float) -> Any:
    return await (await handle.promise("t")).wait(timeout=length)


WAITS = {
    "wait_for": wait_for_a_promise,
    "defer_until": wait_for_a_condition,
    "token": wait_for_a_token,
}


def gives_up(wait: Any, length: float) -> Any:
    """A flow whose only task waits so long, and says how long that took."""

    @task
    async def waits(context, handle):
        try:
            context["got"] = await wait(handle, length)
        except DeferTimeout:
            context["gave_up_after"] = current_clock().elapsed

    return flow_of(waits)


def deadlines(path: Path) -> dict[str, int]:
    told = [row["task_deadlines"] for row in rows(path, "SELECT * FROM promises")]
    found = [json.loads(each) for each in told if each is not None]
    return found[0] if found else {}


@pytest.mark.parametrize("ending", ["stop", "crash"])
@pytest.mark.parametrize("kind", WAITS)
@virtual_test
async def test_a_restart_every_four_seconds_gives_no_more_time(tmp_path, kind, ending):
    """Six seconds are six seconds."""
    flow, address = gives_up(WAITS[kind], 6), f"sqlite:{tmp_path / 'a.db'}"
    opened = Runner if ending == "stop" else crashing
    async with opened(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(4)
    async with Runner(address) as runner:
        runner.register(flow)
        result = await (await runner.get("r")).result()
    assert result["gave_up_after"] == 6
    assert deadlines(tmp_path / "a.db") == {}


@virtual_test
async def test_two_days_with_a_deploy_each_are_over(tmp_path):
    """As for an approval: what is left is left over all restarts, and shown."""
    flow, address = gives_up(wait_for_a_promise, 48 * 3600), f"sqlite:{tmp_path / 'a.db'}"
    begun = current_clock().now()
    async with Runner(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(20 * 3600)
    for _ in range(2):
        async with Runner(address) as runner:
            runner.register(flow)
            run = await runner.get("r")
            await settled_down()
            await asyncio.sleep(0.01)
            waiting = (await look(run, "waits")).waiting_on
            assert waiting is not None
            assert waiting.deadline == begun + 48 * 3_600_000
            await asyncio.sleep(10 * 3600)
    async with Runner(address) as runner:
        runner.register(flow)
        assert (await (await runner.get("r")).result())["gave_up_after"] == 48 * 3600


@pytest.mark.parametrize(("at", "is_in_time"), [(5, True), (6, True), (6.001, False), (7, False)])
@virtual_test
async def test_what_is_settled_while_nobody_waits_counts_by_its_time(tmp_path, at, is_in_time):
    """After the deadline it is a timeout, at the very instant it is not."""
    flow, address = gives_up(wait_for_a_promise, 6), f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
    async with Runner(address) as outsider:  # knows nothing of that flow
        await asyncio.sleep(at - 1)
        await outsider.resolve("p", "yes")
        await asyncio.sleep(10 - at)
    async with Runner(address) as runner:
        runner.register(flow)
        result = await (await runner.get("r")).result()
    assert (result.get("got") == "yes") is is_in_time
    assert ("gave_up_after" in result) is not is_in_time


@virtual_test
async def test_who_gave_up_gives_up_again_on_every_replay(tmp_path):
    """Though the promise was settled meanwhile."""
    address, heard = f"sqlite:{tmp_path / 'a.db'}", []

    @task
    async def waits(context, handle):
        try:
            heard.append(await handle.wait_for("p", timeout=2))
        except DeferTimeout as error:
            heard.append(str(error))
        await handle.wait_for("go")

    async with crashing(address) as runner:
        await runner.start(flow_of(waits), run_id="r")
        await asyncio.sleep(3)
        await runner.resolve("p", "late")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        runner.register(flow_of(waits))
        await runner.resolve("go")
        await (await runner.get("r")).result()
    assert heard == ["run/r:waits: promise p was not settled in 2 s"] * 2


@virtual_test
async def test_an_event_that_comes_with_the_timeout_wins():
    """Both in one instant, and the loop busy meanwhile: asked once more before giving up."""

    @task
    async def waits(context, handle):
        context["got"] = await handle.wait_for("p", timeout=5)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        await asyncio.sleep(4.999)
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, lambda: asyncio.ensure_future(runner.resolve("p", 1)))
        assert (await run.result())["got"] == 1


@virtual_test
async def test_a_try_that_failed_leaves_the_next_one_all_of_its_time():
    """Three seconds each, though the first wait of the first try had begun long before."""
    began = []

    @task(retry=RetryPolicy(max_attempts=2, backoff="fixed", delay=1))
    async def waits(context, handle):
        began.append(current_clock().elapsed)
        await handle.wait_for("p", timeout=3)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        with pytest.raises(Exception, match="not settled in 3 s"):
            await run.result()
    assert (began, current_clock().elapsed) == ([0, 4], 7)


@virtual_test
async def test_entries_come_and_go_with_their_waits(tmp_path):
    """Overlapping ones too; one that the body itself cuts short is over as well."""
    seen = []
    path = tmp_path / "a.db"

    @task
    async def waits(context, handle):
        async with asyncio.TaskGroup() as group:
            group.create_task(handle.wait_for("p", timeout=100, key="a"))
            group.create_task(handle.wait_for("q", timeout=200, key="b"))
            group.create_task(handle.defer_until(lambda: False, 1, timeout=300, key="c"))
            await asyncio.sleep(10)
            seen.append(sorted(key.rpartition(".")[2] for key in deadlines(path)))
            await asyncio.sleep(10)
            seen.append(sorted(key.rpartition(".")[2] for key in deadlines(path)))
            raise KeyError("enough")

    @task
    async def outer(context, handle):
        for body in (lambda: handle.wait_for("x", timeout=9), lambda: handle.sleep(1)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await body()
        seen.append(deadlines(path))

    async with Runner(f"sqlite:{path}") as runner:
        await runner.execute(flow_of(outer, name="o"))
        run = await runner.start(flow_of(waits))
        await asyncio.sleep(15)
        await runner.resolve("p")
        with pytest.raises(Exception, match="TaskGroup"):
            await run.result()
    assert seen == [{}, ["a", "b", "c"], ["b", "c"]]
    assert deadlines(path) == {}


@virtual_test
async def test_a_handle_without_a_store_still_times_out():
    """Its waits are not durable, but they are waits."""
    token = await SlotPool(1).acquire()
    with pytest.raises(DeferTimeout):
        await TaskHandle(token).defer_until(lambda: False, 1, timeout=3)
    assert current_clock().elapsed == 3


@virtual_test
async def test_a_thousand_give_up_at_once():
    """One timer for all of them."""

    @task
    async def waits(context, handle):
        with pytest.raises(DeferTimeout):
            await handle.wait_for("p", timeout=60)

    async with Runner("memory:") as runner:
        runs = [await runner.start(flow_of(waits)) for _ in range(200)]
        await asyncio.gather(*(run.result() for run in runs))
        assert runner.worker.watches._timed == {}
    assert 60 <= current_clock().elapsed < 61


# --- what the store has not heard of is told again ---------------------------------------


def test_what_is_not_acknowledged_is_told_again_with_what_is_left():
    """A wait of ten seconds, told three seconds late, has seven left there."""
    told: list[bool] = []
    book = WaitDeadlines({}, lambda: told.append(True))
    moved: list[int] = []
    deadline = book.begin("r", 10_000, book.end)
    deadline.moved = moved.append
    assert told == [True]
    assert book.begun(0) == {"r": 10_000}
    assert book.begun(3_000) == {"r": 7_000}
    book.acknowledge({"r": 10_004, "other": 5}, ())
    assert (moved, deadline.deadline, book.begun(4_000)) == ([10_004], 10_004, {})
    assert book.fixed("r") == 10_004
    deadline.ended()
    assert book.ended() == ("r",)
    book.acknowledge({}, ("r",))
    assert book.ended() == ()


def test_one_that_was_begun_before_is_not_told_again():
    told: list[bool] = []
    book = WaitDeadlines({"r": 5_000}, lambda: told.append(True))
    assert book.begin("r", 99_000, book.end).deadline == 5_000
    assert (book.begun(0), told) == ({}, [])


@virtual_test
async def test_the_name_of_a_promise_may_be_settled_before_the_wait():
    """It needs no deadline then, and none is written."""

    @task
    async def waits(context, handle):
        context["got"] = await handle.wait_for("p", timeout=0)

    async with Runner("memory:") as runner:
        await runner.client.send(ResolvePromise(id="p"))
        assert (await runner.execute(flow_of(waits)))["got"] is None
