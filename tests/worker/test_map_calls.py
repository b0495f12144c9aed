"""`map`: a task for each item of a list, in virtual time."""

import asyncio
import gc
import itertools
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from layby import (
    BlockingRunner,
    ContextError,
    ItemFailed,
    PromiseCancelled,
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runner,
    UsageError,
    WorkflowError,
    task,
)
from layby.core import maps
from layby.core.commands import AddItems, CancelPromise, WatchPromise
from layby.core.queries import ExplainPromise
from layby.core.replies import Explanation
from layby.testing import current_clock, virtual_test
from layby.worker import map_calls
from layby.worker.earlier_joins import join_id_of
from layby.worker.map_calls import ITEMS_PER_PORTION, MAX_PORTION_CHARS, item_portions
from layby.workflow import loaded_item
from layby.workflow.reasons import reason_of
from layby.workflow.why import find_why
from tests.helpers.flows import flow_of, sound
from tests.helpers.workers import crashing, look, promises, settled_down, until

RAN: Counter[Any] = Counter()
FAILS: set[Any] = set()


@pytest.fixture(autouse=True)
def forget():
    """What mapped tasks note: they are found by name, so they cannot be closures."""
    RAN.clear()
    FAILS.clear()


@task
async def double(context, item):
    RAN[item] += 1
    return item * 2


@task
async def sleeps(context, handle, item):
    RAN[item] += 1
    await handle.sleep(item)
    return item


@task
async def may_fail(context, item):
    RAN[item] += 1
    if item in FAILS:
        raise ValueError(f"{item} is bad")
    return f"did {item}"


@task(retry=RetryPolicy.retries(2))
async def fails_once(context, handle, item):
    RAN[item] += 1
    if handle.try_number == 1:
        raise ValueError("the first time")
    return handle.try_number


@task
def in_thread(context, handle, item):
    handle.sleep(1)
    return [item, context["base"]]


@task(process=True)
def in_process(context, item):
    return [item, context["base"]]


@task
async def reads(context, item):
    return [context["base"], context["added"], context.get("item"), item]


@task
async def writes(context, item):
    context["x"] = item


@task
async def returns_object(context, item):
    return object()


@task
async def repeats(context, item):
    return "x" * (len(item) + 1)


@task
async def nested(context, handle, item):
    return await handle.map(double, range(item))


@task
async def optional(context, item=None):
    return item


async def result_of(body: Any, context: dict[str, Any] | None = None, **options: Any) -> Any:
    """What a run of this one body returns."""
    options.setdefault("slots", 2)
    async with Runner("memory:", **options) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), context, run_id="r")
        found = (await run.result()).result("t")
        await settled_down()
        if runner.engine.is_inline:
            await sound(runner)
        return found


# --- results -----------------------------------------------------------------------------------


@virtual_test
async def test_results_come_in_order():
    """Whatever the order in which items end."""

    async def body(context, handle):
        return await handle.map(sleeps, [3, 1, 2])

    assert await result_of(body) == [3, 1, 2]


@pytest.mark.parametrize("count", [0, 1, ITEMS_PER_PORTION, 2 * ITEMS_PER_PORTION + 1])
@virtual_test
async def test_any_number_of_items(count):
    """A generator is read once, in portions."""

    async def body(context, handle):
        return sum(await handle.map(double, (each for each in range(count))))

    assert await result_of(body) == count * (count - 1)
    assert set(RAN.values()) <= {1}


@virtual_test
async def test_the_caller_holds_no_slot():
    """With one slot, items run while their caller waits; never more than one body has it."""

    async def body(context, handle):
        return await handle.map(double, range(10))

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        assert (await run.result()).result("t") == [2 * each for each in range(10)]


@virtual_test
async def test_items_read_the_context_of_their_caller():
    """As it stood at the call; the item comes by name."""

    async def body(context, handle):
        context["added"] = [1]
        found = await handle.map(reads, ["a"])
        context["added"].append(2)
        return found + await handle.map(reads, ["b"])

    assert await result_of(body, {"base": 7}) == [[7, [1], None, "a"], [7, [1, 2], None, "b"]]


@virtual_test
async def test_items_do_not_write_into_the_context():
    async def body(context, handle):
        (failure,) = await handle.map(writes, [1], on_error="collect")
        return failure.type, failure.message

    kind, message = await result_of(body)
    assert kind == "ContextError"
    assert "return what it has found out" in message


@pytest.mark.parametrize("mapped", [in_thread, in_process])
def test_items_run_in_every_form_of_body(mapped):
    async def body(context, handle):
        return await handle.map(mapped, [1, 2])

    assert asyncio.run(result_of(body, {"base": 7})) == [[1, 7], [2, 7]]


def test_a_plain_def_maps_too():
    def body(context, handle):
        done = handle.map(double, [1, 2])
        return done, sorted(handle.map_unordered(double, [3, 4], key="b"))

    assert asyncio.run(result_of(body)) == [[2, 4], [6, 8]]


def test_a_plain_def_may_stop_reading():
    """What it has not read is cancelled."""

    def body(context, handle):
        results = handle.map_unordered(sleeps, [0, 3600], key="b")
        first = next(results)
        results.close()
        return first

    async def scene() -> None:
        async with Runner("memory:", slots=2) as runner:
            run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
            assert (await run.result()).result("t") == 0
            watched: Any = await runner.client.send(WatchPromise(id="run/r:t:map/key.b:1"))
            assert watched.data.promise.state == "rejected_canceled"

    asyncio.run(scene())


def test_a_plain_def_may_leave_an_iterator_behind(monkeypatch):
    """It is closed without a word when nobody has it any more."""
    kept, unraisable = [], []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def body(context, handle):
        kept.append(handle.map_unordered(sleeps, [0, 3600]))
        return next(kept[0])

    with BlockingRunner("memory:") as runner:
        assert runner.execute(flow_of(task(id="t")(body))).result("t") == 0
        kept.clear()
        gc.collect()
    assert unraisable == []


def test_a_runner_is_closed_between_two_results():
    """Nobody waits for the next one, so nobody is told that it will not come."""
    kept: list[Any] = []
    told: list[Any] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: told.append(each))
        begun = asyncio.Event()

        async def body(context, handle):
            kept.append(handle.map_unordered(sleeps, [0, 3600]))
            await anext(kept[0])
            begun.set()
            await handle.sleep(3600)

        async with Runner("memory:") as runner:
            await runner.start(flow_of(task(id="t")(body)))
            await begun.wait()
        await settled_down()

    asyncio.run(scene())
    assert told == []


@virtual_test
async def test_an_item_may_map():
    async def body(context, handle):
        return await handle.map(nested, [0, 1, 3])

    assert await result_of(body, slots=1) == [[], [0], [0, 2, 4]]


@virtual_test
async def test_results_as_they_come():
    async def body(context, handle):
        return [each async for each in handle.map_unordered(sleeps, [3, 1, 2])]

    assert await result_of(body) == [1, 2, 3]


@virtual_test
async def test_other_waits_between_results():
    """The loop over results is not a wait itself."""

    async def body(context, handle):
        found = []
        async for each in handle.map_unordered(sleeps, [1, 2]):
            await handle.sleep(5)
            found.append(each)
        return found

    assert await result_of(body) == [1, 2]


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
@virtual_test
async def test_one_key_for_two_lists_is_refused(together: bool):
    """Whichever comes first is carried out; a list that is given twice is the same call."""

    async def body(context, handle):
        async def second():
            with pytest.raises(UsageError, match=r"twice with key='k', and with different items"):
                await handle.map(double, iter([1, 3]), key="k")
            return await handle.map(double, iter([1, 2]), key="k")

        first = asyncio.ensure_future(handle.map(double, iter([1, 2]), key="k"))
        await (asyncio.sleep(0) if together else first)
        return [await second(), await first]

    assert await result_of(body) == [[2, 4], [2, 4]]
    assert dict(RAN) == {1: 1, 2: 1}


@virtual_test
async def test_maps_at_the_same_time_have_keys():
    async def body(context, handle):
        both = (handle.map(sleeps, [each, 2], key=f"k:{each}/x") for each in (1, 3))
        return await asyncio.gather(*both)

    began = current_clock().now()
    assert await result_of(body) == [[1, 2], [3, 2]]
    assert current_clock().now() - began < 4_000


# --- limits ------------------------------------------------------------------------------------


@task
async def counts(context, handle, item):
    """Parked items are open, too."""
    RAN["open"] += 1
    RAN["most"] = max(RAN["most"], RAN["open"])
    await handle.sleep(1)
    RAN["open"] -= 1
    return item


@task(limit="api")
async def calls_api(context, item):
    RAN["open"] += 1
    RAN["most"] = max(RAN["most"], RAN["open"])
    await asyncio.sleep(1)
    RAN["open"] -= 1
    return item


@task(limit=lambda context: f"tenant-{context['tenant']}")
async def calls_tenant(context, item):
    return item


@pytest.mark.parametrize("unordered", [False, True])
@virtual_test
async def test_no_more_than_the_limit_are_open(unordered):
    async def body(context, handle):
        if unordered:
            found = [each async for each in handle.map_unordered(counts, range(20), limit=3)]
            return sorted(found)
        return await handle.map(counts, range(20), limit=3)

    began = current_clock().now()
    assert await result_of(body, slots=8) == list(range(20))
    assert RAN["most"] == 3
    assert current_clock().now() - began == 7_000


@virtual_test
async def test_limits_of_the_mapped_task_hold_as_well():
    async def body(context, handle):
        return await handle.map(calls_api, range(6), limit=4)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("api", concurrency=2)
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        assert (await run.result()).result("t") == list(range(6))
        assert RAN["most"] == 2
        await asyncio.sleep(1)
        assert set(runner.engine._store.dump().limits) == {"api"}
        await sound(runner)


@virtual_test
async def test_a_limit_that_follows_from_the_context():
    """Items have the context of their caller, so it is asked once."""

    async def body(context, handle):
        return await handle.map(calls_tenant, range(3))

    async with Runner("memory:", slots=8) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), {"tenant": 7}, run_id="r")
        await asyncio.sleep(1)
        item = runner.engine._store.dump().tasks["run/r:t:map/1:0"]
        assert item.gate == "tenant-7"
        await runner.limit("tenant-*", concurrency=1)
        assert (await run.result()).result("t") == [0, 1, 2]


@virtual_test
async def test_others_go_on_beside_a_map_with_a_limit():
    """What waits for a permit of its map stands in nobody's way."""

    async def body(context, handle):
        await handle.map(counts, range(100), limit=1)

    @task
    async def other(context):
        return current_clock().now()

    async with Runner("memory:", slots=2) as runner:
        await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(5)
        began = current_clock().now()
        await runner.execute(flow_of(other, name="other"))
        assert current_clock().now() - began < 100


@pytest.mark.parametrize("limit", [0, -1, 2.5, "2", True])
@virtual_test
async def test_a_wrong_limit_is_refused(limit):
    async def body(context, handle):
        try:
            await handle.map(double, [1], limit=limit)
        except UsageError as refused:
            return str(refused)

    assert "map: limit must be a whole number of at least 1" in await result_of(body)


@virtual_test
async def test_why_an_item_has_to_wait():
    async def body(context, handle):
        await handle.map(counts, range(3), limit=1)

    async with Runner("memory:", slots=4) as runner:
        await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(0.5)
        reply = await runner.send(ExplainPromise(id="run/r:t:map/1:1"))
        assert isinstance(reply.data, Explanation)
        told = reason_of(reply.data, runner.now())
        assert told.kind == "limit"
        assert told.sentence == "waits for a permit of its map (1 of 1 held by run/r:t:map/1:0)"


@virtual_test
async def test_why_goes_through_the_items_that_hold_the_permits():
    """Those that wait for them are held up by these, and by nobody else."""

    async def body(context, handle):
        await handle.map(sleeps, [3600, 1, 2], limit=1)

    async with Runner("memory:", slots=4) as runner:
        await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(0.5)

        async def ask(promise_id):
            reply = await runner.send(ExplainPromise(id=promise_id))
            return reply.data if isinstance(reply.data, Explanation) else None

        why = await find_why(ask, "run/r", runner.now())
        assert why is not None
        assert (why.cause.id, why.cause.kind) == ("run/r:t:map/1:0", "sleep")


@task(priority=3, slots=2)
async def heavy(context, item):
    RAN["open"] += 1
    RAN["most"] = max(RAN["most"], RAN["open"])
    await asyncio.sleep(1)
    RAN["open"] -= 1


@virtual_test
async def test_items_have_the_priority_and_slots_of_their_task():
    """And the priority of their run; a heavy item holds as many slots as it says."""

    async def body(context, handle):
        await handle.map(heavy, range(6))

    async with Runner("memory:", slots=4) as runner:
        flow = flow_of(task(id="t", priority=1)(body))
        run = await runner.start(flow, run_id="r", priority=10)
        await run.result()
        item = runner.engine._store.dump().tasks["run/r:t:map/1:5"]
        assert (item.priority, item.slots) == (13, 2)
        assert RAN["most"] == 2


# --- failures ----------------------------------------------------------------------------------


@virtual_test
async def test_an_item_is_tried_again_by_itself():
    async def body(context, handle):
        return await handle.map(fails_once, [1, 2])

    assert await result_of(body) == [2, 2]
    assert RAN == {1: 2, 2: 2}


@virtual_test
async def test_a_failure_is_raised_and_ends_the_others():
    FAILS.add(0)

    async def body(context, handle):
        try:
            await handle.map(may_fail, [0, *range(1, 1000)])
        except ItemFailed as failure:
            return [failure.index, failure.type, failure.message, failure.promise_id]

    found = await result_of(body, slots=1)
    assert found == [0, "ValueError", "0 is bad", "run/r:t:map/1:0"]
    assert len(RAN) < 1000


@virtual_test
async def test_a_failure_that_nobody_catches_fails_the_run():
    FAILS.add(1)

    async def body(context, handle):
        await handle.map(may_fail, [0, 1])

    with pytest.raises(RunFailed, match=r"item 1 \(run/r:t:map/1:1\) failed: ValueError: 1 is bad"):
        await result_of(body)


@virtual_test
async def test_failures_are_collected():
    FAILS.update((1, 3))

    async def body(context, handle):
        found = await handle.map(may_fail, range(4), on_error="collect")
        assert "may_fail" in found[1].traceback
        return [each if isinstance(each, str) else str(each) for each in found]

    found = await result_of(body)
    assert found[0::2] == ["did 0", "did 2"]
    assert found[1] == "item 1 (run/r:t:map/1:1) failed: ValueError: 1 is bad"


@virtual_test
async def test_a_failure_among_results_as_they_come():
    FAILS.add("b")

    async def body(context, handle):
        found = [each async for each in handle.map_unordered(may_fail, ["ab"])]
        results = handle.map_unordered(may_fail, ["a", "b"], on_error="collect")
        found += [type(each).__name__ async for each in results]
        try:
            found += [each async for each in handle.map_unordered(may_fail, ["b"], key="x")]
        except ItemFailed as failure:
            found.append(failure.index)
        return found

    assert await result_of(body) == ["did ab", "str", "ItemFailed", 0]


@virtual_test
async def test_a_result_that_is_not_json_fails_its_item():
    async def body(context, handle):
        (failure,) = await handle.map(returns_object, [1], on_error="collect")
        return str(failure)

    assert "the result of item 0" in await result_of(body)


# --- tries and crashes -------------------------------------------------------------------------


@virtual_test
async def test_the_next_try_of_the_caller_runs_only_what_failed():
    FAILS.add(2)

    @task(retry=RetryPolicy.retries(1))
    async def caller(context, handle):
        if handle.try_number == 2:
            FAILS.clear()
        return await handle.map(may_fail, range(4))

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(caller), run_id="r")
        assert (await run.result()).result(caller) == [f"did {each}" for each in range(4)]
        await sound(runner)
    assert RAN[0] == RAN[1] == 1
    assert RAN[2] == 2


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("now", [["b", "a", "d"], ["b"], ["a", "b", "c", "d", "e"], []])
@virtual_test
async def test_the_next_try_of_the_caller_has_another_list(now, unordered):
    """The results are those of the items that it is given then."""
    FAILS.add("c")

    @task(retry=RetryPolicy.retries(1))
    async def caller(context, handle):
        items = ["a", "b", "c", "d"] if handle.try_number == 1 else now
        if handle.try_number == 2:
            FAILS.clear()
        if unordered:
            return sorted([each async for each in handle.map_unordered(may_fail, items)])
        return await handle.map(may_fail, items)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(caller), run_id="r")
        found = (await run.result()).result(caller)
        assert found == [f"did {each}" for each in (sorted(now) if unordered else now)]
        await sound(runner)


@virtual_test
async def test_a_map_that_succeeded_is_not_repeated_by_the_next_try():
    @task(retry=RetryPolicy.retries(1))
    async def caller(context, handle):
        found = await handle.map(double, range(3))
        found += [each async for each in handle.map_unordered(double, range(3, 5))]
        if handle.try_number == 1:
            raise ValueError("after the maps")
        return sorted(found)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(caller), run_id="r")
        assert (await run.result()).result(caller) == [0, 2, 4, 6, 8]
    assert dict(RAN) == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("unordered", [False, True])
@virtual_test
async def test_after_a_crash_nothing_that_has_ended_is_repeated(unordered, tmp_path):
    async def body(context, handle):
        if unordered:
            return [each async for each in handle.map_unordered(sleeps, [3, 1, 61, 60])]
        return await handle.map(sleeps, [3, 1, 61, 60])

    flow = flow_of(task(id="t")(body))
    file = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(file, slots=4) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(10)
        assert RAN == {3: 1, 1: 1, 60: 1, 61: 1}
    async with Runner(file, slots=4) as runner:
        runner.register(flow)
        run = await runner.get("r")
        in_order = [1, 3, 60, 61] if unordered else [3, 1, 61, 60]
        assert (await run.result()).result("t") == in_order
        await sound(runner)
    assert (RAN[3], RAN[1]) == (1, 1)


@virtual_test
async def test_a_crash_while_items_are_added(tmp_path):
    """The next run of the body goes on where the first one stopped."""
    file = f"sqlite:{tmp_path / 'a.db'}"

    async def body(context, handle):
        return len(await handle.map(double, range(2 * ITEMS_PER_PORTION)))

    flow = flow_of(task(id="t")(body))
    async with crashing(file, slots=1) as runner:
        client: Any = runner.client
        send, portions_sent = client.send, []

        async def never_sends_the_second_portion(request):
            if isinstance(request, AddItems):
                portions_sent.append(request)
                if len(portions_sent) == 2:
                    await asyncio.Event().wait()
            return await send(request)

        client.send = never_sends_the_second_portion
        await runner.start(flow, run_id="r")
        await until(lambda: len(portions_sent) == 2)
    async with Runner(file, slots=4) as runner:
        runner.register(flow)
        assert (await (await runner.get("r")).result()).result("t") == 2 * ITEMS_PER_PORTION
        await sound(runner)


@virtual_test
async def test_an_item_that_was_lost_runs_again(tmp_path):
    async def body(context, handle):
        return await handle.map(sleeps, [5, 100])

    flow = flow_of(task(id="t")(body))
    file = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(file) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(50)
    async with Runner(file) as runner:
        runner.register(flow)
        began = current_clock().now()
        assert (await (await runner.get("r")).result()).result("t") == [5, 100]
        assert 45_000 < current_clock().now() - began < 55_000  # a sleep goes on where it was
    assert RAN == {5: 1, 100: 2}


# --- the end of a map --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "deadline", "cancel task"])
@virtual_test
async def test_the_end_of_the_run_reaches_all_items(how):
    async def body(context, handle):
        await handle.map(sleeps, [3600] * 10)

    async with Runner("memory:", slots=2) as runner:
        flow = flow_of(task(id="t")(body))
        run = await runner.start(flow, run_id="r", deadline=100 if how == "deadline" else None)
        await asyncio.sleep(10)
        if how == "cancel":
            await run.cancel(by="me")
        elif how == "cancel task":
            await runner.cancel("r", "t")
        with pytest.raises((RunCancelled, RunFailed)):
            await run.result()
        await asyncio.sleep(1)
        items = [each for key, each in promises(runner).items() if ":map/1:" in key]
        ended = [each.state for each in items if "." not in each.id]
        assert len(ended) == 10
        assert set(ended) <= {"rejected_canceled", "rejected_timedout"}
        assert not runner.worker.attempts
        await sound(runner)


@virtual_test
async def test_halting_the_run_reaches_items():
    async def body(context, handle):
        return await handle.map(sleeps, [20, 30])

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        await run.halt(by="me")
        await asyncio.sleep(100)
        assert not runner.worker.attempts
        status = await run.status()
        assert status.state == "Halted"
        await run.continue_()
        assert (await run.result()).result("t") == [20, 30]
        await sound(runner)


@virtual_test
async def test_a_map_that_is_given_up_is_cancelled():
    async def body(context, handle):
        try:
            async with asyncio.timeout(5):
                await handle.map(sleeps, [1, 3600])
        except TimeoutError:
            pass
        await handle.sleep(60)

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        found = promises(runner)
        assert found["run/r:t"].is_pending
        assert found["run/r:t:map/1"].state == "rejected_canceled"
        assert found["run/r:t:map/1:0"].state == "resolved"
        assert found["run/r:t:map/1:1"].state == "rejected_canceled"
        await run.result()
        await sound(runner)


@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("unordered", [False, True])
@virtual_test
async def test_a_map_that_is_given_up_while_it_begins_is_cancelled(unordered, turns):
    """Whatever it is doing then: adding items, reading them, waiting for them."""

    async def read(handle):
        if not unordered:
            return await handle.map(sleeps, [3600, 3600])
        return [each async for each in handle.map_unordered(sleeps, [3600, 3600])]

    async def body(context, handle):
        reading = asyncio.create_task(read(handle))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await asyncio.sleep(60)

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        found = promises(runner)
        assert found["run/r:t"].is_pending
        begun = [found[each] for each in found if ":map/" in each and ".w0." not in each]
        assert not [each.id for each in begun if each.is_pending]
        await run.result()
        await sound(runner)


async def gives_up(handle):
    try:
        async with asyncio.timeout(5):
            return await handle.map(sleeps, [1, 3600])
    except TimeoutError:
        return "gave up"


async def gives_up_among_results(handle):
    found = []
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            async for each in handle.map_unordered(sleeps, [1, 3600, 2]):
                found += [each]
    return found


async def leaves_the_loop(handle):
    found = []
    async for each in handle.map_unordered(sleeps, [1, 3600, 2]):
        found += [each]
        if each == 2:
            break
    return found


@pytest.mark.parametrize(
    ("reads", "result"),
    [(gives_up, "gave up"), (gives_up_among_results, [1, 2]), (leaves_the_loop, [1, 2])],
)
@virtual_test
async def test_after_a_crash_a_map_that_was_given_up_is_given_up_again(tmp_path, reads, result):
    """The body goes on as it did: it hears of no item that it had not waited for."""

    async def body(context, handle):
        found = await reads(handle)
        await handle.sleep(60)
        return found

    flow, file = flow_of(task(id="t")(body)), f"sqlite:{tmp_path / 'layby.db'}"
    async with crashing(file, slots=4) as runner:
        await runner.start(flow, run_id="r")
        await until(lambda: "run/r:t.w0.sleep-1" in promises(runner))
    async with Runner(file, slots=4) as runner:
        run = await runner.start(flow, run_id="r")
        assert (await run.result()).result("t") == result
        await sound(runner)
    assert max(RAN.values()) == 1


@virtual_test
async def test_leaving_the_loop_cancels_what_is_left_at_once():
    """Though the body asks nothing of its handle for long."""

    async def body(context, handle):
        async for _ in handle.map_unordered(sleeps, [1, 3600]):
            break
        await asyncio.sleep(60)

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        assert promises(runner)["run/r:t:map/1"].state == "rejected_canceled"
        await run.result()
        await sound(runner)


@virtual_test
async def test_somebody_cancels_the_join():
    async def body(context, handle):
        try:
            await handle.map(sleeps, [3600])
        except PromiseCancelled as cancelled:
            return cancelled.promise_id

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(1)
        await runner.send(CancelPromise(id="run/r:t:map/1"))
        assert (await run.result()).result("t") == "run/r:t:map/1"


# --- what is shown -----------------------------------------------------------------------------


@virtual_test
async def test_status_tells_how_far_a_map_is():
    async def body(context, handle):
        await handle.map(sleeps, [1, 2, 100])

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        shown = await look(run, "t")
        assert (shown.status, shown.sub_status, shown.parked_in) == (
            "Running",
            "Deferred",
            "memory",
        )
        assert shown.waiting_on is not None
        assert shown.waiting_on.kind == "map"
        assert shown.waiting_on.sentence == "waiting for 1 of 3 items of sleeps"
        (told,) = shown.maps
        assert (told.id, told.task, told.items, told.done) == ("run/r:t:map/1", "sleeps", 3, 2)
        await run.result()
        (told,) = (await look(run, "t")).maps
        assert (told.done, told.settled_at is not None) == (3, True)


# --- what is refused ---------------------------------------------------------------------------


@virtual_test
async def test_an_item_and_its_result_may_have_a_megabyte():
    async def body(context, handle):
        short, long = await handle.map(repeats, ["x" * 999_997, "x" * 999_998], on_error="collect")
        return [len(short), str(long)]

    length, refused = await result_of(body)
    assert length == 999_998
    assert "the result of item 1 has 1,000,001 bytes as JSON, more than 1,000,000" in refused


@pytest.mark.parametrize(
    ("mapped", "items", "options", "error"),
    [
        (lambda context, item: item, [1], {}, "is not a task: decorate"),
        (task(id="inner")(lambda context, item: item), [1], {}, "at the top of a module"),
        (double, 7, {}, "items must be a list or another iterable"),
        (double, "abc", {}, "items must be a list or another iterable"),
        (double, {"a": 1}, {}, "items must be a list or another iterable"),
        (double, [1, {2}], {}, "item 1"),
        (double, ["x" * 999_999], {}, "item 0 has 1,000,001 bytes as JSON, more than 1,000,000"),
        (double, [1], {"on_error": "ignore"}, 'on_error is "raise" or "collect"'),
        (double, [1], {"key": " "}, "key of map"),
        (double, [1], {"key": "x" * 101}, "key of map"),
    ],
)
@virtual_test
async def test_what_cannot_be_mapped_is_refused(mapped, items, options, error):
    async def body(context, handle):
        try:
            await handle.map(mapped, items, **options)
        except (UsageError, ContextError) as refused:
            return str(refused)

    assert error in await result_of(body)
    assert not RAN


@task(slots=6)
async def huge(context, item):
    RAN[item] += 1


@task(slots=6, group="large")
async def huge_elsewhere(context, item):
    RAN[item] += 1


@virtual_test
async def test_items_that_need_more_slots_than_the_worker_has_are_refused():
    """As their workflow would be, with both numbers; a group of larger workers may take them."""

    async def body(context, handle):
        try:
            await handle.map(huge, [1])
        except UsageError as refused:
            return str(refused)

    assert "task 'huge' needs 6 slots at once, but this worker has 2" in await result_of(body)
    assert not RAN


@virtual_test
async def test_items_of_another_group_may_need_more_slots():
    async def body(context, handle):
        await handle.map(huge_elsewhere, [1])

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(1)
        told = (await run.status()).tasks["t"]
        assert told.maps[0].left == 1


@virtual_test
async def test_an_item_that_is_not_json_ends_what_was_begun():
    """Items of the portions before it may have run."""

    async def body(context, handle):
        await handle.map(sleeps, [*([3600] * ITEMS_PER_PORTION), object()])

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        with pytest.raises(RunFailed, match=f"map: item {ITEMS_PER_PORTION}"):
            await run.result()
        await asyncio.sleep(1)
        assert promises(runner)["run/r:t:map/1"].state == "rejected_canceled"
        await sound(runner)


@virtual_test
async def test_many_earlier_joins_are_looked_at_a_few_items_at_a_time(monkeypatch):
    """One command never looks at more of them than may hold everybody up."""
    monkeypatch.setattr(maps, "MAX_LOOKED_AT", 6)
    FAILS.add(9)

    async def body(context, handle):
        if handle.failures == 3:
            FAILS.clear()
        return len(await handle.map(may_fail, range(10)))

    async with Runner("memory:", slots=1) as runner:
        mapping = task(id="t", retry=RetryPolicy.retries(3))(body)
        run = await runner.start(flow_of(mapping), run_id="r")
        assert (await run.result()).result("t") == 10
        await sound(runner)
    assert {RAN[each] for each in range(9)} == {1}


def test_a_task_that_takes_an_item_is_no_task_of_a_workflow():
    with pytest.raises(WorkflowError, match=r"let another task call handle.map\(double, items\)"):
        flow_of(double)
    flow_of(optional)
    with pytest.raises(WorkflowError, match="remove rpc="):
        task(rpc="x")(double.function)
    with pytest.raises(WorkflowError, match="item is passed by name"):

        @task
        async def positional(context, item, /):
            pass

    with pytest.raises(WorkflowError, match=r"context comes first.*def alone\(context, item\)"):

        @task
        async def alone(item):
            pass


@virtual_test
async def test_other_code_under_the_same_key_blocks(tmp_path):
    """The code has changed between two tries: nothing fails, it waits for code that fits."""
    file = f"sqlite:{tmp_path / 'a.db'}"
    mapped: list[Any] = [sleeps]

    async def body(context, handle):
        return await handle.map(mapped[0], [60])

    flow = flow_of(task(id="t")(body))
    async with crashing(file) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(10)
    mapped[0] = double
    async with crashing(file) as runner:
        runner.register(flow)
        await asyncio.sleep(10)
        shown = await look(await runner.get("r"), "t")
        assert shown.waiting_on is not None
        assert shown.waiting_on.kind == "code"
        assert "map" in shown.waiting_on.sentence


@virtual_test
async def test_a_worker_without_the_mapped_task_blocks_its_items(monkeypatch):
    async def body(context, handle):
        return await handle.map(double, [1])

    async with Runner("memory:") as runner:
        monkeypatch.setattr(loaded_item, "task_named", lambda *_: None)
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await asyncio.sleep(10)
        task_row = runner.engine._store.dump().tasks["run/r:t:map/1:0"]
        assert (task_row.state, task_row.refused is not None) == ("pending", True)
        monkeypatch.undo()
        await run.continue_(code=True)
        assert (await run.result()).result("t") == [2]


# --- small parts -------------------------------------------------------------------------------


def test_an_endless_iterable_ends(monkeypatch):
    """It is not the store that says so, of a command that nobody has written."""
    monkeypatch.setattr(map_calls, "MAX_ITEMS", 3)
    assert len([*item_portions(range(3))]) == 1
    with pytest.raises(UsageError, match="more than 3 items"):
        list(item_portions(itertools.count()))


def test_an_async_iterable_is_refused_with_what_to_write():
    with pytest.raises(UsageError, match=r"read it first: \[each async for each in …\]"):
        list(item_portions(asynchronous()))


async def asynchronous():
    yield 1


def test_portions_are_bounded():
    found = list(item_portions(["x" * 1000] * 1000))
    assert [each.first for each in found] == sorted({each.first for each in found})
    assert sum(len(each.items) for each in found) == 1000
    assert [each.is_last for each in found] == [False] * (len(found) - 1) + [True]
    sizes = [sum(len(value.data or "") for value in each.items) for each in found]
    assert max(sizes) < MAX_PORTION_CHARS + 2_000
    assert [len(each.items) for each in item_portions([])] == [0]
    (portion,) = item_portions(range(5))
    parts = [(each.first, len(each.items), each.is_last) for each in portion.parts(2)]
    assert parts == [(0, 2, False), (2, 2, False), (4, 1, True)]
    (empty,) = item_portions([])
    assert list(empty.parts(2)) == [empty]
    assert [each.is_last for each in item_portions(range(ITEMS_PER_PORTION))] == [True]


def test_ids_of_joins():
    """No two calls share one, whatever their keys are."""
    assert join_id_of("run/r:t", "map-1", 1) == "run/r:t:map/1"
    assert join_id_of("run/r:t", "map-1", 2) == "run/r:t:map/1+2"
    assert join_id_of("run/r:t", "key.a:b/c+2", 1) == "run/r:t:map/key.a%3Ab%2Fc%2B2"
