"""Waiting for room and waiting for idle: both must end when they should, and not before."""

import asyncio
import threading

import pytest

from layby.executors import CancellationSource, ThreadedTaskExecutor, ThreadedTaskExecutorConfig
from tests.helpers.waiting import PATIENCE, Gate, eventually, settled


@pytest.fixture
def make():
    made = []

    def build(**config):
        executor = ThreadedTaskExecutor(ThreadedTaskExecutorConfig(**config))
        made.append(executor)
        return executor

    yield build
    for executor in made:
        assert executor.shutdown(timeout=PATIENCE)


def start(executor):
    gate = Gate()
    assert executor.submit(gate).accepted
    gate.wait_until_started()
    return gate


def in_thread(call):
    """Run the call in a thread; the list gets its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("make_room", ["drain", "cancel_pending", "cancel", "token", "shutdown"])
def test_submit_wait_wakes_whenever_room_appears(make, make_room):
    """Every way in which room can appear wakes the one who waits for it."""
    executor = make(queue_capacity=1, overflow="block")
    if make_room == "drain":
        executor.submit(lambda: 1)
        executor.submit(lambda: 2)
        executor.wait_for_idle(PATIENCE)
    else:
        gate = start(executor)
        executor.submit(lambda: 2)
    thread, answers = in_thread(lambda: executor.submit_wait(lambda: 3, timeout=PATIENCE))
    eventually(lambda: len(executor._waiting_for_room))
    assert executor.metrics().rejected_count == 0
    source = CancellationSource()
    source.request_cancel()
    {
        "drain": executor.run_ready,
        "cancel_pending": executor.cancel_pending,
        "cancel": lambda: executor.cancel(2),
        "token": lambda: executor.run_ready(cancel_token=source.token()),
        "shutdown": lambda: executor.shutdown(timeout=0),
    }[make_room]()
    thread.join(PATIENCE)
    refused = "task executor is shutting down" if make_room == "shutdown" else ""
    assert answers[0].reason == refused
    assert answers[0].accepted is (not refused)
    if make_room != "drain":
        gate.open()


def test_submit_wait_that_runs_out_of_time_is_refused_once(make):
    """With the ordinary reason, one count and nobody left in the queue."""
    executor = make(overflow="block")
    gate = start(executor)
    refused = executor.submit_wait(lambda: 1, timeout=0.01)
    assert refused.reason == "task executor queue full"
    assert executor.metrics().rejected_count == 1
    assert len(executor._waiting_for_room) == 0
    gate.open()


def test_submit_wait_does_not_wait_where_waiting_is_not_wanted(make):
    """fail_fast fails fast, empty work is refused, dropping needs no room, room is taken."""
    executor = make(overflow="fail_fast")
    assert executor.submit_wait(None).reason == "task work must not be empty"
    gate = start(executor)
    assert executor.submit_wait(lambda: 1).reason == "task executor capacity exceeded"
    gate.open()
    dropper = make(overflow="drop_oldest", queue_capacity=1)
    gate = start(dropper)
    assert dropper.submit_wait(lambda: 1).accepted
    assert dropper.submit_wait(lambda: 2).accepted
    gate.open()


def test_every_waiting_submitter_gets_in_when_the_others_leave(make):
    """Twenty threads through one place: none is forgotten."""
    executor = make(overflow="block")
    threads = [
        in_thread(lambda: executor.submit_wait(lambda: 1, timeout=PATIENCE)) for _ in range(20)
    ]
    drained = 0

    def drain():
        nonlocal drained
        drained += len(executor.run_ready())
        return drained == 20

    eventually(drain)
    for thread, answers in threads:
        thread.join(PATIENCE)
        assert answers[0].accepted


def test_submit_async_waits_without_blocking_the_loop(make):
    """And is woken from the thread that makes room."""
    executor = make(overflow="block")
    gate = start(executor)

    async def scenario():
        waiting = asyncio.create_task(executor.submit_async(lambda: "late"))
        await settled()
        assert not waiting.done()
        gate.open()
        executor.wait_for_idle(PATIENCE)
        await asyncio.to_thread(executor.run_ready)
        async with asyncio.timeout(PATIENCE):
            return await waiting

    assert asyncio.run(scenario()).accepted
    assert executor.wait_for_idle(PATIENCE)
    assert executor.run_ready()[0].payload == "late"


def test_a_cancelled_submit_async_submits_nothing_and_passes_the_call_on(make):
    """The room it was called for goes to the next, even in the same turn of the loop."""
    executor = make(overflow="block")
    executor.submit(lambda: 1)
    assert executor.wait_for_idle(PATIENCE)

    async def scenario():
        first = asyncio.create_task(executor.submit_async(lambda: "first"))
        second = asyncio.create_task(executor.submit_async(lambda: "second"))
        await settled()
        executor.run_ready()  # calls the first
        first.cancel()
        async with asyncio.timeout(PATIENCE):
            answer = await second
        assert first.cancelled()
        return answer

    assert asyncio.run(scenario()).accepted
    assert executor.wait_for_idle(PATIENCE)
    assert [done.payload for done in executor.run_ready()] == ["second"]


def test_a_submitter_who_was_called_in_vain_keeps_its_place(make):
    """Somebody without patience took the room; the first in line is still the first."""
    executor = make(overflow="block")
    executor.submit(lambda: 1)
    assert executor.wait_for_idle(PATIENCE)

    async def scenario():
        first = asyncio.create_task(executor.submit_async(lambda: "first"))
        second = asyncio.create_task(executor.submit_async(lambda: "second"))
        await settled()
        executor.run_ready()  # calls the first
        assert executor.submit(lambda: "thief").accepted
        await settled()
        assert not first.done()
        assert executor.wait_for_idle(PATIENCE)
        executor.run_ready()
        await settled()
        assert (first.done(), second.done()) == (True, False)
        assert executor.wait_for_idle(PATIENCE)
        executor.run_ready()
        assert (await second).accepted

    asyncio.run(scenario())


@pytest.mark.parametrize("make_idle", ["finish", "cancel_pending", "cancel", "token", "shutdown"])
def test_wait_for_idle_misses_no_way_of_becoming_idle(make_idle):
    """Upstream forgets to notify when a token or a shutdown empties the queue."""
    # No worker, so that the pending task is the last thing between the executor and idle.
    executor = ThreadedTaskExecutor(
        ThreadedTaskExecutorConfig(queue_capacity=3, shutdown_policy="cancel")
    )
    gate = start(executor)
    executor.submit(lambda: 2)
    thread, answers = in_thread(lambda: executor.wait_for_idle(PATIENCE))
    eventually(lambda: len(executor._waiting_for_idle))
    with executor._lock:  # the running task is taken out of the picture, the pending one stays
        executor._state.active -= 1
    source = CancellationSource()
    source.request_cancel()
    closer = None
    if make_idle == "finish":
        with executor._lock:
            executor._state.active += 1
        gate.open()
    elif make_idle == "shutdown":
        closer = threading.Thread(target=executor.shutdown)
        closer.start()
    else:
        {
            "cancel_pending": executor.cancel_pending,
            "cancel": lambda: executor.cancel(2),
            "token": lambda: executor.run_ready(cancel_token=source.token()),
        }[make_idle]()
    thread.join(PATIENCE)
    assert answers == [True]
    if make_idle != "finish":
        with executor._lock:
            executor._state.active += 1
        gate.open()
    if closer:
        closer.join(PATIENCE)
    assert executor.shutdown(PATIENCE)


def test_wait_for_idle_says_when_time_ran_out(make):
    """False, and it can be asked again."""
    executor = make()
    gate = start(executor)
    assert not executor.wait_for_idle(timeout=0.01)
    gate.open()
    assert executor.wait_for_idle(PATIENCE)
    assert len(executor._waiting_for_idle) == 0
