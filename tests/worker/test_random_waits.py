"""Bodies that wait, fail, time out and are cancelled at random: the books stay straight."""

import asyncio
import random

import pytest

from layby import (
    Context,
    LaybyError,
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runner,
    task,
)
from layby.core.invariants import check
from layby.testing import SlotWatch, virtual_test
from tests.helpers.workers import flow_of, settled_down

SEEDS = range(12)


class Body:
    """A script drawn once for each try, so that a life that follows a crash plays it again."""

    def __init__(self, seed):
        self._seed = seed

    async def __call__(self, context, handle):
        chance = random.Random(f"{self._seed}-{context['n']}-{handle.try_number}")
        for step in range(chance.randint(0, 6)):
            assert handle.is_slot_held()
            await self.move(chance, handle, step)

    async def move(self, chance, handle, step):
        move = chance.choice(
            [self.work, self.sleep, self.poll, self.wait, self.together, self.impatient, self.fail]
        )
        await move(chance, handle, f"{move.__name__}{step}")

    async def work(self, chance, handle, key):
        await asyncio.sleep(chance.random() * 3)

    async def sleep(self, chance, handle, key):
        await handle.sleep(chance.random() * 20, key=key)

    async def poll(self, chance, handle, key):
        answers = iter([False] * chance.randint(0, 4))
        await handle.defer_until(lambda: next(answers, True), poll_interval=1, key=key)

    async def wait(self, chance, handle, key):
        try:
            await handle.wait_for(f"p{chance.randrange(5)}", timeout=chance.random() * 40, key=key)
        except LaybyError:
            await handle.yield_slot()

    async def together(self, chance, handle, key):
        waits = (handle.sleep(chance.random() * 9, key=f"{key}.{n}") for n in range(3))
        await asyncio.gather(*waits)

    async def impatient(self, chance, handle, key):
        try:
            async with asyncio.timeout(chance.random() * 5):
                await handle.sleep(chance.random() * 10, key=key)
        except TimeoutError:
            assert handle.is_slot_held()

    async def fail(self, chance, handle, key):
        if chance.random() < 0.5:
            raise OSError(key)


def is_meant(number: int, end: Context | BaseException) -> bool:
    """Not an assertion of the body: its run would fail, too."""
    if isinstance(end, RunFailed):
        return end.failed["works"].startswith(("OSError: ", "TaskTimeout: "))
    return isinstance(end, RunCancelled) or (isinstance(end, Context) and end["n"] == number)


@pytest.mark.parametrize("seed", SEEDS)
@virtual_test
async def test_slots_and_store_are_straight_whatever_bodies_do(seed):
    """Never more than N hold slots, none is left, every run has an end, no invariant is broken."""
    chance = random.Random(seed)
    body = Body(seed)

    @task(timeout=8, retry=RetryPolicy(max_attempts=3, delay=1))
    async def works(context, handle):
        await body(context, handle)

    slots = chance.choice([1, 2, 5])
    async with Runner("memory:", slots=slots, max_parked=chance.choice([3, 1000])) as runner:
        with SlotWatch(runner) as watch:
            runs = [await runner.start(flow_of(works), {"n": n}) for n in range(40)]
            ends = asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
            for turn in range(5):
                await asyncio.sleep(chance.random() * 10)
                await runner.resolve(f"p{turn}", turn)
                await chance.choice(runs).cancel()
            found = await ends
            watch.assert_never_more_than(slots)
            await settled_down()
            watch.assert_none_held()
        assert [each for each in enumerate(found) if not is_meant(*each)] == []
        assert (runner.worker.attempts, runner.worker.stuck) == ({}, ())
        assert runner.worker.credit.free == slots
        assert runner.worker.credit.reserved == 0
        assert runner.worker.credit.parked == 0
        assert list(runner.worker._wheel) == []
        assert check(runner.engine._store.dump(), runner.now()) == []
