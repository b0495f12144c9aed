"""Runs that start runs, on one slot: python examples/child_runs.py

A trip books its parts as child runs, side by side: each is a workflow of its own, with an id, tasks
and retries. One part fails; the trip is run again, and what was booked is not booked twice.
"""

import asyncio

from layby import Context, RunFailed, Runner, TaskHandle, Workflow, task

PARTS = ("flight", "hotel", "car")
booked: list[str] = []
sold_out = {"car"}


@task
async def reserve(context: Context, handle: TaskHandle) -> None:
    await handle.sleep(0.2)  # all three wait at the same time, on one slot
    if context["part"] in sold_out:
        raise LookupError(f"no {context['part']} left")
    booked.append(context["part"])


@task(dependencies=[reserve])
async def confirm(context: Context) -> None:
    context["code"] = f"{context['part'].upper()}-{context['trip']}"


booking = Workflow("booking", tasks=[reserve, confirm])


@task
async def book(context: Context, handle: TaskHandle) -> None:
    children = [
        await handle.start(booking, {"part": part, "trip": context["trip"]}, key=part)
        for part in PARTS
    ]
    try:
        context["codes"] = [(await child.result())["code"] for child in children]
    except RunFailed as failed:
        raise RuntimeError(f"the trip is not booked: {failed}") from None


trip = Workflow("trip", tasks=[book])


async def main() -> None:
    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(trip, {"trip": 7}, run_id="trip-7")
        try:
            await run.result()
        except RunFailed:
            for child in (await run.status()).children:
                print(f"{child.run_id}: {child.state}")
        sold_out.clear()
        await run.rerun()
        print(", ".join((await run.result())["codes"]))
        print(f"booked: {', '.join(sorted(booked))}")


if __name__ == "__main__":
    asyncio.run(main())
