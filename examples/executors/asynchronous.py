"""Many waits, few slots: python examples/executors/asynchronous.py

Ten tasks share two slots. Each waits for its answer parked, so the slots serve whoever can run.
"""

# ruff: noqa: ASYNC110 - a script, which speaks by printing

import asyncio

from layby.executors import AsyncTaskExecutor, SlotToken, TaskExecutorConfig


async def main() -> None:
    executor = AsyncTaskExecutor(TaskExecutorConfig(max_inflight=2, queue_capacity=100))
    answers = [asyncio.get_running_loop().create_future() for _ in range(10)]

    async def ask(number: int, token: SlotToken) -> str:
        token.release()  # park: the slot is free for others
        answer = await answers[number]
        await token.reclaim()  # stand in line with everyone else
        return f"{number} heard {answer}"  # the slot is held again, the locals are intact

    for number in range(10):
        executor.submit(lambda token, number=number: ask(number, token), parks=True)
    while executor.parked_count < 10:
        await asyncio.sleep(0)
    print(f"all ten are parked, {executor.pool.free} of {executor.pool.size} slots are free")

    print("another task runs at once:", executor.submit(lambda: "hello").accepted)
    for number, answer in enumerate(answers):
        answer.set_result(f"answer {number}")
    await executor.wait_for_idle()
    for done in executor.run_ready():
        print(done.task_id, done.payload)
    await executor.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
