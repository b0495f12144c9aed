"""Measures the executors beside bare loops of the same run: python benchmarks/bench_executors.py

Each row runs the reference and ours in turn, several times, and compares the best of each: the
best is what the code costs, the rest is what else the machine was doing. Rows with one thread are
measured in processor time, for the same reason; the row with threads by the clock on the wall.
"""

import asyncio
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    SlotPool,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)

ROUNDS = 25
TASKS = 10_000
BATCH = 50
PAIRS = 100_000


def noop():
    pass


async def noop_async():
    pass


def timed(run, count):
    clock = time.perf_counter if run in (thread_pool, threaded) else time.thread_time
    started = clock()
    run()
    return (clock() - started) / count


def deque_of_callables():
    queue = deque()
    for _ in range(TASKS // BATCH):
        for _ in range(BATCH):
            queue.append(noop)
        while queue:
            queue.popleft()()


def deterministic():
    executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=64))
    submit = executor.submit
    for _ in range(TASKS // BATCH):
        for _ in range(BATCH):
            submit(noop)
        executor.run_ready()
    assert executor.metrics().completed_count == TASKS


def deque_all_at_once():
    queue = deque()
    for _ in range(TASKS):
        queue.append(noop)
    while queue:
        queue.popleft()()


def deterministic_all_at_once():
    executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=TASKS))
    submit = executor.submit
    for _ in range(TASKS):
        submit(noop)
    assert len(executor.run_ready()) == TASKS


def thread_pool():
    with ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(noop) for _ in range(TASKS)]
        for future in futures:
            future.result()


def threaded():
    config = ThreadedTaskExecutorConfig(max_workers=2, max_inflight=2, queue_capacity=TASKS)
    with ThreadedTaskExecutor(config) as executor:
        drained = 0
        for _ in range(TASKS):
            executor.submit(noop)
            drained += len(executor.run_ready())
        executor.wait_for_idle()
        drained += len(executor.run_ready())
        assert drained == TASKS


def semaphore_tasks():
    async def scenario():
        semaphore = asyncio.Semaphore(64)

        async def body():
            async with semaphore:
                await noop_async()

        await asyncio.gather(*[asyncio.create_task(body()) for _ in range(TASKS)])

    asyncio.run(scenario())


def asynchronous():
    async def scenario():
        config = TaskExecutorConfig(max_inflight=64, queue_capacity=TASKS)
        executor = AsyncTaskExecutor(config)
        for _ in range(TASKS):
            executor.submit(noop_async)
        await executor.wait_for_idle()
        assert len(executor.run_ready()) == TASKS

    asyncio.run(scenario())


def semaphore_pairs():
    async def scenario():
        semaphore = asyncio.Semaphore(4)
        for _ in range(PAIRS):
            await semaphore.acquire()
            semaphore.release()

    asyncio.run(scenario())


def slot_pairs():
    async def scenario():
        pool = SlotPool(4)
        for _ in range(PAIRS):
            token = await pool.acquire()
            token.release()

    asyncio.run(scenario())


BARS = [
    # what, reference, ours, operations, how many times slower ours may be
    (
        "DeterministicTaskExecutor, bounded batches of 50",
        deque_of_callables,
        deterministic,
        TASKS,
        15,
    ),
    (
        "DeterministicTaskExecutor, 10,000 at once",
        deque_all_at_once,
        deterministic_all_at_once,
        TASKS,
        15,
    ),
    ("ThreadedTaskExecutor(2) / ThreadPoolExecutor(2)", thread_pool, threaded, TASKS, 1.0),
    ("AsyncTaskExecutor / create_task + Semaphore", semaphore_tasks, asynchronous, TASKS, 2.5),
    ("SlotPool acquire + release / Semaphore", semaphore_pairs, slot_pairs, PAIRS, 2.0),
]


def measure(reference, ours, operations):
    pairs = [(timed(reference, operations), timed(ours, operations)) for _ in range(ROUNDS)]
    typical = statistics.median(second / first for first, second in pairs)
    return min(first for first, _ in pairs), min(second for _, second in pairs), typical


def parked_bytes(tasks=100_000):
    """What one parked task costs in memory, body and timerless wait included."""

    async def scenario():
        config = TaskExecutorConfig(max_inflight=64, queue_capacity=tasks)
        executor = AsyncTaskExecutor(config, keep_completions=False)
        gates = []

        async def body(token):
            token.release()
            gate = asyncio.get_running_loop().create_future()
            gates.append(gate)
            await gate
            await token.reclaim()

        tracemalloc.start()
        for _ in range(tasks):
            executor.submit(body, parks=True)
        while executor.parked_count < tasks:  # noqa: ASYNC110 - measured, not waited for
            await asyncio.sleep(0)
        cost = tracemalloc.get_traced_memory()[0] / tasks
        tracemalloc.stop()
        started = time.perf_counter()
        for gate in gates:
            gate.set_result(None)
        await executor.wait_for_idle()
        return cost, (time.perf_counter() - started) / tasks

    return asyncio.run(scenario())


def main():
    print(
        f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, best of {ROUNDS}"
    )
    missed = 0
    for what, reference, ours, operations, bar in BARS:
        bare, measured, typical = measure(reference, ours, operations)
        ratio = measured / bare
        missed += ratio > bar
        print(
            f"{'PASS' if ratio <= bar else 'MISS'}  {what:50} {measured * 1e6:7.3f} us, "
            f"reference {bare * 1e6:7.3f} us, ratio {ratio:5.2f} "
            f"(bar {bar}; median of pairs {typical:.2f})"
        )
    cost, wake = parked_bytes()
    print(
        f"      100,000 parked tasks: {cost:.0f} bytes each; resumed and ended in "
        f"{wake * 1e6:.1f} us each"
    )
    return missed


if __name__ == "__main__":
    sys.exit(main())
