"""A report that takes the next task on its way: only for a slot that nothing else claims."""

import asyncio

from layby import Context, Runner, Workflow, task


def test_settling_a_run_takes_no_task_for_a_slot_that_is_held():
    """Concluding a run frees no slot, so what it takes would wait in line, out of reach of others.

    The last run must stay ready for any worker until a slot is free for it.
    """
    asyncio.run(conclude_one_of_four_runs_on_two_slots())


async def conclude_one_of_four_runs_on_two_slots():
    gates = {name: asyncio.Event() for name in "abcd"}

    @task
    async def hold(context: Context) -> None:
        await gates[context["name"]].wait()

    flow = Workflow("hold", tasks=[hold])
    async with Runner("memory:", slots=2) as runner:
        runs = [await runner.start(flow, {"name": name}, run_id=name) for name in gates]
        gates["a"].set()
        await runs[0].result(timeout=30)
        await runs[0].status()  # answered after whatever the conclusion has taken
        assert sorted(runner.worker.attempts) == ["run/b:hold", "run/c:hold"]
        assert (await runs[3].status()).tasks["hold"].status == "Ready"
        for gate in gates.values():
            gate.set()
        for run in runs:
            await run.result(timeout=30)
