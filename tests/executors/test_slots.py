import asyncio
import gc
import threading
from typing import Any

import pytest

from layby.executors import PoolClosed, SlotPool, ThreadSlotPool
from tests.helpers.waiting import PATIENCE, settled


def run(scenario):
    """Run a scenario on a fresh loop, with a limit that means failure."""

    async def limited():
        async with asyncio.timeout(PATIENCE):
            return await scenario()

    return asyncio.run(limited())


def test_a_slot_is_acquired_released_and_reclaimed():
    """release says whether there was something to release; reclaim of a held slot is a no-op."""

    async def scenario():
        pool = SlotPool(1)
        token = await pool.acquire()
        assert token.is_held()
        assert (pool.held, pool.free, pool.size) == (1, 0, 1)
        assert token.release()
        assert not token.release()
        assert not token.is_held()
        assert pool.free == 1
        await token.reclaim()
        await token.reclaim()
        assert (token.is_held(), pool.held) == (True, 1)

    run(scenario)


def test_first_come_first_served_for_new_and_returning():
    """Resumed tasks compete on equal footing with new ones."""

    async def scenario():
        pool = SlotPool(1)
        holder = await pool.acquire()
        parked = await_token = pool.token()
        order = []

        async def take(name, token):
            await token.reclaim()
            order.append(name)
            token.release()

        tasks = []
        for name, token in [
            ("new", pool.token()),
            ("resumed", await_token),
            ("newer", pool.token()),
        ]:
            tasks.append(asyncio.create_task(take(name, token)))
            await settled(2)
        assert pool.waiting == 3
        holder.release()
        await asyncio.gather(*tasks)
        assert order == ["new", "resumed", "newer"]
        assert (pool.free, pool.waiting, parked.is_held()) == (1, 0, False)

    run(scenario)


def test_nobody_slips_in_between_a_release_and_the_waiter():
    """A freed slot belongs to the waiter at once, not at its next turn."""

    async def scenario():
        pool = SlotPool(1)
        holder = await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        holder.release()
        barger = asyncio.create_task(pool.acquire())
        assert pool.held == 1
        token = await waiter
        assert not barger.done()
        token.release()
        assert (await barger).is_held()

    run(scenario)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_waiter_cancelled_in_the_turn_it_is_granted_leaks_nothing(cancel_first):
    """Whichever of the two comes first."""

    async def scenario():
        pool = SlotPool(1)
        holder = await pool.acquire()
        doomed = asyncio.create_task(pool.acquire())
        heir = asyncio.create_task(pool.acquire())
        await settled(2)
        if cancel_first:
            doomed.cancel()
            holder.release()
        else:
            holder.release()
            doomed.cancel()
        token = await heir
        assert doomed.cancelled()
        assert (pool.held, pool.waiting) == (1, 0)
        token.release()
        assert pool.free == 1

    run(scenario)


def test_a_cancelled_waiter_leaves_the_line():
    """It keeps no place and no memory."""

    async def scenario():
        pool = SlotPool(1)
        holder = await pool.acquire()
        for _ in range(100):
            waiter = asyncio.create_task(pool.acquire())
            await settled(2)
            waiter.cancel()
            await settled(2)
        assert pool.waiting == 0
        holder.release()
        assert pool.free == 1

    run(scenario)


def test_leaving_the_block_returns_the_slot_whatever_happened():
    """By the end, by an exception, and not twice."""

    async def scenario():
        pool = SlotPool(1)
        async with await pool.acquire() as token:
            assert token.is_held()
        assert pool.free == 1
        with pytest.raises(RuntimeError, match="boom"):  # noqa: PT012 - the block is the point
            async with pool.token() as token:
                assert pool.free == 0
                raise RuntimeError("boom")
        assert pool.free == 1
        async with pool.token() as token:
            token.release()
        assert pool.free == 1

    run(scenario)


def test_a_lost_token_returns_its_slot_and_wakes_the_waiter():
    """Also when nobody touches the pool afterwards."""

    async def scenario():
        pool = SlotPool(1)
        token = await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        del token
        assert (await waiter).is_held()
        assert pool.held == 1

    run(scenario)
    gc.collect()


def test_a_lost_token_that_was_released_returns_nothing():
    """Exactly once means not twice."""

    async def scenario():
        pool = SlotPool(2)
        keep, lose = await pool.acquire(), await pool.acquire()
        lose.release()
        del lose
        gc.collect()
        assert (pool.held, pool.free) == (1, 1)
        assert keep.is_held()

    run(scenario)


def test_a_token_lost_in_another_thread_wakes_the_loop():
    """The collector runs where it pleases."""

    async def scenario():
        pool = SlotPool(1)
        box = [await pool.acquire()]
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        thread = threading.Thread(target=box.clear)
        thread.start()
        assert (await waiter).is_held()
        thread.join()
        assert pool.held == 1

    run(scenario)


def test_the_collector_never_waits_for_the_lock():
    """It may have interrupted the very code that holds it; the holder then does its work."""

    async def scenario():
        pool = SlotPool(2)
        lost, kept = await pool.acquire(), await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        with pool.ledger._lock:
            del lost  # would deadlock here
        await settled()
        assert not waiter.done()  # nobody has passed by yet
        kept.release()  # the holder of the lock looks at the marks afterwards
        assert (await waiter).is_held()
        assert (pool.held, pool.free) == (1, 1)

    run(scenario)


class InterruptedLock:
    """A lock under which, once, the collector strikes just before it is let go."""

    def __init__(self, strike):
        self._lock = threading.Lock()
        self._strikes = [strike]

    def acquire(self, *args, **kwargs):
        return self._lock.acquire(*args, **kwargs)

    def release(self):
        if self._strikes:
            self._strikes.pop()()
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_error):
        self.release()


@pytest.mark.parametrize("step", ["release", "request", "withdraw", "resize"])
def test_whoever_held_the_lock_does_the_collector_s_work(step):
    """A token lost in the middle of any step is given on by that step, with nobody else's help."""

    async def scenario():
        pool = SlotPool(2)
        lost, kept = [await pool.acquire()], await pool.acquire()
        waiters: list[asyncio.Task[Any]] = [asyncio.create_task(pool.acquire()) for _ in range(3)]
        await settled(2)
        ledger = pool.ledger
        ledger._lock = InterruptedLock(lost.clear)  # pyright: ignore[reportAttributeAccessIssue]
        if step == "release":
            kept.release()
            assert pool.waiting == 1  # two served by now, not when somebody next looks
        elif step == "request":
            waiters.append(asyncio.create_task(pool.token()._wait_in_line()))
        elif step == "withdraw":
            waiters.pop().cancel()
        else:
            pool.resize(2)
        await settled()
        served = 2 if step == "release" else 1
        assert [waiter.done() for waiter in waiters].count(True) == served
        assert all(waiter.done() for waiter in waiters[:served])
        for waiter in waiters:
            waiter.cancel()

    run(scenario)


def test_resize_up_serves_waiters_and_resize_down_waits_for_slots_to_come_back():
    """In use, and nothing is taken from anyone."""

    async def scenario():
        pool = SlotPool(1)
        tokens = [await pool.acquire()]
        waiters = [asyncio.create_task(pool.acquire()) for _ in range(3)]
        await settled(2)
        pool.resize(3)
        tokens += [await waiters[0], await waiters[1]]
        assert (pool.size, pool.held, pool.waiting) == (3, 3, 1)
        pool.resize(1)
        assert (pool.held, pool.free) == (3, 0)
        tokens.pop().release()
        tokens.pop().release()
        await settled()
        assert not waiters[2].done()
        tokens.pop().release()
        assert (await waiters[2]).is_held()
        assert pool.held == 1

    run(scenario)


def test_a_pool_has_at_least_one_slot():
    """Fewer would be a deadlock."""
    with pytest.raises(ValueError, match="at least one slot, got 0"):
        SlotPool(0)
    with pytest.raises(ValueError, match="at least one slot, got -1"):
        SlotPool(1).resize(-1)


def test_closing_turns_waiters_and_newcomers_away_and_holders_may_finish():
    """PoolClosed for whoever waits or comes; release still works."""

    async def scenario():
        pool = SlotPool(1)
        token = await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        pool.close()
        assert pool.closed
        with pytest.raises(PoolClosed):
            await waiter
        with pytest.raises(PoolClosed):
            await pool.acquire()
        assert token.is_held()
        assert token.release()
        with pytest.raises(PoolClosed):
            await token.reclaim()
        assert (pool.held, pool.waiting) == (0, 0)

    run(scenario)


def test_one_token_waits_in_one_place():
    """Two waits with one token would be one slot for two; it is an error, and harmless."""

    async def scenario():
        pool = SlotPool(1)
        holder = await pool.acquire()
        token = pool.token()
        first = asyncio.create_task(token.reclaim())
        await settled(2)
        with pytest.raises(RuntimeError, match="already waiting"):
            await token.reclaim()
        holder.release()
        await first
        assert token.is_held()

    run(scenario)


def test_a_waiter_of_a_closed_loop_does_not_swallow_a_slot():
    """It can never run again, so the next one gets the slot."""
    pool = SlotPool(1)
    threads = ThreadSlotPool.sharing(pool)
    holder = threads.acquire()
    assert holder is not None
    loop = asyncio.new_event_loop()
    forgotten = loop.create_task(pool.acquire())
    loop.run_until_complete(settled(2))
    loop.close()
    assert pool.waiting == 1
    holder.release()
    assert (pool.held, pool.waiting) == (0, 0)
    forgotten._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
    del forgotten
    gc.collect()


def test_threads_and_coroutines_stand_in_one_line():
    """A pool for threads can share the slots of a pool for coroutines."""

    async def scenario():
        pool = SlotPool(1)
        threads = ThreadSlotPool.sharing(pool)
        token = await pool.acquire()
        order = []

        def in_thread():
            with threads.token():
                order.append("thread")

        thread = threading.Thread(target=in_thread)
        thread.start()
        while pool.waiting < 1:  # noqa: ASYNC110 - until the thread stands in line
            await asyncio.sleep(0)
        waiter = asyncio.create_task(pool.acquire())
        await settled(2)
        token.release()
        async with await waiter:
            order.append("coroutine")
        thread.join()
        assert order == ["thread", "coroutine"]
        assert pool.free == 1

    run(scenario)
