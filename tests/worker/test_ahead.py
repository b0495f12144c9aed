"""Tasks claimed ahead of their slots: only while bodies are short, and never for long."""

import asyncio
from typing import Any

import pytest

from layby import Runner, task
from layby.core.commands import CancelPromise
from layby.testing import SlotWatch, virtual_test
from layby.worker.ahead import LINE_S, PATIENCE_S, SAMPLE, Ahead
from tests.worker.world import flow_of, look, settled_down, until


def nothing_back(_line: Any) -> None:
    raise AssertionError("nothing stands in line")


def no_matter() -> None:
    """Whoever is told that the number may have sunk."""


async def ends_every(seconds: float, ahead: Ahead, times: int = SAMPLE) -> None:
    for _ in range(times):
        await asyncio.sleep(seconds)
        ahead.ended()


@virtual_test
async def test_the_first_bodies_show_the_pace():
    ahead = Ahead(lambda: True, nothing_back, no_matter)
    await ends_every(0, ahead, SAMPLE - 1)
    assert ahead.tasks == 0
    ahead.ended()
    assert ahead.tasks > 0


@virtual_test
async def test_what_begins_within_a_moment_may_be_claimed():
    ahead = Ahead(lambda: True, nothing_back, no_matter)
    await ends_every(0.001, ahead)
    assert ahead.tasks == pytest.approx(LINE_S / 0.001, abs=1)
    await ends_every(0.01, ahead)
    assert ahead.tasks == pytest.approx(LINE_S / 0.01, abs=1)
    await ends_every(1, ahead)
    assert ahead.tasks == 0


@virtual_test
async def test_a_burst_is_no_pace():
    """All in the same instant: not more than twice as many again."""
    ahead = Ahead(lambda: True, nothing_back, no_matter)
    await ends_every(0, ahead)
    assert ahead.tasks == 2 * SAMPLE


@virtual_test
async def test_a_pause_lowers_it():
    ahead = Ahead(lambda: True, nothing_back, no_matter)
    await ends_every(0, ahead)
    await asyncio.sleep(1)
    assert ahead.tasks == 0


# --- in a worker -----------------------------------------------------------------------------


class Bodies:
    """Short ones, until one of them is told to wait."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.gate = asyncio.Event()

    def flow(self):
        @task
        async def body(context):
            self.ran.append(context["n"])
            if context.get("waits"):
                await self.gate.wait()

        return flow_of(body)

    async def run_short(self, runner: Runner, count: int = SAMPLE) -> None:
        flow = self.flow()
        await asyncio.gather(*(runner.execute(flow, {"n": -1}) for _ in range(count)))


@virtual_test
async def test_short_bodies_are_claimed_ahead_and_run_in_their_slots():
    bodies = Bodies()
    async with Runner("memory:", slots=2) as runner:
        with SlotWatch(runner) as held:
            await bodies.run_short(runner)
            assert runner.worker.credit > 2
            await bodies.run_short(runner, 200)
            held.assert_never_more_than(2)
        assert runner.worker._offers.offered > 2
        await asyncio.sleep(1)
        assert (runner.worker.credit, runner.worker._offers.offered) == (2, 2)


@virtual_test
async def test_what_must_wait_goes_back_and_runs_once():
    """No failure is counted; the line is the store's again, for whoever has a slot."""
    bodies = Bodies()
    async with Runner("memory:", slots=2) as runner:
        await bodies.run_short(runner)
        bodies.ran.clear()
        flow = bodies.flow()
        slow = [await runner.start(flow, {"n": n, "waits": True}) for n in range(2)]
        await until(lambda: len(bodies.ran) == 2)
        await bodies_ahead(runner)
        rest = [await runner.start(flow, {"n": n}) for n in range(2, 12)]
        await asyncio.sleep(2 * PATIENCE_S)
        assert sorted(runner.worker.holds) == sorted(f"run/{run.id}:body" for run in slow)
        seen = await look(rest[0], "body")
        assert (seen.status, seen.failures) == ("Ready", 0)
        bodies.gate.set()
        await asyncio.gather(*(run.result() for run in (*slow, *rest)))
        assert sorted(bodies.ran) == list(range(12))
        assert runner.worker.stuck == ()


async def bodies_ahead(runner: Runner) -> None:
    """As if it had been fast until now."""
    for _ in range(SAMPLE):
        runner.worker._ahead.ended()
    runner.worker.credit_changed()
    await settled_down()
    assert runner.worker.credit > 0


@virtual_test
async def test_what_is_cancelled_in_line_is_over():
    """It had not begun, so there is nothing to wait for."""
    bodies = Bodies()
    async with Runner("memory:", slots=1) as runner:
        flow = bodies.flow()
        slow = await runner.start(flow, {"n": 0, "waits": True})
        await until(lambda: bodies.ran)
        await bodies_ahead(runner)
        in_line = await runner.start(flow, {"n": 1})
        node = f"run/{in_line.id}:body"
        await until(lambda: node in runner.worker.attempts)
        await runner.client.send(CancelPromise(id=f"run/{in_line.id}"))
        await asyncio.sleep(60)
        assert (node in runner.worker.attempts, runner.worker.stuck) == (False, ())
        bodies.gate.set()
        await slow.result()
        assert bodies.ran == [0]


@virtual_test
async def test_who_serves_calls_claims_nothing_ahead():
    @task(rpc="double")
    async def doubles(context):
        return {"n": context["n"] * 2}

    bodies = Bodies()
    async with Runner("memory:", slots=2) as runner:
        runner.register(flow_of(doubles, name="calls"))
        await bodies.run_short(runner)
        assert runner.worker._ahead.tasks > 0
        assert runner.worker.credit == 2
