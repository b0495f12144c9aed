"""A report that takes the next task on its way: only for a slot that nothing else claims."""

import asyncio

from layby import Context, Runner, Workflow, task
from layby.core.commands import GetPromise
from layby.core.queries import ExplainPromise
from layby.core.replies import Explanation, PromiseData
from tests.helpers.workers import until


def test_what_was_claimed_ahead_goes_back_when_no_slot_comes_free():
    """The last run is ready for any worker soon again, and keeps its place in the queue."""
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
        await until(lambda: sorted(runner.worker.attempts) == ["run/b:hold", "run/c:hold"])
        async with asyncio.timeout(60):
            while (last := (await runs[3].status()).tasks["hold"]).status != "Ready":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (last.try_number, last.failures) == (0, 0)
        found = (await runner.client.send(GetPromise(id="run/d"))).data
        assert isinstance(found, PromiseData)
        born = found.promise.created_at
        told = (await runner.client.send(ExplainPromise(id="run/d:hold"))).data
        assert isinstance(told, Explanation)
        row = told.task
        assert row is not None
        assert row.ready_at == born
        for gate in gates.values():
            gate.set()
        for run in runs:
            await run.result(timeout=30)
