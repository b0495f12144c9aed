"""Clocks that are put forward or back while things run: everything takes its time."""

import asyncio
from collections.abc import Iterator

import pytest

from layby import DeferTimeout, RetryPolicy, RunFailed, Runner, task
from layby.clock import SystemClock
from layby.server import server
from layby.testing import current_clock, virtual_test
from tests.helpers.troubled_server import Meddler, play, served
from tests.helpers.workers import flow_of
from tests.runner.test_remote import Place

HOUR = 3_600


@task
async def naps(context, handle):
    begun = current_clock().elapsed
    await handle.sleep(2)
    context["slept"] = current_clock().elapsed - begun


@pytest.mark.parametrize("back", [5, HOUR])
@virtual_test
async def test_a_sleep_after_the_clock_was_put_back(back):
    """Not over at once, and not an hour late either."""
    async with Runner("memory:") as runner:
        await runner.execute(flow_of(naps))
        current_clock().step(-back)
        slept = (await runner.execute(flow_of(naps)))["slept"]
        assert 2 <= slept < 2.2


@virtual_test
async def test_a_sleep_during_which_the_clock_is_put_back():
    """What was begun before takes its time as well."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(naps))
        await asyncio.sleep(1)
        current_clock().step(-HOUR)
        assert 2 <= (await run.result())["slept"] < 2.2


@virtual_test
async def test_a_deadline_right_after_the_clock_was_put_back():
    """Three seconds: neither passed already nor in an hour."""

    @task
    async def waits(context, handle):
        await handle.wait_for("nothing")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(naps))
        current_clock().step(-HOUR)
        begun = current_clock().elapsed
        run = await runner.start(flow_of(waits, name="w"), deadline=3)
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        assert 3 <= current_clock().elapsed - begun < 3.3


@virtual_test
async def test_waits_and_back_offs_after_the_clock_was_put_back():
    tries = []

    @task(retry=RetryPolicy(max_attempts=2, backoff="fixed", delay=2))
    async def waits(context, handle):
        tries.append(current_clock().elapsed)
        with pytest.raises(DeferTimeout):
            await handle.wait_for("nothing", timeout=3)
        if handle.try_number == 1:
            raise ValueError("again")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(naps))
        current_clock().step(-HOUR)
        await runner.execute(flow_of(waits, name="w"))
        assert 5 <= tries[1] - tries[0] < 5.5


@virtual_test
async def test_a_restart_after_the_clock_was_put_back(tmp_path):
    """Store time goes on from where it was: a sleep that was begun ends when it would have."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    clock = current_clock()

    @task
    async def sleeps(context, handle):
        await handle.sleep(10)

    async with Runner(address) as runner:
        await runner.start(flow_of(sleeps), run_id="r")
        await asyncio.sleep(4)
    clock.step(-HOUR)
    async with Runner(address) as runner:
        runner.register(flow_of(sleeps))
        await (await runner.get("r")).result()
    assert 10 <= clock.elapsed < 10.5


@virtual_test
async def test_a_clock_put_forward_by_three_hours():
    """What is due by then comes soon, and nobody loses a task over it."""
    clock, begun = current_clock(), []

    @task
    async def sleeps(context, handle):
        begun.append(1)
        await handle.sleep(2 * HOUR)

    @task
    async def waits(context, handle):
        begun.append(2)
        with pytest.raises(DeferTimeout):
            await handle.wait_for("nothing", timeout=2 * HOUR)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(sleeps, waits))
        await asyncio.sleep(1)
        clock.step(3 * HOUR)
        await run.result()
        assert clock.elapsed < 70
        assert sorted(begun) == [1, 2]


# --- the clock of a server ---------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    class Stepped(SystemClock):
        """The clock of every server; not that of the workers."""

        put_ms = 0

        def now(self) -> int:
            return super().now() + self.put_ms

    monkeypatch.setattr(server, "SystemClock", Stepped)
    return Stepped  # type: ignore[return-value]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000], ids=["back", "forward"])
def test_sleeps_and_back_offs_of_a_server_whose_clock_is_put(clock, step_ms):
    """They end when they say, and no healthy worker loses its lease."""
    begun = []

    @task(retry=RetryPolicy(max_attempts=2, backoff="fixed", delay=0.2))
    async def works(context, handle):
        begun.append(handle.try_number)
        await handle.sleep(0.3)
        with pytest.raises(DeferTimeout):
            await handle.wait_for("nothing", timeout=0.3)
        if handle.try_number == 1:
            raise ValueError("again")

    @task
    async def stays(context, handle):
        begun.append("stays")
        await asyncio.sleep(3)

    async def scene(runner: Runner) -> None:
        await runner.execute(flow_of(works, name="before"))
        begun.clear()
        loop = asyncio.get_running_loop()
        at = loop.time()
        held = await runner.start(flow_of(stays, name="stays"))
        await asyncio.sleep(0.2)
        clock.put_ms = step_ms
        await runner.execute(flow_of(works, name="after"), timeout=20)
        assert loop.time() - at >= 1.4
        await held.result(20)

    async def play_there() -> None:
        async with (
            served() as there,
            Meddler(there.port) as meddler,
            Place(there, meddler).runner(lease=2) as runner,
        ):
            await scene(runner)

    play(play_there)
    assert sorted(map(str, begun)) == ["1", "2", "stays"]
