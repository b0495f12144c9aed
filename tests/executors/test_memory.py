"""Memory stays bounded when a user never drains, and parked work is cheap."""

import asyncio
import gc
import threading
import tracemalloc

import pytest

from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    HealthEventSink,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from tests.helpers.waiting import PATIENCE, settled

SUBMITS = 200_000
TRACED = 10_000
WARM_UP = 2_000
CAPACITY = 64
BOUND = 64 * 1024  # bytes; a place in a list for each submit that is traced would be more
RESIDENT_BOUND = 4 * 1024 * 1024  # a place in a list and an entry of 32 bytes would be twice that


def grown_by(action):
    """Say how many bytes the action left behind."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        return after - before
    finally:
        tracemalloc.stop()


def storm(executor, submits):
    submit = executor.submit
    for _ in range(submits):
        submit(noop)


def noop():
    pass


def prepared(kind, overflow, sink=None):
    if kind == "deterministic":
        executor = DeterministicTaskExecutor(
            TaskExecutorConfig(max_inflight=CAPACITY, overflow=overflow)
        )
    else:
        executor = ThreadedTaskExecutor(
            ThreadedTaskExecutorConfig(
                max_workers=2, max_inflight=2, queue_capacity=CAPACITY - 2, overflow=overflow
            )
        )
    executor.set_health_event_sink(sink)
    storm(executor, WARM_UP)  # whatever is made once has been made now
    executor.wait_for_idle(PATIENCE)
    return executor


@pytest.mark.parametrize("overflow", ["drop_oldest", "reject"])
@pytest.mark.parametrize("kind", ["deterministic", "threaded"])
def test_many_submits_that_nobody_drains_grow_nothing(kind, overflow):
    """A few thousand here, counted to the byte, reject events included; far more below."""
    executor = prepared(kind, overflow, HealthEventSink())
    assert grown_by(lambda: storm(executor, TRACED)) < BOUND
    metrics = executor.metrics()
    assert metrics.queue_depth + metrics.completed_backlog_depth <= CAPACITY
    executor.shutdown(PATIENCE)


def test_very_many_submits_that_nobody_drains_grow_nothing():
    """Measured by the process itself, since tracing so many allocations takes long."""
    executor = prepared("threaded", "reject")
    before = resident_bytes()
    storm(executor, SUBMITS)
    assert resident_bytes() - before < RESIDENT_BOUND
    metrics = executor.metrics()
    assert metrics.completed_backlog_depth == CAPACITY
    assert metrics.submitted_count + metrics.rejected_count == SUBMITS + WARM_UP
    executor.shutdown(PATIENCE)


def resident_bytes():
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - not a file in any sense
        return int(statm.read().split()[1]) * 4096


def test_an_undrained_async_executor_grows_nothing():
    """Refused submits leave no job, no task and no place in line behind."""

    async def scenario():
        executor = AsyncTaskExecutor(
            TaskExecutorConfig(max_inflight=2, queue_capacity=CAPACITY - 2)
        )
        storm(executor, 1_000)
        await executor.wait_for_idle()
        grown = grown_by(lambda: storm(executor, TRACED))
        assert grown < BOUND
        assert executor.metrics().completed_backlog_depth == CAPACITY
        assert len(executor._jobs) == executor.pool.waiting == 0

    asyncio.run(scenario())


def test_a_parked_task_costs_little():
    """A hundred thousand of them have to fit in a worker: less than 2.5 kB each, body included."""

    async def scenario():
        executor = AsyncTaskExecutor(
            TaskExecutorConfig(max_inflight=4, queue_capacity=10_000), keep_completions=False
        )

        async def body(token):
            token.release()
            gate = asyncio.get_running_loop().create_future()
            gates.append(gate)
            await gate
            await token.reclaim()

        gates = []
        tasks = 5_000
        gc.collect()
        tracemalloc.start()
        for _ in range(tasks):
            assert executor.submit(body, parks=True).accepted
        while executor.parked_count < tasks:
            await settled()
        per_task = tracemalloc.get_traced_memory()[0] / tasks
        tracemalloc.stop()
        assert per_task < 2_500, per_task
        for gate in gates:
            gate.set_result(None)
        assert await executor.wait_for_idle(PATIENCE)
        assert executor.metrics().completed_count == tasks

    asyncio.run(scenario())


def test_no_thread_is_left_after_shutdown():
    """Workers end with their executor."""
    before = threading.active_count()
    with ThreadedTaskExecutor(ThreadedTaskExecutorConfig(max_workers=4, max_inflight=4)):
        assert threading.active_count() == before + 4
    assert threading.active_count() == before
