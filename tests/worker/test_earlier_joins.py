"""What items of a `map` take over from earlier tries and lives, as any task does."""

import asyncio
import sys
from collections import Counter
from typing import Any

import pytest

from layby import ItemFailed, RetryPolicy, RunFailed, Runner, Workflow, task
from layby.testing import virtual_test
from tests.helpers.flows import flow_of, sound
from tests.helpers.workers import crashing, promises, until
from tests.workflow.test_mapped_tasks import loaded

RAN: Counter[Any] = Counter()
FAILS: set[Any] = set()


@pytest.fixture(autouse=True)
def forget():
    """What mapped tasks note: they are found by name, so they cannot be closures."""
    RAN.clear()
    FAILS.clear()


def note(what: str, item: Any) -> str:
    RAN[f"{what} {item}"] += 1
    return f"{what} {item}"


def again(before: Counter[Any]) -> dict[Any, int]:
    return dict(RAN - before)


@task(rpc="stamp")
async def stamp(context):
    return note("stamp", context["args"][0])


@task
async def pack(context):
    note("pack", context["item"])


@task
async def label(context):
    if context["item"] in FAILS:
        raise ValueError("no label")
    note("label", context["item"])


SHIPPING = Workflow("shipping", tasks=[pack, label])


@task
async def pays(context, handle, item):
    note("body", item)
    paid = await handle.checkpoint("pay", note, "pay", item)
    if item in FAILS:
        raise ValueError(f"{item} is bad")
    return paid


@task
async def stays(context, handle, item):
    note("body", item)
    await handle.checkpoint("pay", note, "pay", item)
    if item in FAILS:
        await handle.sleep(3600)
    return item


@task
async def calls(context, handle, item):
    note("body", item)
    stamped = await handle.rpc(stamp, item)
    if item in FAILS:
        raise ValueError(f"{item} is bad")
    return stamped


@task
async def ships(context, handle, item):
    """Its child fails, or it fails after its child has succeeded."""
    note("body", item)
    child = await handle.start(SHIPPING, {"item": context.get("parcel", item)})
    await child.result()
    if f"after {item}" in FAILS:
        raise ValueError(f"{item} is bad")
    return child.id


@task
async def doubles(context, handle, item):
    note("body", item)
    return 2 * await handle.checkpoint("pay", lambda: item)


@task
async def maps(context, handle, item):
    note("body", item)
    return await handle.map(pays, [f"{item}{each}" for each in range(3)])


RESTING: list[Workflow[Any]] = []
"""The child that `rests_in_child` starts."""


@task
async def rests_in_child(context, handle, item):
    if item in FAILS:
        await handle.defer_until(lambda: RAN["started"] == context["others"], poll_interval=0.01)
        raise ValueError("bad")
    if item:
        child = await handle.start(RESTING[-1], {"item": item})
        RAN["started"] += 1
        await child.result()
    return item


class Job:
    """A workflow whose only task maps `lists` in turn: the last one for ever."""

    def __init__(self, mapped: Any, *lists: list[Any], retries: int = 0) -> None:
        self.lists = list(lists)
        self.context: dict[str, Any] = {}
        self.mapped = mapped
        self.unordered = False

        async def body(context, handle):
            if handle.try_number > 1:
                FAILS.clear()
            context.update(self.context)
            items = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            if self.unordered:
                found = handle.map_unordered(self.mapped, items)
                return sorted([each async for each in found])
            return await handle.map(self.mapped, items)

        self.body = body
        self.flow = flow_of(task(id="t", retry=RetryPolicy.retries(retries))(body), name="job")

    async def failed(self, runner: Runner) -> Any:
        runner.register(stamp)
        run = await runner.start(self.flow, run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        return run

    async def run_again(self, run: Any, **options: Any) -> tuple[Any, dict[Any, int]]:
        """What the next life returns, and what it does once more."""
        FAILS.clear()
        before = RAN.copy()
        await run.rerun(**options)
        return (await run.result()).result("t"), again(before)


# --- a later life ------------------------------------------------------------------------------


@pytest.mark.parametrize("unordered", [False, True])
@virtual_test
async def test_a_later_life_runs_what_has_not_succeeded(unordered):
    """And that goes on with its checkpoints."""
    FAILS.add("b")
    job = Job(pays, ["a", "b", "c"])
    job.unordered = unordered
    async with Runner("memory:", slots=1) as runner:
        run = await job.failed(runner)
        result, _ = await job.run_again(run)
        await sound(runner)
    assert result == ["pay a", "pay b", "pay c"]
    assert {each: RAN[f"pay {each}"] for each in "abc"} == {"a": 1, "b": 1, "c": 1}
    assert (RAN["body a"], RAN["body b"]) == (1, 2)


@virtual_test
async def test_calls_of_items_that_succeeded_are_reused():
    FAILS.add("b")
    job = Job(calls, ["a", "b"])
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        result, done = await job.run_again(run)
    assert result == ["stamp a", "stamp b"]
    assert done == {"body b": 1}


@virtual_test
async def test_an_item_that_was_cancelled_keeps_what_it_had_recorded():
    FAILS.add("b")
    job = Job(stays, ["a", "b"])
    async with Runner("memory:") as runner:
        run = await runner.start(job.flow, run_id="r")
        await asyncio.sleep(10)
        await run.cancel()
        result, done = await job.run_again(run)
        await sound(runner)
    assert result == ["a", "b"]
    assert done == {"body b": 1}


@pytest.mark.parametrize(
    ("now", "done"),
    [
        (["c", "b", "a"], {"body c": 1, "pay c": 1, "body b": 1, "body a": 1, "pay a": 1}),
        (["a", "x", "c"], {"body x": 1, "pay x": 1}),
        (["a"], {}),
        (["a", "b", "c", "d"], {"body b": 1, "body d": 1, "pay d": 1}),
        ([], {}),
    ],
)
@virtual_test
async def test_another_item_takes_nothing_over(now, done):
    """Neither the result of the one that had its number, nor what that had recorded."""
    FAILS.add("b")
    job = Job(pays, ["a", "b", "c"], now)
    async with Runner("memory:", slots=4) as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        result, found = await job.run_again(run)
        await sound(runner)
    assert result == [f"pay {each}" for each in now]
    assert found == done


@virtual_test
async def test_what_is_forgotten_is_not_taken_over():
    """Nor by a life after that, which keeps what this one did."""
    FAILS.add("b")
    job = Job(pays, ["a", "b"])
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        result, done = await job.run_again(run, checkpoints="forget")
        assert result == ["pay a", "pay b"]
        assert done == {"body a": 1, "pay a": 1, "body b": 1, "pay b": 1}
        assert await job.run_again(run, from_="t") == (result, {})


@virtual_test
async def test_results_for_another_context_are_not_reused():
    """What an item has recorded is, as by a task that runs again after others."""
    FAILS.add("b")
    job = Job(pays, ["a", "b"])
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        job.context = {"price": 2}
        result, done = await job.run_again(run)
        assert result == ["pay a", "pay b"]
        assert done == {"body a": 1, "body b": 1}
        assert await job.run_again(run, from_="t") == (result, {})
        job.context = {}
        _, done = await job.run_again(run, from_="t")
        assert done == {"body b": 1}
        await sound(runner)


@virtual_test
async def test_reruns_of_reruns():
    """What any life has recorded is kept by all later ones; results are where they were made."""
    FAILS.update("abc")
    job = Job(pays, ["a", "b", "c"])
    async with Runner("memory:", slots=1) as runner:
        run = await job.failed(runner)
        for done in ("a", "b"):
            FAILS.discard(done)
            await run.rerun()
            with pytest.raises(RunFailed):
                await run.result()
        result, _ = await job.run_again(run)
        await sound(runner)
    assert result == ["pay a", "pay b", "pay c"]
    paid = {each: RAN[f"pay {each}"] for each in "abc"}
    assert paid == {"a": 1, "b": 1, "c": 1}
    assert RAN["body a"] == 2


@virtual_test
async def test_items_of_items():
    """The list that an item maps is looked at in the same way."""
    FAILS.add("b1")
    job = Job(maps, ["a", "b"])
    async with Runner("memory:", slots=8) as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        result, done = await job.run_again(run)
        await sound(runner)
    assert result == [[f"pay {each}{n}" for n in range(3)] for each in "ab"]
    assert done == {"body b": 1, "body b1": 1}


@virtual_test
async def test_a_map_that_collects_runs_only_what_failed():
    FAILS.add("b")

    @task(id="t")
    async def caller(context, handle):
        found = await handle.map(pays, ["a", "b"], on_error="collect")
        if any(isinstance(each, ItemFailed) for each in found):
            raise ValueError("not all")
        return found

    job = Job(pays, [])
    job.flow = flow_of(caller)
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        assert await job.run_again(run) == (["pay a", "pay b"], {"body b": 1})


@virtual_test
async def test_the_same_call_twice_in_a_later_life():
    """Both find the same items, where they succeeded; the context of the first call counts."""
    FAILS.add("b")

    @task(id="t")
    async def caller(context, handle):
        first = await handle.map(pays, ["a", "b"], key="k")
        context["more"] = 1
        return [first, await handle.map(pays, ["a", "b"], key="k")]

    job = Job(pays, [])
    job.flow = flow_of(caller)
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        both, done = await job.run_again(run)
        await sound(runner)
    assert both == [["pay a", "pay b"]] * 2
    assert done == {"body b": 1}


@virtual_test
async def test_a_crash_in_a_later_life(tmp_path):
    """The join that is there says which results count, whatever the context is by then."""
    FAILS.add("b")
    job = Job(stays, ["a", "b"])
    file = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(file) as runner:
        run = await runner.start(job.flow, run_id="r")
        await asyncio.sleep(10)
        await run.cancel()
        await run.rerun()
        await asyncio.sleep(10)
        assert RAN == {"body a": 1, "pay a": 1, "body b": 2, "pay b": 1}
    FAILS.clear()
    job.context = {"time": 2}
    async with Runner(file) as runner:
        runner.register(job.flow)
        assert (await (await runner.get("r")).result()).result("t") == ["a", "b"]
        await sound(runner)
    assert (RAN["body a"], RAN["pay b"]) == (1, 1)


@virtual_test
async def test_another_function_takes_nothing_over():
    """In a later life code may be mended so far that it maps something else under the same key."""
    FAILS.add(2)
    job = Job(pays, [1, 2])
    async with Runner("memory:") as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        job.mapped = doubles
        assert (await job.run_again(run))[0] == [2, 4]


# --- the next try of the caller ----------------------------------------------------------------


@virtual_test
async def test_the_next_try_keeps_what_items_had_recorded():
    FAILS.add("b")
    job = Job(pays, ["a", "b", "c"], retries=1)
    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(job.flow, run_id="r")
        assert (await run.result()).result("t") == ["pay a", "pay b", "pay c"]
        await sound(runner)
    assert {each: RAN[f"pay {each}"] for each in "abc"} == {"a": 1, "b": 1, "c": 1}
    assert RAN["body b"] == 2


@virtual_test
async def test_another_function_in_the_next_try_takes_nothing_over():
    FAILS.add(2)

    @task(id="t", retry=RetryPolicy.retries(1))
    async def caller(context, handle):
        return await handle.map(pays if handle.try_number == 1 else doubles, [1, 2])

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(caller), run_id="r")
        assert (await run.result()).result("t") == [2, 4]


# --- child runs of items -----------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
@virtual_test
async def test_a_child_of_an_item_is_reused_if_it_succeeded(retries):
    FAILS.add("after b")
    job = Job(ships, ["a", "b"], retries=retries)
    async with Runner("memory:", slots=4) as runner:
        if retries:
            run = await runner.start(job.flow, run_id="r")
            await run.result()
        else:
            run = await job.failed(runner)
            await asyncio.sleep(1)
            await job.run_again(run)
        assert len(await runner.list(flow="shipping")) == 2
        await sound(runner)
    assert {f"{what} {each}": 1 for what in ("pack", "label") for each in "ab"} | {
        "body a": 1,
        "body b": 2,
    } == RAN


@pytest.mark.parametrize("retries", [0, 1])
@virtual_test
async def test_a_child_of_an_item_that_failed_is_run_again_as_its_next_life(retries):
    FAILS.add("b")
    job = Job(ships, ["a", "b"], retries=retries)
    async with Runner("memory:", slots=4) as runner:
        if retries:
            run = await runner.start(job.flow, run_id="r")
            found = (await run.result()).result("t")
        else:
            run = await job.failed(runner)
            await asyncio.sleep(1)
            found, _ = await job.run_again(run)
        child = await (await runner.get(found[1])).status()
        assert (child.lives, child.state) == (2, "Completed")
        assert len(await runner.list(flow="shipping")) == 2
        await sound(runner)
    assert (RAN["pack b"], RAN["label b"]) == (1, 1)


@virtual_test
async def test_another_item_starts_a_child_of_its_own():
    """Even if it gives it the same context: it may have its own reasons to start one."""
    FAILS.add("after b")
    job = Job(ships, ["a", "b"], ["a", "x"])
    job.context = {"parcel": "p"}
    async with Runner("memory:", slots=4) as runner:
        run = await job.failed(runner)
        await asyncio.sleep(1)
        result, done = await job.run_again(run)
        assert len({each.id for each in await runner.list(flow="shipping")}) == 3
        assert done == {"body x": 1, "pack p": 1, "label p": 1}
        again_, done = await job.run_again(run, from_="t")
        assert (again_, done) == (result, {})


def test_children_that_are_still_being_cancelled_are_run_again(monkeypatch):
    """Another item had failed; the next try of the caller does not wait until all have ended."""
    monkeypatch.setattr("layby.core.due.TAILS_AT_ONCE", 1)

    @task
    async def rests(context, handle):
        if FAILS:
            await handle.sleep(3600)

    RESTING.append(Workflow("resting", tasks=[rests]))
    FAILS.add(0)
    job = Job(rests_in_child, list(range(40)))
    caller = task(id="t", retry=RetryPolicy(max_attempts=2, delay=0))(job.body)

    async def scene() -> None:
        async with Runner("memory:", slots=8) as runner:
            run = await runner.start(flow_of(caller), {"others": 39}, run_id="r")
            assert (await run.result()).result("t") == list(range(40))
            children = await runner.list(flow="resting")
            ended = [await (await runner.get(each.id)).status() for each in children]
            assert [(each.state, each.lives) for each in ended] == [("Completed", 2)] * 39

    asyncio.run(scene())


# --- names -------------------------------------------------------------------------------------


FLOWS = """
from layby import task

@task
async def square(context, handle, item):
    await handle.sleep(10)
    return item * item

@task
async def caller(context, handle):
    return await handle.map(square, range(3))
"""


@virtual_test
async def test_a_map_goes_on_where_its_file_has_another_name(tmp_path, monkeypatch):
    """Begun by `python flows.py`, gone on with by `layby worker flows.py`."""
    path = tmp_path / "flows.py"
    path.write_text(FLOWS)
    file = f"sqlite:{tmp_path / 'a.db'}"
    there, here = loaded(path, "shop.flows"), loaded(path, "flows")
    monkeypatch.setitem(sys.modules, "shop.flows", there)
    async with crashing(file, slots=1) as runner:
        await runner.start(Workflow("f", tasks=[there.caller]), run_id="r")
        await until(lambda: "run/r:caller:map/1" in promises(runner))
    monkeypatch.delitem(sys.modules, "shop.flows")
    monkeypatch.setitem(sys.modules, "flows", here)
    async with Runner(file) as runner:
        runner.register(Workflow("f", tasks=[here.caller]))
        result = await (await runner.get("r")).result(timeout=60)
        assert result.result("caller") == [0, 1, 4]
