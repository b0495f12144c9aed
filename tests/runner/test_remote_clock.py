"""A worker whose clock is an hour wrong: everything happens when it would with a right one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby import DeferTimeout, RetryPolicy, RunFailed, Runner, Workflow, task
from layby.clock import SystemClock
from layby.core import commands as c
from layby.runner import remote
from tests.helpers.troubled_server import Meddler, play, served, soon
from tests.runner.test_remote import Place

AN_HOUR = 3_600_000
NEAR_MS = 60_000
"""How exactly times are compared here: machines may be slow, and an hour is far away."""


@pytest.fixture(params=[AN_HOUR, -AN_HOUR], ids=["ahead", "behind"])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of every remote Runner, not that of the server."""

    class WrongClock(SystemClock):
        def now(self) -> int:
            return super().now() + request.param

    monkeypatch.setattr(remote, "SystemClock", WrongClock)


def far_away(scene: Callable[[Place, Runner], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as server, Meddler(server.port) as meddler:
            place = Place(server, meddler)
            async with place.runner() as runner:
                await scene(place, runner)

    play(run)


def is_near(told: Any) -> bool:
    return abs(told - SystemClock().now()) < NEAR_MS


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def seconds_of(work: Awaitable[Any]) -> float:
    began = now_s()
    await work
    return now_s() - began


@pytest.mark.usefixtures("wrong")
def test_a_sleep_is_as_long_as_it_says():
    """Neither over at once nor an hour late; and its deadline is told in everybody's time."""

    @task
    async def sleeps(context, handle):
        await handle.sleep(0.4)

    async def scene(_: Place, runner: Runner) -> None:
        began = now_s()
        run = await runner.start(Workflow("f", tasks=[sleeps]), run_id="a")
        waiting = None
        while waiting is None:
            waiting = (await run.status()).tasks["sleeps"].waiting_on
        assert is_near(waiting.since)
        assert is_near(waiting.deadline)
        await run.result()
        assert 0.35 < now_s() - began < 60

    far_away(scene)


@pytest.mark.usefixtures("wrong")
def test_waits_time_out_when_they_say():
    """For a condition, for a promise, for a call."""

    @task
    async def gives_up(context, handle):
        with pytest.raises(DeferTimeout):
            await handle.defer_until(lambda: False, 0.05, timeout=0.2)
        with pytest.raises(DeferTimeout):
            await handle.wait_for("nothing", timeout=0.2)
        with pytest.raises(DeferTimeout):
            await handle.rpc("nobody", target="poll://any@nowhere", timeout=0.2)

    async def scene(_: Place, runner: Runner) -> None:
        took = await seconds_of(runner.execute(Workflow("f", tasks=[gives_up])))
        assert 0.55 < took < 60

    far_away(scene)


@pytest.mark.usefixtures("wrong")
def test_a_try_that_failed_is_followed_by_another_after_its_delay():
    """And what is told of the tries is in everybody's time."""

    @task(retry=RetryPolicy(max_attempts=3, backoff="fixed", delay=0.2))
    async def fails(context, handle):
        if handle.try_number < 3:
            raise ValueError("again")

    async def scene(_: Place, runner: Runner) -> None:
        run = await runner.start(Workflow("f", tasks=[fails]), run_id="a")
        assert 0.35 < await seconds_of(run.result()) < 60
        tries = (await run.status()).tasks["fails"].tries
        assert len(tries) == 3
        spans = [span for each in tries for span in each.spans]
        assert all(is_near(span.start) and is_near(span.end) for span in spans)
        assert [span.start for span in spans] == sorted(span.start for span in spans)

    far_away(scene)


@pytest.mark.usefixtures("wrong")
def test_a_deadline_of_a_run_is_when_it_says():
    """Not over before it begins, and not an hour late."""

    @task
    async def waits(context, handle):
        await handle.wait_for("nothing")

    async def scene(place: Place, runner: Runner) -> None:
        flow = Workflow("f", tasks=[waits])
        run = await runner.start(flow, run_id="a", deadline=0.5)
        root = await place.ok(c.GetPromise(id="run/a"))
        assert 0 < root.promise.timeout_at - root.promise.created_at < NEAR_MS
        with pytest.raises(RunFailed):
            await asyncio.wait_for(run.result(), 25)

    far_away(scene)


@pytest.mark.usefixtures("wrong")
def test_runs_of_a_schedule_have_their_deadline_and_their_time():
    """Both are the server's business."""

    @task
    async def waits(context, handle):
        await handle.wait_for("nothing")

    async def scene(_: Place, runner: Runner) -> None:
        flow = Workflow("f", tasks=[waits])
        schedule = await runner.schedule(flow, "* * * * * *", deadline=1)
        assert is_near(schedule.next_run_at)
        await soon(lambda: runner.worker.attempts)
        await schedule.delete()
        run = (await schedule.runs())[-1]
        with pytest.raises(RunFailed):
            await asyncio.wait_for(run.result(), 25)

    far_away(scene)


def test_a_right_clock_is_left_alone():
    """A worker on the server's machine says its own time, exactly."""

    async def scene(_: Place, runner: Runner) -> None:
        before = SystemClock().now()
        told = runner.now()
        assert before <= told <= SystemClock().now()

    far_away(scene)
