"""Maps of maps that fail, are cancelled, crash and are run again: no effect is repeated."""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from layby import RetryPolicy, RunCancelled, RunFailed, Runner, Workflow, task, triggers
from layby.testing import current_clock, virtual_test
from tests.helpers.flows import flow_of, sound
from tests.helpers.workers import die, promises

ROUNDS = 10
EFFECTS: defaultdict[str, list[int]] = defaultdict(list)
"""When each was done, by its name."""
WRONG: list[tuple[Any, Any]] = []
"""What came, and what should have come: a run that fails of it may be well when it is run again."""


class Chance:
    """What is decided while a test runs. In the end everything goes well."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.is_calm = False

    def fails(self) -> None:
        if not self.is_calm and self.random.random() < 0.2:
            raise ValueError("bad luck")


CHANCE = Chance()


def expect(came: Any, wanted: Any) -> None:
    if came != wanted:
        WRONG.append((came, wanted))


def effect(name: str) -> str:
    EFFECTS[name].append(current_clock().now())
    return name


@task
async def carry(context):
    CHANCE.fails()
    context["carried"] = effect(f"{context['name']} carried")


CARRYING = Workflow("carrying", tasks=[carry])


@task(retries=1)
async def work(context, handle, item):
    """The same calls in every run of the body, and in all lives: `own` decides about them."""
    name, below = item
    own = random.Random(name)
    expect(await handle.checkpoint("first", effect, name), name)
    if own.random() < 0.3:
        await handle.sleep(own.random() * 20)
    elif own.random() < 0.2:
        await handle.defer(triggers.Delay(own.random() * 20))
    CHANCE.fails()
    if own.random() < 0.5:
        child = await handle.start(CARRYING, {"name": name})
        expect((await child.result())["carried"], f"{name} carried")
    if below:
        items = [[f"{name}.{n}", below[1:]] for n in range(below[0])]
        names = [each for each, _ in items]
        if own.random() < 0.5:
            expect(await handle.map(work, items, limit=2), names)
        else:
            expect(sorted([each async for each in handle.map_unordered(work, items)]), names)
    CHANCE.fails()
    return await handle.checkpoint("last", effect, f"{name} done") and name


def jobs(width: int, *below: int, retries: int) -> Workflow[Any]:
    async def body(context, handle):
        return await handle.map(work, [[f"i{n}", below] for n in range(width)])

    retry = RetryPolicy(max_attempts=retries + 1, delay=1)
    return flow_of(task(id="t", retry=retry)(body))


@pytest.mark.parametrize("seed", range(4))
@virtual_test
async def test_no_effect_of_an_item_is_repeated(tmp_path: Path, seed: int):
    """But for one that was just being made when its item was cancelled, or its process died."""
    EFFECTS.clear()
    WRONG.clear()
    CHANCE.random, CHANCE.is_calm = random.Random(seed), False
    pick = random.Random(seed)
    flow = jobs(*pick.choice([(6,), (3, 3), (3, 2, 2)]), retries=pick.choice([0, 1]))
    file, crashes = f"sqlite:{tmp_path / 'a.db'}", set[int]()

    async def opened() -> Runner:
        runner = await Runner(file, slots=pick.choice([1, 3, 8])).__aenter__()
        runner.register(flow)
        return runner

    runner = await opened()
    run = await runner.start(flow, run_id="r")
    for each in range(ROUNDS + 2):
        CHANCE.is_calm = each >= ROUNDS
        await asyncio.sleep(pick.random() * 20)
        happens = pick.choice(["crash", "stop", "cancel", "wait"])
        if happens == "crash":
            crashes.add(current_clock().now())
            await die(runner)
        elif happens == "stop":
            await runner.close()
        if happens in ("crash", "stop"):
            runner = await opened()
        run = await runner.get("r")
        if happens == "cancel":
            await run.cancel()
        if happens == "wait" or CHANCE.is_calm:
            with suppress(RunFailed, RunCancelled):
                await run.result()
        if (await run.status()).state in ("Failed", "Cancelled"):
            await run.rerun()
    found = (await run.result()).result("t")
    assert found == [f"i{n}" for n in range(len(found))]
    assert WRONG == []
    await sound(runner)
    cut = {each.settled_at for each in promises(runner).values() if each.state != "resolved"}
    await runner.close()
    kept = {
        name: [at for at in found if at not in cut | crashes] for name, found in EFFECTS.items()
    }
    assert {name: found for name, found in kept.items() if len(found) > 1} == {}
