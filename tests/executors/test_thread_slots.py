import threading

import pytest

from layby.executors import PoolClosed, ThreadSlotPool
from tests.helpers.waiting import PATIENCE, eventually


def waiting_thread(pool, answers, name="waiter"):
    """Start a thread that waits for a slot, and return once it stands in line."""
    before = pool.waiting

    def wait():
        try:
            token = pool.acquire(PATIENCE)
            answers.append((name, token))
        except PoolClosed:
            answers.append((name, "closed"))

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: pool.waiting == before + 1)
    return thread


def test_a_slot_is_acquired_released_and_reclaimed():
    """As for coroutines, blocking."""
    pool = ThreadSlotPool(1)
    token = pool.acquire()
    assert token is not None
    assert token.is_held()
    assert token.release()
    assert not token.release()
    assert token.reclaim()
    assert token.reclaim()
    assert (pool.held, pool.free) == (1, 0)


def test_waiting_ends_after_the_timeout_and_leaves_the_line():
    """None for a new token, False for an old one."""
    pool = ThreadSlotPool(1)
    holder = pool.acquire()
    assert holder is not None
    assert pool.acquire(timeout=0.01) is None
    assert not pool.token().reclaim(timeout=0.01)
    assert pool.waiting == 0
    holder.release()
    assert pool.free == 1


def test_threads_are_served_in_the_order_they_came():
    """FIFO."""
    pool = ThreadSlotPool(1)
    holder = pool.acquire()
    assert holder is not None
    answers = []
    threads = [waiting_thread(pool, answers, name) for name in "abc"]
    order = []
    for expected in range(1, 4):
        holder.release()
        eventually(lambda expected=expected: len(answers) == expected)
        name, holder = answers[-1]
        order.append(name)
    assert order == ["a", "b", "c"]
    for thread in threads:
        thread.join(PATIENCE)


def test_closing_turns_waiters_away():
    """They raise PoolClosed at once."""
    pool = ThreadSlotPool(1)
    holder = pool.acquire()
    assert holder is not None
    answers = []
    thread = waiting_thread(pool, answers)
    pool.close()
    thread.join(PATIENCE)
    assert answers == [("waiter", "closed")]
    with pytest.raises(PoolClosed):
        pool.acquire()
    assert holder.release()


def test_a_lost_token_wakes_a_waiting_thread():
    """The collector nudges the oldest waiter."""
    pool = ThreadSlotPool(1)
    holder = pool.acquire()
    assert holder is not None
    answers = []
    thread = waiting_thread(pool, answers)
    del holder
    thread.join(PATIENCE)
    assert answers[0][1].is_held()
    assert pool.held == 1


def test_resize_serves_waiting_threads():
    """In use."""
    pool = ThreadSlotPool(1)
    holder = pool.acquire()
    answers = []
    thread = waiting_thread(pool, answers)
    pool.resize(2)
    thread.join(PATIENCE)
    assert answers[0][1].is_held()
    assert holder is not None
    assert pool.held == 2
