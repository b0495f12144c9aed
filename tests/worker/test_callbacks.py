"""`@task(on_success=…, on_failure=…)`: what is called, when, with what, and when not."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from layby import RetryPolicy, RunCancelled, RunFailed, Runner, TaskTimeout, task
from layby.core.commands import Command, FailTask, FinishTask, HaltTask
from layby.core.replies import Reply
from layby.errors import StoreUnavailable
from layby.local import LocalClient
from layby.testing import SlotWatch, virtual_test
from layby.worker.callbacks import Callbacks
from tests.helpers import process_bodies
from tests.helpers.callers import answer_to, call
from tests.helpers.server_thread import play, server_elsewhere
from tests.helpers.workers import crashing, flow_of, look, settled_down, until


class Told(list[tuple[Any, ...]]):
    """Callbacks that write down what they are told."""

    async def well(self, task_id, context):
        self.append((task_id, dict(context)))

    async def badly(self, task_id, error, context):
        self.append((task_id, f"{type(error).__name__}: {error}", dict(context)))

    def plainly_well(self, task_id, context):
        self.append((task_id, dict(context)))

    def plainly_badly(self, task_id, error, context):
        self.append((task_id, f"{type(error).__name__}: {error}", dict(context)))

    @property
    def both(self) -> dict[str, Any]:
        return {"on_success": self.well, "on_failure": self.badly}


async def retried(told: Told, runner: Runner, **callbacks: Any) -> None:
    """A task that fails twice, then does well."""

    @task(retry=RetryPolicy(max_attempts=3, delay=0.01), **callbacks)
    async def tries(context, handle):
        context["try"] = handle.try_number
        if handle.try_number < 3:
            raise OSError("not yet")

    await runner.execute(flow_of(tries), {"n": 1})
    await until(lambda: len(told) == 3)
    assert told == [
        ("tries", "OSError: not yet", {"n": 1, "try": 1}),
        ("tries", "OSError: not yet", {"n": 1, "try": 2}),
        ("tries", {"n": 1, "try": 3}),
    ]


@virtual_test
async def test_every_try_that_failed_is_told_and_the_one_that_did_well():
    """With the task's id, the error, and the context as that try left it."""
    told = Told()
    async with Runner("memory:") as runner:
        await retried(told, runner, **told.both)


@virtual_test
async def test_plain_functions_are_told_the_same():
    """Also under virtual time, which waits for them."""
    told = Told()
    async with Runner("memory:") as runner:
        await retried(told, runner, on_success=told.plainly_well, on_failure=told.plainly_badly)


def test_a_remote_worker_calls_them_too():
    """In the process that ran the task."""
    told = Told()

    async def scene(url: str) -> None:
        async with Runner(url) as runner:
            await retried(told, runner, on_success=told.plainly_well, on_failure=told.badly)

    with server_elsewhere() as elsewhere:
        play(lambda: scene(elsewhere.url))


@virtual_test
async def test_what_they_are_told_is_recorded_already():
    """Whoever they tell can look it up."""
    seen = []

    async def well(task_id, _):
        seen.append((await look(run, task_id)).status)

    async def badly(task_id, _, __):
        seen.append((await look(run, task_id)).failures)

    @task(retries=1, on_success=well, on_failure=badly)
    async def tries(context, handle):
        if handle.try_number == 1:
            raise OSError

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(tries))
        await run.result()
        await until(lambda: len(seen) == 2)
    assert seen == [1, "Completed"]


def test_a_timeout_is_a_failure_that_is_told():
    """Also of a thread that goes on."""
    told: list[Any] = []
    over = threading.Event()

    async def badly(task_id, error, _):
        told.append((task_id, type(error)))

    @task(timeout=0.05, on_failure=badly)
    async def sleeps(context):
        await asyncio.Event().wait()

    @task(timeout=0.05, on_failure=badly)
    def blocks(context):
        over.wait(10)

    async def scene() -> None:
        async with Runner("memory:") as runner:
            for each in (sleeps, blocks):
                with pytest.raises(RunFailed):
                    await runner.execute(flow_of(each, name=each.id))
            await until(lambda: len(told) == 2)
            over.set()

    asyncio.run(scene())
    assert told == [("sleeps", TaskTimeout), ("blocks", TaskTimeout)]


@virtual_test
async def test_a_result_that_cannot_be_stored_is_a_failure_that_is_told():
    """The body ended well, the task did not."""
    told = Told()

    @task(**told.both)
    async def gives(context):
        return {"key": object()}

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed):
            await runner.execute(flow_of(gives))
        await until(lambda: told)
    [(task_id, error, _)] = told
    assert (task_id, "key" in error) == ("gives", True)


@virtual_test
async def test_nobody_is_told_of_tasks_that_did_not_end_by_themselves(tmp_path):
    """Cancelled, halted, skipped, handed back: none of them has failed or done well."""
    told = Told()
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(**told.both)
    async def waits(context, handle):
        await handle.wait_for("event")

    @task(dependencies=[waits], **told.both)
    async def never(context): ...

    async with Runner(address) as runner:
        run = await runner.start(flow_of(waits, never), run_id="a")
        await runner.start(flow_of(waits, never), run_id="b")
        await asyncio.sleep(1)
        await runner.halt("b", "waits")
        await runner.continue_("b", "waits")
        await runner.cancel("a", "waits")
        with pytest.raises((RunFailed, RunCancelled)):
            await run.result()
        await asyncio.sleep(1)
    assert told == []
    async with Runner(address) as runner:
        runner.register(flow_of(waits, never))
        await runner.resolve("event")
        await (await runner.get("b")).result()
        await until(lambda: len(told) == 2)
    assert told == [("waits", {}), ("never", {})]


@virtual_test
async def test_nobody_is_told_of_an_end_that_was_refused(monkeypatch: pytest.MonkeyPatch):
    """It was taken away just before, and what becomes of it is told to whoever goes on with it."""
    told, refused = Told(), []
    ask = LocalClient.ask

    def ask_too_late(client: LocalClient, request: Command, *now: Any) -> Any:
        if isinstance(request, FinishTask | FailTask) and request.id.endswith(("well", "badly")):
            refused.append(request.id)
            ask(client, HaltTask(id=request.id))
        return ask(client, request, *now)

    @task(**told.both)
    async def well(context): ...

    @task(**told.both)
    async def badly(context):
        raise OSError

    async with Runner("memory:") as runner:
        monkeypatch.setattr(LocalClient, "ask", ask_too_late)
        await runner.start(flow_of(well, badly))
        await until(lambda: len(refused) == 2)
        await settled_down()
        held = [each.state for each in runner.engine._store.dump().tasks.values() if each.is_kept]
    assert (told, held) == ([], [])


@virtual_test
async def test_a_process_that_dies_with_the_task_tells_nobody(tmp_path):
    """It is told at most once: of the try that ended."""
    told = Told()
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(**told.both)
    async def works(context, handle):
        await asyncio.sleep(10)
        context["try"] = handle.try_number

    async with crashing(address) as runner:
        await runner.start(flow_of(works), run_id="a")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        runner.register(flow_of(works))
        await (await runner.get("a")).result()
        await until(lambda: told)
    assert told == [("works", {"try": 2})]


@virtual_test
async def test_they_hold_no_slot():
    """The next task runs while they take their time."""
    gate, begun = asyncio.Event(), []

    async def takes_its_time(task_id, _):
        begun.append(task_id)
        await gate.wait()

    @task(on_success=takes_its_time)
    async def first(context): ...

    @task(dependencies=[first])
    async def second(context): ...

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            await runner.execute(flow_of(first, second))
            slots.assert_none_held()
        assert begun == ["first"]
        gate.set()


def test_a_plain_function_does_not_block_the_loop():
    """It has a thread."""
    turned = threading.Event()
    told: list[bool] = []

    def waits_for_the_loop(*_):
        told.append(turned.wait(10))

    @task(on_success=waits_for_the_loop)
    async def works(context): ...

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await runner.execute(flow_of(works))
            turned.set()
            await until(lambda: told)

    asyncio.run(scene())
    assert told == [True]


def raises(*_):
    raise ValueError("oh")


async def raises_async(*_):
    raise ValueError("oh")


def exits(*_):
    raise SystemExit(3)


def stops(*_):
    return next(iter(()))


@pytest.mark.parametrize("callback", [raises, raises_async, exits, stops])
@virtual_test
async def test_an_error_in_one_is_logged_and_changes_nothing(
    callback, caplog: pytest.LogCaptureFixture
):
    """With the id of the task."""

    @task(on_success=callback)
    async def works(context):
        context["done"] = True

    @task(dependencies=[works], on_failure=callback)
    async def fails(context):
        raise OSError("its own")

    with caplog.at_level(logging.ERROR):
        async with Runner("memory:") as runner:
            with pytest.raises(RunFailed, match="its own"):
                await runner.execute(flow_of(works, fails), run_id="a")
    told = [each.getMessage() for each in caplog.records if each.name == Callbacks.__module__]
    assert [each.partition(": a callback failed")[0] for each in told] == [
        "run/a:works",
        "run/a:fails",
    ]


@virtual_test
async def test_what_they_do_to_the_context_is_not_kept():
    """It is recorded already."""

    async def meddles(_, context):
        context["n"] = 2
        context["list"].append(2)

    @task(on_success=meddles)
    async def first(context):
        context.update({"n": 1, "list": [1]})

    @task(dependencies=[first])
    async def second(context):
        await asyncio.sleep(1)
        context["seen"] = context["n"], context["list"]

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(first, second))
    assert result.to_dict() == {"n": 1, "list": [1], "seen": [1, [1]]}


def test_whoever_closes_waits_a_second_for_them():
    """A script that ends with its run does not cut them short; one that never ends is left."""
    ended: list[str] = []

    async def takes_a_moment(task_id, _):
        await asyncio.sleep(0.1)
        ended.append(task_id)

    async def never_ends(*_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @task(on_success=takes_a_moment)
    async def short(context): ...

    @task(on_success=never_ends)
    async def endless(context): ...

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await runner.execute(flow_of(short, endless))

    asyncio.run(asyncio.wait_for(scene(), 10))
    assert ended == ["short", "cancelled"]


def test_plain_ones_that_never_end_do_not_hold_up_a_close():
    """They have threads of their own; what closes needs one, too."""
    over = threading.Event()

    @task(on_success=lambda *_: over.wait(30))
    async def works(context): ...

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await asyncio.gather(*(runner.execute(flow_of(works)) for _ in range(50)))

    async def in_time() -> None:
        try:
            await asyncio.wait_for(scene(), 10)
        finally:
            over.set()

    asyncio.run(in_time())


@virtual_test
async def test_calls_of_other_languages_have_them_too():
    """The context is what the call came with."""
    told = Told()

    @task(rpc="add", **told.both)
    async def adds(context):
        return sum(context["args"])

    async with Runner("memory:") as runner:
        runner.register(adds)
        await call(runner, "c", "add", 1, 2)
        assert await answer_to(runner, "c") == 3
        await until(lambda: told)
    assert told == [("adds", {"args": [1, 2]})]


def test_a_task_in_a_process_has_them_here():
    """Not in its process: they may be closures."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await runner.execute(flow_of(process_bodies.tells), {"n": 4})
            await until(lambda: process_bodies.TOLD)

    asyncio.run(scene())
    assert process_bodies.TOLD == [("tells", {"n": 4, "doubled": 8})]


class Counting:
    """How often the engine is asked for something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[str] = []
        send = LocalClient.send

        async def counted(client: LocalClient, request: Command) -> Any:
            self.kinds.append(request.kind)
            return await send(client, request)

        monkeypatch.setattr(LocalClient, "send", counted)


@virtual_test
async def test_they_cost_no_command(monkeypatch: pytest.MonkeyPatch):
    """A run costs what it costs without them."""
    told, costs = Told(), []
    counting = Counting(monkeypatch)
    for callbacks in ({}, told.both):

        @task(**callbacks)
        async def works(context): ...

        async with Runner("memory:") as runner:
            runner.register(flow_of(works))
            await settled_down()
            counting.kinds.clear()
            await runner.execute(flow_of(works))
            await settled_down()
            costs.append(sorted(counting.kinds))
    assert costs[0] == costs[1]
    assert len(told) == 1


@pytest.mark.parametrize("kind", [FinishTask, FailTask])
@virtual_test
async def test_a_report_that_was_stored_though_nobody_could_tell_is_followed_by_its_callback(
    monkeypatch, kind
):
    """The store broke off in the commit; its second copy is refused, and that was our own doing."""
    told, doubts, send = Told(), [], LocalClient.ask

    async def doubtful(client: LocalClient, request: Any) -> Reply:
        await send(client, request)
        raise StoreUnavailable("whether it is committed is not known")

    def ask(self: LocalClient, request: Any, *args: Any) -> "asyncio.Future[Reply]":
        if not isinstance(request, kind) or doubts:
            return send(self, request, *args)
        doubts.append(request)
        return asyncio.ensure_future(doubtful(self, request))

    monkeypatch.setattr(LocalClient, "ask", ask)

    @task(on_success=told.well, on_failure=told.badly)
    async def ends(context):
        if kind is FailTask:
            raise OSError("no")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(ends))
        await asyncio.wait([asyncio.ensure_future(run.result())])
        await asyncio.sleep(10)
        assert runner.worker.holds == {}
    assert len(doubts) == 1
    assert [each[:-1] for each in told] == [
        ("ends",) if kind is FinishTask else ("ends", "OSError: no")
    ]
