"""Everything a handle can do goes on working on a strict store: what is ours is external."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from layby import RetryPolicy, RunFailed, Runner, task
from layby.core.commands import CreatePromise
from layby.core.invariants import check
from layby.core.settings import Settings
from layby.testing import virtual_test
from tests.helpers.workers import flow_of, promises


@asynccontextmanager
async def strict_runner() -> AsyncGenerator[Runner]:
    """An embedded Runner whose store has the rules of `layby serve --strict`."""
    async with Runner("memory:", slots=1) as runner:
        store: Any = runner.engine._store
        store._settings = Settings.strict()
        yield runner
        assert check(store.dump(), runner.now()) == []


@virtual_test
async def test_every_wait_of_a_task_ends():
    """Sleeps, events before and after their wait, tokens, back-off, records and dependencies."""
    tokens: list[str] = []
    tries: list[int] = []

    @task(retry=RetryPolicy(max_attempts=2, delay=60))
    async def first(context, handle):
        tries.append(handle.try_number)
        await handle.checkpoint("once", lambda: "kept")
        if len(tries) == 1:
            raise ValueError("back off, please")

    @task(dependencies=["first"])
    async def second(context, handle):
        await handle.sleep(3600)
        context["early"] = await handle.wait_for("early")
        context["late"] = await handle.wait_for("late", timeout=3600)
        token = await handle.promise("approval")
        tokens.append(token.id)
        context["answer"] = await token

    async with strict_runner() as runner:
        await runner.resolve("early", 1)
        run = await runner.start(flow_of(first, second), run_id="r")
        await asyncio.sleep(2 * 3600)
        await runner.resolve("late", 2)
        await asyncio.sleep(1)
        await runner.resolve(tokens[0], 3)
        result = await run.result()
        assert (result["early"], result["late"], result["answer"]) == (1, 2, 3)
        assert not [each.id for each in promises(runner).values() if each.internal]


@virtual_test
async def test_an_adopted_event_ends_at_its_deadline():
    """Somebody creates, without a tag, what a task waits for already: it times out as told."""

    @task
    async def waits(context, handle):
        await handle.wait_for("event")

    async with strict_runner() as runner:
        run = await runner.start(flow_of(waits), run_id="r")
        await asyncio.sleep(10)
        await runner.send(CreatePromise(id="event", timeout_at=runner.now() + 5_000))
        with pytest.raises(RunFailed, match="PromiseTimedOut"):
            await run.result(timeout=60)


@virtual_test
async def test_waiting_for_an_internal_promise_is_refused_with_the_remedy():
    """It would last for ever."""

    @task
    async def waits(context, handle):
        await handle.wait_for("theirs")

    async with strict_runner() as runner:
        await runner.send(CreatePromise(id="theirs", timeout_at=runner.now() + 5_000))
        run = await runner.start(flow_of(waits), run_id="r")
        with pytest.raises(RunFailed, match="'theirs' is internal: create it with"):
            await run.result(timeout=60)
