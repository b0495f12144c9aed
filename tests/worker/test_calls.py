"""`@task(rpc=…)`: calls of other languages run as tasks do, with slots, waits, retries and all."""

import asyncio
import json
import threading
from typing import Any

import pytest

from layby import (
    PromiseCancelled,
    PromiseRejected,
    PromiseTimedOut,
    RetryPolicy,
    Runner,
    UsageError,
    Workflow,
    task,
)
from layby.core.commands import (
    AcquireTask,
    CancelPromise,
    ContinueTask,
    CreatePromise,
    HaltTask,
    ReleaseTask,
    Take,
    Value,
)
from layby.core.model import NEVER
from layby.core.replies import Reply
from layby.testing import SlotWatch, virtual_test
from layby.worker.worker import Worker
from layby.workflow.plan import plan
from tests.helpers.callers import Stranger, answer_to, call, promise_of, task_of
from tests.helpers.process_bodies import halves
from tests.helpers.workers import crashing, flow_of, promises, settled_down, until


@task(rpc="greet")
async def greet(context):
    return f"Hello, {context['args'][0]}!"


# --- serving -----------------------------------------------------------------------------


@virtual_test
async def test_a_call_is_answered():
    """Of a Runner that has nothing but this one function."""
    async with Runner("memory:") as runner:
        runner.register(greet)
        await call(runner, "c", "greet", "Ada")
        assert await answer_to(runner, "c") == "Hello, Ada!"
        assert (await task_of(runner, "c")).version == 1


@virtual_test
async def test_calls_made_before_anybody_serves_them():
    """They are kept, and answered as soon as the code is there; no retry is waited for."""
    async with Runner("memory:") as runner:
        await call(runner, "c", "greet", "Ada")
        await asyncio.sleep(3)
        begin = runner.now()
        runner.register(greet)
        assert await answer_to(runner, "c") == "Hello, Ada!"
        assert runner.now() == begin


@virtual_test
async def test_a_task_of_a_workflow_serves_calls_as_well():
    """From when its workflow is known; in a run it does what it always did."""

    @task(rpc="double", dependencies=["begins"])
    async def doubles(context):
        context["n"] = 2 * context["n"]

    @task
    async def begins(context): ...

    async with Runner("memory:") as runner:
        assert await runner.execute(flow_of(begins, doubles), {"n": 1}) == {"n": 2}
        await call(runner, "c", "double", {"n": 21})
        assert await answer_to(runner, "c") == {"n": 42}


@virtual_test
async def test_two_tasks_of_one_runner_call_each_other():
    """A caller that waits holds no slot, so one slot is enough for all of it."""

    @task(rpc="outer")
    async def outer(context, handle):
        return await handle.rpc("greet", *context["args"])

    @task
    async def begins(context, handle):
        context["got"] = await handle.rpc("outer", "Ada")
        assert runner._program._runs["run/r"].outcomes == {}  # a call is no task of the run

    async with Runner("memory:", slots=1) as runner:
        runner.register(greet)
        runner.register(outer)
        with SlotWatch(runner) as slots:
            assert await runner.execute(flow_of(begins), run_id="r") == {"got": "Hello, Ada!"}
            assert slots.peak == 1
        inner = promises(runner)["run/r:begins.x.rpc-1.x.rpc-1"]
        tags = json.loads(inner.tags)
        assert tags["resonate:origin"] == "run/r"
        assert tags["resonate:parent"] == "run/r:begins.x.rpc-1"
        assert (await runner.get("r")).id == "r"


@virtual_test
async def test_a_call_knows_where_it_comes_from():
    """What it calls in its turn belongs to the same tree, as the SDKs draw it."""

    @task(rpc="outer")
    async def outer(context, handle):
        return await handle.rpc("greet", "Ada")

    async with Runner("memory:") as runner:
        runner.register(outer)
        runner.register(greet)
        await call(runner, "root", "outer")
        assert await answer_to(runner, "root") == "Hello, Ada!"
        tags = json.loads(promises(runner)["root:x.rpc-1"].tags)
        assert (tags["resonate:origin"], tags["resonate:parent"]) == ("root", "root")


@virtual_test
async def test_a_plain_def_and_a_process_serve_too():
    """With the blocking handle, or with none."""

    @task(rpc="plain")
    def plain(context, handle):
        handle.sleep(1)
        return threading.current_thread() is not threading.main_thread()

    async with Runner("memory:") as runner:
        runner.register(plain)
        runner.register(halves)
        await call(runner, "a", "plain")
        await call(runner, "b", "halve", {"n": 84, "m": 1})
        assert await answer_to(runner, "a") is True
        assert await answer_to(runner, "b") == {"n": 42}


@virtual_test
async def test_what_cannot_serve_is_refused():
    """At once, with the remedy."""

    @task
    async def silent(context): ...

    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="rpc='name'"):
            runner.register(silent)
    async with Runner("memory:", group="layby.x") as runner:
        with pytest.raises(UsageError, match="another group="):
            runner.register(greet)
        with pytest.raises(UsageError, match="another group="):
            await runner.start(flow_of(greet))


# --- slots -------------------------------------------------------------------------------


@virtual_test
async def test_never_more_bodies_than_slots():
    """However many calls and runs come at once; and everyone is served."""
    bodies = set()

    @task(rpc="work")
    async def work(context, handle):
        bodies.add(handle.task_execution_id)
        await asyncio.sleep(1)
        await handle.sleep(1)
        await asyncio.sleep(1)
        return len(bodies)

    async with Runner("memory:", slots=3) as runner:
        runner.register(work)
        with SlotWatch(runner) as slots:
            runs = [await runner.start(flow_of(work)) for _ in range(20)]
            for number in range(20):
                await call(runner, f"c{number}", "work")
            for number in range(20):
                await answer_to(runner, f"c{number}")
            for run in runs:
                await run.result()
            assert slots.peak == 3
            assert slots.held == 0
    assert len(bodies) == 40


@virtual_test
async def test_a_call_is_acquired_only_with_a_slot_free():
    """Until then it is remembered, and anybody else may have it."""
    gate = asyncio.Event()

    @task(rpc="work")
    async def work(context):
        await gate.wait()

    async with Runner("memory:", slots=1) as runner:
        runner.register(work)
        await call(runner, "first", "work")
        await settled_down()
        for name in ("mine", "theirs"):
            await call(runner, name, "work")
        await settled_down()
        assert (await task_of(runner, "mine")).state == "pending"
        taken = await runner.client.send(AcquireTask(id="theirs", version=0, pid="js", ttl=10**9))
        assert taken.status == 200
        gate.set()
        await answer_to(runner, "mine")
        await settled_down()
        assert (await task_of(runner, "theirs")).pid == "js"


@virtual_test
async def test_a_slot_is_not_offered_to_a_run_and_to_a_call():
    """A task of a run that becomes ready while the call is acquired finds no slot any more."""

    @task
    async def node(context): ...

    @task(rpc="work")
    async def work(context):
        await asyncio.sleep(60)

    async with Runner("memory:", slots=1) as runner:
        flow = flow_of(node)
        runner.register(work)
        runner.register(flow)
        await settled_down()
        client: Any = runner.client
        send, late = client.send, []

        async def send_late(request, *rest):
            if isinstance(request, Take) and request.free == 0:
                await asyncio.sleep(1)  # the offer that stands is taken back late
            if isinstance(request, AcquireTask):
                late.append(client.ask(plan(flow, "r", {}, "default", NEVER)))
            return await send(request, *rest)

        client.send = send_late
        await call(runner, "c", "work")
        await asyncio.sleep(5)
        assert late
        assert (await task_of(runner, "c")).state == "acquired"
        assert (await task_of(runner, "run/r:node")).state == "pending"
        await (await runner.get("r")).result()


@virtual_test
async def test_a_busy_worker_lets_another_one_have_the_call():
    """It is told to whoever else listens in the group, at once."""

    @task(rpc="work")
    async def work(context):
        await asyncio.sleep(60)

    async with Runner("memory:", slots=1) as runner:
        runner.register(work)
        await call(runner, "first", "work")
        await settled_down()
        other = Stranger(runner)
        for number in range(8):
            await call(runner, f"c{number}", "work")
        await settled_down()
        assert sorted(other.heard) == [(f"c{number}", 0) for number in range(8)]


@virtual_test
async def test_calls_and_runs_take_turns():
    """In the order in which they came, with one slot and plenty of both."""
    order = []

    @task(rpc="work")
    async def work(context, handle):
        is_run = handle.task_execution_id.startswith("run/")
        order.append("run" if is_run else "call")
        await asyncio.sleep(1)

    async with Runner("memory:", slots=1) as runner:
        runner.register(work)
        for number in range(10):
            await runner.start(flow_of(work))
            await asyncio.sleep(0.001)
            await call(runner, f"c{number}", "work")
            await asyncio.sleep(0.001)
        await until(lambda: len(order) == 20)
    assert "".join(each[0] for each in order) == "rc" * 10


@pytest.mark.parametrize("slots", [1, 2, 3])
@virtual_test
async def test_calls_that_park_do_not_keep_runs_out(slots):
    """A slot that a wait has freed goes to the oldest, as one that an end has freed."""
    order = []

    @task(rpc="work")
    async def work(context, handle):
        order.append("run" if handle.task_execution_id.startswith("run/") else "call")
        await handle.sleep(3600)

    async with Runner("memory:", slots=slots) as runner:
        runner.register(work)
        blocker = asyncio.Event()

        @task
        async def blocks(context):
            await blocker.wait()

        for _ in range(slots):
            await runner.start(flow_of(blocks, name="blocks"))
        for number in range(12):
            await call(runner, f"c{number}", "work")
            await asyncio.sleep(0.001)
            await runner.start(flow_of(work))
            await asyncio.sleep(0.001)
        blocker.set()
        await until(lambda: len(order) == 24)
    for part in (order[:6], order[:12], order[:18]):
        assert abs(part.count("call") - len(part) // 2) <= slots


@pytest.mark.parametrize("slots", [1, 2, 3])
@virtual_test
async def test_calls_do_not_wait_for_runs_that_do_not_come(slots):
    """A Runner with a workflow, and nothing to do for it: every slot is for calls."""

    @task(rpc="work")
    async def work(context, handle):
        await handle.sleep(5)
        return runner.now() - begin

    async with Runner("memory:", slots=slots) as runner:
        runner.register(flow_of(work))
        begin = runner.now()
        for number in range(12):
            await call(runner, f"c{number}", "work")
        assert {await answer_to(runner, f"c{number}") for number in range(12)} == {5_000}


@virtual_test
async def test_a_busy_worker_says_so_again():
    """Each time it is told: somebody else may have come meanwhile."""

    @task(rpc="work")
    async def work(context):
        await asyncio.sleep(600)

    async with Runner("memory:", slots=1) as runner:
        runner.register(work)
        await call(runner, "first", "work")
        await call(runner, "second", "work")
        await asyncio.sleep(40)
        other = Stranger(runner)
        await settled_down()
        assert other.heard == [("second", 0)]


@virtual_test
async def test_who_yields_its_slot_lets_calls_go_first():
    """As it lets tasks of runs."""
    order = []

    @task
    async def yields(context, handle):
        await asyncio.sleep(5)
        await handle.yield_slot()
        order.append("run")

    @task(rpc="work")
    async def work(context):
        order.append("call")

    async with Runner("memory:", slots=1) as runner:
        runner.register(work)
        run = await runner.start(flow_of(yields))
        await asyncio.sleep(1)
        await call(runner, "c", "work")
        await run.result()
    assert order == ["call", "run"]


# --- waits, and what outlives a crash ------------------------------------------------------


@virtual_test
async def test_the_handle_of_a_call_waits_and_records(tmp_path):
    """Without a slot; after a crash what was recorded is not repeated, and it goes on at once."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    log = []

    @task(rpc="order")
    async def order(context, handle):
        log.append(handle.try_number)
        paid = await handle.checkpoint("pay", lambda: log.append("paid") or len(log))
        await handle.sleep(10)
        token = await handle.promise("approval")
        log.append(token.id)
        return [paid, await token, await handle.wait_for("news")]

    async with crashing(address, slots=1) as runner:
        runner.register(order)
        with SlotWatch(runner) as slots:
            await call(runner, "c", "order")
            await asyncio.sleep(5)
            assert slots.held == 0
            seen = await task_of(runner, "c")
            assert seen.sub_status == "Deferred"
            assert "sleeping 10 s" in (seen.waiting_on or "")
    async with crashing(address) as runner:
        begin = runner.now()
        runner.register(order)
        await settled_down()
        assert (runner.now(), log[-1]) == (begin, 2)
        await asyncio.sleep(60)
        await runner.resolve("c.c.promise.approval", "yes")
    async with Runner(address) as runner:
        runner.register(order)
        await asyncio.sleep(1)
        await runner.resolve("news", 7)
        assert await answer_to(runner, "c") == [2, "yes", 7]
    token = "c.c.promise.approval"
    assert log == [1, "paid", 2, token, 3, token]


@virtual_test
async def test_a_failed_call_backs_off_without_a_slot(tmp_path):
    """Failures are counted across crashes and apart from waits; the last one is the answer."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    tries = []

    @task(rpc="work", retry=RetryPolicy(max_attempts=3, delay=10, backoff="fixed"))
    async def work(context, handle):
        tries.append(handle.try_number)
        await handle.sleep(1)
        raise ValueError(f"failure {len(tries)}")

    async with crashing(address) as runner:
        runner.register(work)
        with SlotWatch(runner) as slots:
            await call(runner, "c", "work")
            await asyncio.sleep(5)
            assert slots.held == 0
            assert (await task_of(runner, "c")).state == "suspended"
    async with crashing(address) as runner:
        runner.register(work)
        await asyncio.sleep(6.5)
        assert tries == [1, 2]
    async with Runner(address) as runner:
        runner.register(work)
        with pytest.raises(PromiseRejected, match="ValueError: failure 4"):
            await answer_to(runner, "c")
        assert (await task_of(runner, "c")).failures == 3
        error = json.loads((await promise_of(runner, "c")).value)
    assert error["headers"] == {}
    assert tries == [1, 2, 3, 4]


@virtual_test
async def test_a_call_that_holds_its_slot_too_long_fails():
    """By the timeout of the task; parked time does not count."""

    @task(rpc="work", timeout=5)
    async def work(context, handle):
        await handle.sleep(60)
        await asyncio.sleep(60)

    async with Runner("memory:") as runner:
        runner.register(work)
        begin = runner.now()
        await call(runner, "c", "work")
        with pytest.raises(PromiseRejected, match="TaskTimeout"):
            await answer_to(runner, "c")
        assert runner.now() - begin == 65_000


@virtual_test
async def test_an_answer_without_a_json_form_fails_the_call():
    """It names the function."""

    @task(rpc="work")
    async def work(context):
        return {1, 2}

    async with Runner("memory:") as runner:
        runner.register(work)
        await call(runner, "c", "work")
        with pytest.raises(PromiseRejected, match="the result of 'work'"):
            await answer_to(runner, "c")


# --- leases ------------------------------------------------------------------------------


@virtual_test
async def test_a_long_call_keeps_its_lease():
    """Running or parked, for an hour: nobody is told of it again."""

    @task(rpc="work")
    async def work(context, handle):
        await asyncio.sleep(1800)
        await handle.sleep(1800)

    async with Runner("memory:") as runner:
        runner.register(work)
        await call(runner, "c", "work")
        await settled_down()
        other = Stranger(runner)
        assert await answer_to(runner, "c") is None
        assert other.heard == []
        assert (await task_of(runner, "c")).version == 1


@pytest.mark.parametrize("is_parked", [True, False])
@virtual_test
async def test_a_cancelled_call_ends_at_once(is_parked):
    """Its body is cancelled, its slot is free, and it writes nothing more."""
    ended = []

    @task(rpc="work")
    async def work(context, handle):
        try:
            await (handle.sleep(3600) if is_parked else asyncio.sleep(3600))
        finally:
            ended.append(runner.now())

    async with Runner("memory:") as runner:
        runner.register(work)
        with SlotWatch(runner) as slots:
            await call(runner, "c", "work")
            await asyncio.sleep(65)
            await runner.client.send(CancelPromise(id="c", by="ada"))
            await settled_down()
            assert ended == [runner.now()]
            assert slots.held == 0
            with pytest.raises(PromiseCancelled):
                await answer_to(runner, "c")


@virtual_test
async def test_a_call_past_its_deadline_ends():
    """The caller's own timeout reaches the body."""
    ended = []

    @task(rpc="work")
    async def work(context):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(runner.now())

    async with Runner("memory:") as runner:
        runner.register(work)
        due = runner.now() + 60_000
        await call(runner, "c", "work", timeout_at=due)
        with pytest.raises(PromiseTimedOut):
            await answer_to(runner, "c")
        await settled_down()
        assert ended == [due]


@virtual_test
async def test_a_halted_call_ends_and_goes_on_later():
    """Nobody tells a worker of it by the protocol, so it looks now and then."""
    log = []

    @task(rpc="work")
    async def work(context, handle):
        log.append(handle.try_number)
        try:
            await asyncio.sleep(3600 if handle.try_number == 1 else 1)
        finally:
            log.append("end")

    async with Runner("memory:") as runner:
        runner.register(work)
        await call(runner, "c", "work")
        await asyncio.sleep(5)
        await runner.client.send(HaltTask(id="c"))
        await asyncio.sleep(60)
        assert log == [1, "end"]
        await runner.client.send(ContinueTask(id="c"))
        await answer_to(runner, "c")
    assert log == [1, "end", 2, "end"]


@virtual_test
async def test_a_call_taken_away_ends_here_before_it_begins_anew():
    """Its lease was lost: the message says so before anything else does."""
    log = []

    @task(rpc="work")
    async def work(context, handle):
        log.append(handle.try_number)
        try:
            await asyncio.sleep(100 if handle.try_number == 1 else 1)
        finally:
            log.append(f"end {handle.try_number}")

    async with Runner("memory:") as runner:
        runner.register(work)
        await call(runner, "c", "work")
        await asyncio.sleep(5)
        await runner.client.send(ReleaseTask(id="c", version=1))  # as its expiry does
        await settled_down()
        assert log[:2] == [1, "end 1"]
        await answer_to(runner, "c")
    assert log == [1, "end 1", 2, "end 2"]


@virtual_test
async def test_a_stop_hands_calls_back_at_once(tmp_path):
    """Running, parked or only remembered: the next worker need not wait for a lease."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(rpc="work")
    async def work(context, handle):
        if handle.try_number == 1:
            await (handle.sleep(60) if context["parks"] else asyncio.sleep(60))
        return handle.try_number

    async with Runner(address, slots=1) as runner:
        runner.register(work)
        await call(runner, "parked", "work", {"parks": True})
        await asyncio.sleep(1)
        await call(runner, "running", "work", {"parks": False})
        await asyncio.sleep(1)
        await call(runner, "remembered", "work", {"parks": False})
        await asyncio.sleep(1)
        begin = runner.now()
    async with Runner(address) as runner:
        states = [(await task_of(runner, each)).state for each in ("parked", "running")]
        assert states == ["pending", "pending"]
        runner.register(work)
        assert await answer_to(runner, "running") == 2
        assert runner.now() == begin
        assert await answer_to(runner, "parked") == 2
        assert await answer_to(runner, "remembered") == 1


# --- what is not ours --------------------------------------------------------------------


@virtual_test
async def test_a_call_of_a_function_we_have_not_is_left_to_others():
    """Never acquired, and told to another worker of the group without delay."""
    async with Runner("memory:") as runner:
        runner.register(greet)
        await call(runner, "a", "unknown")
        await settled_down()
        assert (await task_of(runner, "a")).version == 0
        other = Stranger(runner)
        for name in "bcdefgh":
            await call(runner, name, "unknown")
        await settled_down()
        assert sorted(other.heard) == [(name, 0) for name in "abcdefgh"]


@virtual_test
async def test_what_is_no_call_is_left_alone():
    """A sleep of an SDK has a target too; so may promises that somebody made by hand."""
    async with Runner("memory:") as runner:
        runner.register(greet)
        tags = {"resonate:target": "poll://any@default", "resonate:timer": "true"}
        for name, data in (("sleep", ""), ("text", "bm90IGpzb24="), ("list", "W10="), ("raw", "!")):
            create = CreatePromise(
                id=name,
                timeout_at=runner.now() + 60_000,
                param=Value(headers={}, data=data),
                tags=tags if name == "sleep" else {"resonate:target": "poll://any@default"},
            )
            await runner.client.send(create)
        await asyncio.sleep(40)
        for name in ("sleep", "text", "list", "raw"):
            assert (await task_of(runner, name)).version == 0


@virtual_test
async def test_code_that_comes_later_serves_what_was_left():
    """At once: what was declined is heard again."""

    @task(rpc="later")
    async def later(context):
        return "late"

    async with Runner("memory:") as runner:
        runner.register(greet)
        await call(runner, "c", "later")
        await asyncio.sleep(3)
        begin = runner.now()
        await runner.start(Workflow("late", tasks=[later]))
        assert await answer_to(runner, "c") == "late"
        assert runner.now() == begin


@virtual_test
async def test_another_group_is_not_ours():
    """A Runner serves the calls of its own group."""
    async with Runner("memory:", group="ours") as runner:
        runner.register(greet)
        await call(runner, "theirs", "greet", "x")
        await call(runner, "ours", "greet", "x", group="ours")
        assert await answer_to(runner, "ours") == "Hello, x!"
        assert (await task_of(runner, "theirs")).version == 0


@virtual_test
async def test_more_calls_than_are_remembered(monkeypatch):
    """The rest is heard again when those are done; nothing waits for a retry."""
    monkeypatch.setattr("layby.worker.calls.MAX_WAITING", 5)

    async with Runner("memory:", slots=1) as runner:
        runner.register(greet)
        begin = runner.now()
        for number in range(40):
            await call(runner, f"c{number}", "greet", number)
        for number in range(40):
            assert await answer_to(runner, f"c{number}") == f"Hello, {number}!"
        assert runner.now() == begin


class LostAnswers:
    """A client whose answers to acquires get lost. Each is sent again, is refused since its task is
    acquired, and then finds that it is acquired by us, as `lost_replies` does.
    """

    def __init__(self, worker: Worker) -> None:
        self._client = worker.client
        self._first: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.acquires = 0
        worker.client = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, request: Any) -> Reply:
        if not isinstance(request, AcquireTask):
            return await self._client.send(request)
        self.acquires += 1
        await asyncio.sleep(1)
        if self.acquires == 1 or not self._first.done():
            reply = await self._client.send(request)
            if reply.is_ok:
                self._first.set_result(reply)
        return await self._first


@pytest.mark.parametrize("second_after", [0, 0.5, 1.5], ids=["read", "acquired", "begun"])
@virtual_test
async def test_a_call_that_is_heard_of_twice_has_one_body(second_after: float):
    """Whoever lost its stream is told of it again, and may have lost an answer as well."""
    bodies: list[int] = []

    @task(rpc="work")
    async def work(context, handle):
        bodies.append(handle.try_number)
        await asyncio.sleep(10)

    async with Runner("memory:", slots=2) as runner:
        runner.register(work)
        lost = LostAnswers(runner.worker)
        await call(runner, "c", "work")
        await asyncio.sleep(second_after)
        runner.worker.calls.on_execute("c", 0)
        await asyncio.sleep(5)
        assert (await task_of(runner, "c")).state == "acquired"
        assert runner.worker.credit.held == 1
        await answer_to(runner, "c")
        await asyncio.sleep(5)
        assert (bodies, lost.acquires) == ([1], 1)
