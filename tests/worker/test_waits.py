"""The other calls of the handle: sleep, wait_for, promise, checkpoint and execution control."""

import asyncio
import contextvars
import threading
from datetime import timedelta
from typing import Any

import pytest

from layby import (
    DeferTimeout,
    PromiseCancelled,
    PromiseRejected,
    PromiseTimedOut,
    Runner,
    UsageError,
    Workflow,
    current_handle,
    task,
)
from layby.core.commands import CancelPromise, CreatePromise
from layby.testing import SlotWatch, current_clock, virtual_test
from layby.worker.handle import MAX_PROMISE_NAME_BYTES, arguments_of
from layby.worker.replay import digest_of
from tests.helpers.workers import flow_of, look, promises, settled_down

# --- sleep -------------------------------------------------------------------------------


@virtual_test
async def test_sleep_parks_until_a_durable_deadline():
    """Its slot is free, its deadline is shown and stands in the store as a timer."""

    @task
    async def sleeps(context, handle):
        await handle.sleep(timedelta(hours=1))
        context["held"] = handle.is_slot_held()

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(sleeps), run_id="r")
            await asyncio.sleep(60)
            assert slots.held == 0
            seen = await look(run, "sleeps")
            assert seen.waiting_on is not None
            assert (seen.sub_status, seen.waiting_on.kind) == ("Deferred", "sleep")
            assert seen.waiting_on.deadline == begin + 3_600_000
            timers = [each for each in promises(runner).values() if each.timer]
            assert [(each.timeout_at, each.state) for each in timers] == [
                (begin + 3_600_000, "pending")
            ]
            assert (await run.result())["held"] is True
        assert runner.now() == begin + 3_600_000


@pytest.mark.parametrize("seconds", [-1, "5", None, float("nan"), True])
@virtual_test
async def test_sleep_refuses_what_is_no_time(seconds):
    """At the call, naming the value."""

    @task
    async def sleeps(context, handle):
        with pytest.raises(UsageError, match="sleep"):
            await handle.sleep(seconds)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(sleeps))


# --- wait_for ----------------------------------------------------------------------------


@virtual_test
async def test_wait_for_a_promise_settled_before():
    """An event before the wait is never lost, and nothing parks."""

    @task
    async def waits(context, handle):
        context["got"] = await handle.wait_for("paid")

    async with Runner("memory:") as runner:
        await runner.resolve("paid", {"amount": 5})
        with SlotWatch(runner) as slots:
            assert (await runner.execute(flow_of(waits)))["got"] == {"amount": 5}
            assert [held for _, held in slots.history] == [0, 1, 0]


@virtual_test
async def test_wait_for_a_promise_settled_after():
    """Pushed, not polled: it resumes at the very instant; until then a placeholder stands."""
    clock = current_clock()

    @task
    async def waits(context, handle):
        context["got"] = await handle.wait_for("paid")
        context["at"] = clock.now()

    async with Runner("memory:") as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(waits))
            await asyncio.sleep(1234.567)
            assert slots.held == 0
            assert promises(runner)["paid"].placeholder
            seen = await look(run, "waits")
            assert seen.waiting_on is not None
            assert (seen.waiting_on.kind, seen.sub_status) == ("promise", "Deferred")
            assert "paid" in seen.waiting_on.sentence
            await runner.resolve("paid", 5)
            result = await run.result()
    assert result["got"] == 5
    assert result["at"] == clock.now()


@virtual_test
async def test_wait_for_a_promise_that_is_rejected_cancelled_or_too_late():
    """Each raises its own error, with the slot held, before or after the wait began."""

    @task
    async def waits(context, handle):
        for name, kind in kinds.items():
            with pytest.raises(kind) as caught:
                await handle.wait_for(name)
            assert type(caught.value) is kind
            assert handle.is_slot_held()
            told.append(str(caught.value))

    told = []
    kinds = {"no": PromiseRejected, "gone": PromiseCancelled, "late": PromiseTimedOut}
    async with Runner("memory:") as runner:
        for before in (True, False):
            name = {"no": f"no{before}", "gone": f"gone{before}", "late": f"late{before}"}
            kinds = {name["no"]: PromiseRejected, name["gone"]: PromiseCancelled}
            kinds[name["late"]] = PromiseTimedOut
            due = runner.now() + 1_000
            await runner.client.send(CreatePromise(id=name["late"], timeout_at=due))
            await runner.client.send(CreatePromise(id=name["gone"], timeout_at=2**53 - 1))
            run = None if before else await runner.start(flow_of(waits))
            await settled_down()
            await runner.reject(name["no"], ValueError("broke"))
            await runner.client.send(CancelPromise(id=name["gone"], by="ada", reason="late"))
            if before:
                await asyncio.sleep(5)
                run = await runner.start(flow_of(waits))
            assert run is not None
            await run.result()
    assert "ValueError: broke" in told[0]


@virtual_test
async def test_the_timeout_of_a_wait_never_settles_the_promise():
    """It raises with the slot held; the promise goes on pending and may settle later."""

    @task
    async def waits(context, handle):
        begin = asyncio.get_running_loop().time()
        with pytest.raises(DeferTimeout, match="paid"):
            await handle.wait_for("paid", timeout=60)
        assert asyncio.get_running_loop().time() - begin == pytest.approx(60)
        assert handle.is_slot_held()
        context["got"] = await handle.wait_for("paid")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        await asyncio.sleep(100)
        assert promises(runner)["paid"].state == "pending"
        await runner.resolve("paid", 5)
        assert (await run.result())["got"] == 5


@virtual_test
async def test_a_wait_for_a_run_that_does_not_exist_says_so():
    """Runs never come into being by waiting for them."""

    @task
    async def waits(context, handle):
        with pytest.raises(UsageError, match=r"run/typo.*not found"):
            await handle.wait_for("run/typo")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(waits))


@virtual_test
async def test_inside_a_task_the_result_of_a_run_parks():
    """A parent that waits for its child on one slot does not deadlock."""

    @task
    async def child(context):
        context["value"] = context["n"] * 2

    @task
    async def parent(context):
        run = await runner.start(flow_of(child, name="child"), {"n": 21})
        context["answer"] = (await run.result())["value"]

    async with Runner("memory:", slots=1) as runner:
        assert (await runner.execute(flow_of(parent, name="parent")))["answer"] == 42


# --- promise -----------------------------------------------------------------------------


@virtual_test
async def test_a_promise_is_a_token_that_others_settle():
    """The same name is the same promise; its value comes back; it can be awaited again."""

    @task
    async def asks(context, handle):
        token = await handle.promise("approval")
        assert (await handle.promise("approval")).id == token.id
        tokens.append(token.id)
        context["answer"] = await token
        assert await token == context["answer"]

    tokens = []
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks), run_id="r")
        await asyncio.sleep(10)
        assert tokens[0].startswith("run/r:asks")
        await runner.resolve(tokens[0], "yes")
        assert (await run.result())["answer"] == "yes"


@virtual_test
async def test_a_token_can_be_waited_for_again_after_a_timeout():
    """The natural reminder loop: each wait has its whole timeout, nothing spins."""

    @task
    async def asks(context, handle):
        token = await handle.promise("approval")
        reminders = 0
        while True:
            try:
                context["answer"] = await token.wait(timeout=60)
                break
            except DeferTimeout:
                reminders += 1
        context["reminders"] = reminders

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks), run_id="r")
        await asyncio.sleep(200)
        (token,) = [each for each in promises(runner) if "approval" in each and "w0" not in each]
        await runner.resolve(token, "yes")
        assert (await run.result()).to_dict() == {"answer": "yes", "reminders": 3}


# --- checkpoint --------------------------------------------------------------------------


@virtual_test
async def test_a_checkpoint_runs_once_per_key_sync_or_async():
    """Also when asked again in the same body; the value is what every later life will read."""
    calls = []

    def plain(*args):
        calls.append(args)
        return {"pair": (1, 2), "args": list(args)}

    async def coroutine(x):
        await asyncio.sleep(1)
        calls.append(x)
        return [x]

    @task
    async def keeps(context, handle):
        for _ in range(2):
            assert await handle.checkpoint("a", plain, 1, "x") == {"pair": [1, 2], "args": [1, "x"]}
            assert await handle.checkpoint("b", coroutine, 5) == [5]
            assert await handle.checkpoint("none", lambda: calls.append("none")) is None

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(keeps))
    assert calls == [(1, "x"), 5, "none"]


@pytest.mark.parametrize("first_fails", [False, True])
@virtual_test
async def test_checkpoints_survive_retries(first_fails):
    """What was stored is read by the next try; what raised was not stored."""
    calls = []

    def costly():
        calls.append(1)
        if first_fails and len(calls) == 1:
            raise OSError("not yet")
        return len(calls)

    @task(retries=2)
    async def keeps(context, handle):
        context["value"] = await handle.checkpoint("cost", costly)
        if handle.try_number < 3:
            raise OSError("again")

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(keeps))
    assert (result["value"], len(calls)) == ((2, 2) if first_fails else (1, 1))


@virtual_test
async def test_a_checkpoint_takes_arguments_by_name():
    """They are compared like the others, in any order."""
    calls = []

    def pay(amount, *, key, note=""):
        calls.append((amount, key, note))
        return amount

    @task
    async def keeps(context, handle):
        for _ in range(2):
            assert await handle.checkpoint("pay", pay, 5, key="k", note="n") == 5
        assert await handle.checkpoint("pay", pay, 5, note="n", key="k") == 5

    @task
    def keeps_too(context, handle):
        for _ in range(2):
            assert handle.checkpoint("pay", pay, 6, key="k") == 6

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(keeps, keeps_too))
    assert sorted(calls) == [(5, "k", "n"), (6, "k", "")]
    digests = {digest_of(*arguments_of((5,), each)) for each in ({}, {"note": "n"}, {"note": "m"})}
    assert len(digests) == 3
    assert arguments_of((5,), {}) == (5,)  # as records written before say


BAD_RESULTS = {
    "object": object(),
    "set": {1},
    "bytes": b"x",
    "nan": float("nan"),
    "keys": {1: "x"},
    "timedelta": timedelta(1),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
@virtual_test
async def test_a_checkpoint_of_what_is_no_json_names_the_key(name):
    """It would come back as something else, or not at all."""

    @task
    async def keeps(context, handle):
        with pytest.raises(UsageError, match=r"checkpoint 'cost'.*JSON"):
            await handle.checkpoint("cost", lambda: BAD_RESULTS[name])

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(keeps))


@pytest.mark.parametrize("key", ["", " ", 7, None, "x" * 300])
@virtual_test
async def test_a_checkpoint_needs_a_key(key):
    """A text that is not empty and not huge."""

    @task
    async def keeps(context, handle):
        with pytest.raises(UsageError, match="key"):
            await handle.checkpoint(key, lambda: 1)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(keeps))


# --- execution control -------------------------------------------------------------------


@virtual_test
async def test_yield_slot_lets_whoever_is_ready_go_first():
    """Also a task that stands in the store because there was no credit for it."""
    log = []

    @task
    async def long(context, handle):
        log.append("long begins")
        await asyncio.sleep(5)
        await handle.yield_slot()
        assert handle.is_slot_held()
        log.append("long ends")

    @task
    async def short(context):
        log.append("short")
        await asyncio.sleep(1)

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            first = await runner.start(flow_of(long, name="long"))
            second = await runner.start(flow_of(short, name="short"))
            await asyncio.gather(first.result(), second.result())
            slots.assert_never_more_than(1)
    assert log == ["long begins", "short", "long ends"]


@virtual_test
async def test_yield_slot_with_nobody_waiting_goes_on_at_once():
    """And its clock does not run while others have the slot."""

    @task(timeout=3)
    async def polite(context, handle):
        for _ in range(5):
            await handle.yield_slot()
        await asyncio.sleep(1)
        await handle.yield_slot()

    @task
    async def other(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(polite, name="polite"))
        await asyncio.sleep(0.5)
        waiting = await runner.start(flow_of(other, name="other"))
        await run.result()
        assert runner.now() - begin == 101_000
        await waiting.result()


@virtual_test
async def test_progress_is_visible_and_leaves_the_rest_alone():
    """Said with the slot held or from a condition: Deferred stays Deferred."""

    @task
    async def works(context, handle):
        handle.progress(0.25, "a quarter")
        await asyncio.sleep(5)

        def condition():
            handle.progress(text="still waiting")
            return False

        await handle.defer_until(condition, poll_interval=10)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        begin = runner.now()
        await asyncio.sleep(1)
        seen = await look(run, "works")
        assert seen.progress is not None
        assert (seen.progress.fraction, seen.progress.text) == (0.25, "a quarter")
        assert (seen.progress.at, seen.sub_status) == (begin, "Active")
        await asyncio.sleep(20)
        seen = await look(run, "works")
        assert seen.progress is not None
        assert (seen.progress.fraction, seen.progress.text) == (None, "still waiting")
        assert seen.sub_status == "Deferred"
        assert seen.waiting_on is not None
        assert seen.waiting_on.kind == "condition"
        await run.cancel()


@pytest.mark.parametrize("letter", ["x", "\x1b", "\U0001f600"])
@virtual_test
async def test_long_progress_is_cut_and_says_so(letter):
    """The store takes no more, and would refuse the record of the wait that goes with it."""

    @task
    async def works(context, handle):
        handle.progress(0.25, letter * 100_000)
        await handle.sleep(5)
        context["value"] = await handle.wait_for("p", timeout=5)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        await asyncio.sleep(1)
        seen = await look(run, "works")
        assert seen.progress is not None
        assert seen.progress.text == f"{letter * 8_000}... (92000 characters left out)"
        assert seen.sub_status == "Deferred"
        await runner.resolve("p", 1)
        assert (await run.result())["value"] == 1


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
@virtual_test
async def test_progress_refuses_what_is_no_fraction(fraction):
    """Percentages are a common slip."""

    @task
    async def works(context, handle):
        with pytest.raises(UsageError, match="fraction"):
            handle.progress(fraction)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works))


@virtual_test
async def test_what_a_handle_says_of_its_task():
    """Try number, id and slot; `is_cancelled` turns true when the body is being ended."""
    seen = []

    @task(retries=1)
    async def looks(context, handle):
        seen.append((handle.try_number, handle.task_execution_id, handle.is_slot_held()))
        if handle.try_number == 1:
            raise OSError("once")
        try:
            await asyncio.sleep(1000)
        finally:
            seen.append(handle.is_cancelled)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(looks), run_id="r")
        await asyncio.sleep(50)
        await run.cancel()
        await settled_down()
    assert seen == [(1, "run/r:looks", True), (2, "run/r:looks", True), True]


async def helper():
    await current_handle().sleep(5)
    return current_handle().task_execution_id


@virtual_test
async def test_the_current_handle_serves_helpers_also_in_child_tasks():
    """Without the parameter in the signature; outside of a task there is none."""

    @task
    async def works(context):
        context["id"] = await helper()
        context["child"] = await asyncio.create_task(helper())

    with pytest.raises(UsageError, match="no current task"):
        current_handle()
    async with Runner("memory:") as runner:
        with SlotWatch(runner) as slots:
            result = await runner.execute(flow_of(works), run_id="r")
            assert 0 in [held for _, held in slots.history[1:-1]]
    assert result.to_dict() == {"id": "run/r:works", "child": "run/r:works"}


def blocking_helper():
    handle: Any = current_handle()
    handle.sleep(5)
    return handle.task_execution_id


@virtual_test
async def test_the_current_handle_of_a_thread_blocks_it():
    """A helper called by a plain def gets the blocking form."""

    @task
    def works(context):
        context["id"] = blocking_helper()
        context["thread"] = threading.current_thread() is not threading.main_thread()

    async with Runner("memory:") as runner:
        begin = runner.now()
        result = await runner.execute(flow_of(works), run_id="r")
        assert result.to_dict() == {"id": "run/r:works", "thread": True}
        assert runner.now() == begin + 5_000


who = contextvars.ContextVar("who", default="nobody")


@virtual_test
async def test_what_one_body_sets_in_its_context_does_not_reach_another():
    """A finished task hands its slot on, not its context variables, nor its handle."""
    seen = []

    @task
    async def first(context):
        seen.append(who.get())
        who.set("first")

    @task(dependencies=[first])
    async def second(context):
        seen.append(who.get())
        seen.append(current_handle().task_execution_id)

    async with Runner("memory:", slots=1) as runner:
        await runner.execute(flow_of(first, second), run_id="a")
        await runner.execute(flow_of(first, second), run_id="b")
    assert seen == ["nobody", "nobody", "run/a:second", "nobody", "nobody", "run/b:second"]


# --- the blocking handle -----------------------------------------------------------------


@virtual_test
async def test_a_plain_def_has_the_same_calls_blocking():
    """Every call of the handle, from a thread, in virtual time."""

    async def coroutine(x):
        return x + 1

    @task
    def works(context, handle):
        answers = iter([False, True])
        handle.defer_until(lambda: next(answers), poll_interval_ms=1000)
        handle.sleep(10)
        context["got"] = handle.wait_for("paid", timeout=100)
        token = handle.promise("ok")
        ids.append(token.id)
        context["token"] = token.wait()
        context["kept"] = [handle.checkpoint("k", lambda: 1) for _ in range(2)]
        context["async"] = handle.checkpoint("a", coroutine, 1)
        handle.progress(0.5, "half")
        handle.yield_slot()
        with pytest.raises(DeferTimeout):
            handle.wait_for("never", timeout=5)
        context["held"] = handle.is_slot_held()
        context["try"] = (handle.try_number, handle.is_cancelled, handle.task_execution_id)

    ids = []
    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(works), run_id="r")
            await asyncio.sleep(15)
            assert slots.held == 0
            await runner.resolve("paid", 5)
            await asyncio.sleep(5)
            await runner.resolve(ids[0], "yes")
            result = await run.result()
            slots.assert_never_more_than(1)
    assert result.to_dict() == {
        "got": 5,
        "token": "yes",
        "kept": [1, 1],
        "async": 2,
        "held": True,
        "try": [1, False, "run/r:works"],
    }


def test_the_first_check_of_a_plain_def_does_not_block_the_loop():
    """Its condition may block like its body does; async work goes on meanwhile."""
    asked, go_on = threading.Event(), threading.Event()

    @task
    def waits(context, handle):
        def blocks():
            asked.set()
            return go_on.wait(30)

        handle.defer_until(blocks, poll_interval=1)

    @task
    async def works(context):
        pass

    async def main():
        async with Runner("memory:") as runner:
            run = await runner.start(flow_of(waits, name="w"))
            await asyncio.to_thread(asked.wait, 30)
            await runner.execute(flow_of(works, name="b"), timeout=10)
            go_on.set()
            await run.result(timeout=60)

    asyncio.run(main())


@virtual_test
async def test_a_task_can_wait_for_every_promise_that_it_made():
    """However long the names of its run and itself are, and in a later life, whose ids grow."""
    run_id, name = "r" * 200, "n" * MAX_PROMISE_NAME_BYTES
    tokens: asyncio.Queue[str] = asyncio.Queue()
    broken = [True]

    @task(id="t" * 200)
    async def asks(context, handle):
        token = await handle.promise(name)
        tokens.put_nowait(token.id)
        context["said"] = await token
        if broken:
            broken.clear()
            raise ValueError("a bug")

    @task
    async def watches(context, handle):
        context["seen"] = (await (await runner.get(run_id)).result())["said"]

    async with Runner("memory:") as runner:
        run = await runner.start(Workflow("asking", [asks]), run_id=run_id)
        await runner.resolve(await tokens.get(), "yes")
        await run.cleaned_up()
        await run.rerun()
        watching = await runner.start(Workflow("watching", [watches]))
        await runner.resolve(await tokens.get(), "no")
        assert (await watching.result())["seen"] == "no"


@virtual_test
async def test_a_name_that_is_too_long_is_refused_when_the_promise_is_made():
    @task
    async def asks(context, handle):
        with pytest.raises(UsageError, match=f"at most {MAX_PROMISE_NAME_BYTES} bytes"):
            await handle.promise("n" * (MAX_PROMISE_NAME_BYTES + 1))
        with pytest.raises(UsageError, match="promise id is too long: at most 1024 bytes"):
            await handle.wait_for("n" * 1025)

    async with Runner("memory:") as runner:
        await runner.execute(Workflow("asking", [asks]))
