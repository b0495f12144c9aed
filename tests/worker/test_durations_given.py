"""Lengths that are not lengths, and lengths without an end, wherever a task can give one."""

import asyncio
import math
from datetime import timedelta

import pytest

from layby import RunFailed, Runner, TaskHandle, task
from layby.executors.slots import SlotPool
from layby.testing import virtual_test
from tests.helpers.flows import flow_of

NOT_LENGTHS = [math.nan, -1, True, "5", timedelta(seconds=-1)]
ENDLESS = [math.inf, 1e300, timedelta.max]


async def asked(handle, length):
    return await (await handle.promise("answer")).wait(timeout=length)


CALLS = {
    "sleep": lambda handle, length: handle.sleep(length),
    "wait_for": lambda handle, length: handle.wait_for("p", timeout=length),
    "promise": asked,
    "defer_until": lambda handle, length: handle.defer_until(lambda: False, timeout=length),
    "poll_interval": lambda handle, length: handle.defer_until(lambda: False, length),
    "poll_interval_ms": lambda handle, length: handle.defer_until(
        lambda: False, poll_interval_ms=length
    ),
    "max_interval": lambda handle, length: handle.defer_until(lambda: False, max_interval=length),
    "rpc": lambda handle, length: handle.rpc("f", timeout=length),
}


def calling(name, length):
    @task
    async def calls(context, handle):
        await CALLS[name](handle, length)

    return flow_of(calls)


@pytest.mark.parametrize("length", NOT_LENGTHS, ids=repr)
@pytest.mark.parametrize("name", CALLS)
@virtual_test
async def test_what_is_no_length_fails_the_task_by_name(name, length):
    """The error says which parameter, what it should be, and what was given."""
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed) as failed:
            await runner.execute(calling(name, length))
    told = failed.value.failed["calls"]
    assert told.startswith("UsageError: ")
    assert any(word in told for word in ("timeout", "sleep", "interval")), told
    assert "seconds" in told or "negative" in told, told


@pytest.mark.parametrize("length", ENDLESS, ids=repr)
@pytest.mark.parametrize("name", ["sleep", "wait_for", "promise", "defer_until", "rpc"])
@virtual_test
async def test_without_an_end_it_waits_until_somebody_ends_it(name, length):
    """There is no deadline to show, and cancelling works."""
    async with Runner("memory:") as runner:
        run = await runner.start(calling(name, length))
        await asyncio.sleep(60)
        waiting = (await run.status()).tasks["calls"].waiting_on
        assert waiting is not None
        assert waiting.deadline is None
        assert "inf" not in waiting.sentence
        assert "e+" not in waiting.sentence
        assert await run.cancel()


@virtual_test
async def test_an_endless_sleep_says_so():
    """As `status` and `why` show it."""
    async with Runner("memory:") as runner:
        run = await runner.start(calling("sleep", math.inf))
        await asyncio.sleep(60)
        told = (await run.status()).tasks["calls"].waiting_on
        assert told is not None
        assert told.sentence == "sleeping without end"


@virtual_test
async def test_a_sleep_without_end_and_without_a_store():
    """A handle of its own sleeps as well as one with a Runner."""
    pool = SlotPool(1)
    token = await pool.acquire()
    sleep = asyncio.ensure_future(TaskHandle(token).sleep(math.inf))
    await asyncio.sleep(60)
    assert not sleep.done()
    assert not token.is_held()
    sleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleep


@pytest.mark.parametrize(
    "pace",
    [{"backoff": "2"}, {"jitter": "0.1"}, {"max_errors": "3"}, {"backoff": True}, {"jitter": True}],
    ids=repr,
)
@virtual_test
async def test_a_pace_that_is_no_number_is_refused_by_name(pace):
    """Not by a TypeError from somewhere inside."""

    @task
    async def polls(context, handle):
        await handle.defer_until(lambda: False, **pace)

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match=f"UsageError: {next(iter(pace))} must be"):
            await runner.execute(flow_of(polls))


@pytest.mark.parametrize("length", ENDLESS, ids=repr)
@virtual_test
async def test_limits_without_an_end_are_no_limits(length):
    """The timeout of a task, the deadline of a run, the patience of who waits for it."""

    @task(timeout=length)
    async def naps(context, handle):
        await handle.sleep(3600)
        return {"slept": True}

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(naps), deadline=length)
        assert (await run.status()).deadline is None
        assert (await run.result(timeout=length))["slept"]


@pytest.mark.parametrize("option", ["lease", "grace"])
@pytest.mark.parametrize("length", [*ENDLESS, *NOT_LENGTHS], ids=repr)
def test_a_runner_refuses_what_never_ends(option, length):
    """A lease that is never over would keep a dead worker's tasks for good."""
    with pytest.raises(Exception, match=f"^{option} of a Runner must"):
        Runner("memory:", **{option: length})
