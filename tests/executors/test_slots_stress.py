"""Seeded storms: whatever happens, never more than N held, and all N free at the end."""

import asyncio
import random
import threading

import pytest

from layby.executors import SlotPool, ThreadSlotPool
from tests.helpers.waiting import PATIENCE

SLOTS = 7


class Census:
    """Counts holders by what the code under a slot sees, not by what the pool believes."""

    def __init__(self, pool):
        self.pool = pool
        self.inside = 0
        self.most = 0

    def enter(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        assert self.inside <= SLOTS
        assert self.pool.held <= SLOTS

    def leave(self):
        self.inside -= 1


@pytest.mark.parametrize("seed", range(12))
def test_a_thousand_coroutines_acquire_release_reclaim_and_are_cancelled(seed):
    """At every step held <= N, at the end N free, and grants in the order of asking."""
    chance = random.Random(seed)

    async def scenario():
        pool = SlotPool(SLOTS)
        census = Census(pool)
        asked, granted, gave_up = [], [], set()

        async def hold(token, number):
            at_once = pool.free > 0 and not pool.waiting
            ticket = (number, len(asked), at_once)
            asked.append(ticket)
            try:
                await token.reclaim()
            except asyncio.CancelledError:
                gave_up.add(ticket)
                raise
            granted.append(ticket)
            census.enter()
            try:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                    assert pool.held <= SLOTS
            finally:
                census.leave()

        async def life(number):
            token = pool.token()
            for _ in range(chance.randrange(1, 5)):
                try:
                    await hold(token, number)
                    if chance.randrange(4) == 0:
                        raise RuntimeError("the body broke")
                    if chance.randrange(4) == 0:
                        token = pool.token()  # lost while held: the collector returns it
                finally:
                    token.release()
                await asyncio.sleep(0)

        lives = [asyncio.create_task(life(number)) for number in range(1000)]
        while not all(task.done() for task in lives):
            for victim in chance.sample(lives, 3):
                if chance.random() < 0.2:
                    victim.cancel()
            if chance.random() < 0.05:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        ends = await asyncio.gather(*lives, return_exceptions=True)
        assert [each for each in ends if isinstance(each, AssertionError)] == []
        lives.clear()
        assert (pool.free, pool.waiting, census.inside) == (SLOTS, 0, 0)
        assert census.most == SLOTS
        waited = [ticket for ticket in granted if not ticket[2]]
        assert len(waited) > 100
        assert waited == [ticket for ticket in asked if ticket in set(waited)]
        assert {*granted, *gave_up} == set(asked)

    async def limited():
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())


@pytest.mark.parametrize("seed", range(6))
def test_threads_acquire_release_reclaim_and_give_up(seed):
    """The same for threads: timeouts instead of cancels, lost tokens, and exceptions."""
    pool = ThreadSlotPool(SLOTS)
    guard = threading.Lock()
    inside = most = 0
    wrong = []

    def life(number):
        nonlocal inside, most
        chance = random.Random(seed * 1000 + number)
        for _ in range(60):
            token = pool.acquire(chance.choice([0, 0.0005, PATIENCE]))
            if token is None:
                continue
            for _ in range(chance.randrange(1, 4)):
                with guard:
                    inside += 1
                    most = max(most, inside)
                    if inside > SLOTS or pool.held > SLOTS:
                        wrong.append(inside)
                with guard:
                    inside -= 1
                token.release()
                if not token.reclaim(chance.choice([0.0005, PATIENCE])):
                    break
            if chance.random() < 0.5:
                token.release()
            del token  # held or not: the collector has to know

    threads = [threading.Thread(target=life, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread was never woken"
    assert wrong == []
    assert (pool.free, pool.waiting) == (SLOTS, 0)


@pytest.mark.parametrize("seed", range(6))
def test_threads_and_coroutines_share_one_pool(seed):
    """Slots cross between the loop and threads without one being lost."""
    pool = SlotPool(3)
    shared = ThreadSlotPool.sharing(pool)

    def thread_life(number):
        chance = random.Random(seed * 1000 + number)
        for _ in range(40):
            token = shared.acquire(PATIENCE)
            assert token is not None
            if chance.random() < 0.7:
                token.release()
            del token

    async def coroutine_life(number):
        chance = random.Random(seed * 2000 + number)
        for _ in range(40):
            token = await pool.acquire()
            await asyncio.sleep(0)
            if chance.random() < 0.7:
                token.release()
            del token

    async def scenario():
        threads = [asyncio.to_thread(thread_life, number) for number in range(4)]
        async with asyncio.timeout(60):
            await asyncio.gather(*threads, *[coroutine_life(number) for number in range(20)])

    asyncio.run(scenario())
    assert (pool.free, pool.waiting) == (3, 0)
