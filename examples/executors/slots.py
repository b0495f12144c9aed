"""A slot pool by itself, shared by coroutines and threads: python examples/executors/slots.py"""

import asyncio

from layby.executors import SlotPool, ThreadSlotPool


async def main() -> None:
    pool = SlotPool(1)
    token = await pool.acquire()
    print("held:", token.is_held(), "free:", pool.free)

    waiting = asyncio.create_task(pool.acquire())  # first come, first served
    await asyncio.sleep(0)
    print("released:", token.release(), "and again:", token.release())
    async with await waiting:
        print("the waiter has it; free:", pool.free)

    threads = ThreadSlotPool.sharing(pool)  # the same slots, for plain functions

    def in_a_thread() -> str:
        with threads.token():
            return f"a thread holds it; free: {pool.free}"

    print(await asyncio.to_thread(in_a_thread))

    lost = await pool.acquire()
    del lost  # the slot comes back all the same
    print("free at the end:", pool.free)


if __name__ == "__main__":
    asyncio.run(main())
