"""Cancel, halt, continue, a lost claim and a graceful close: each reaches every task at once."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from layby import RunCancelled, RunFailed, Runner, task
from layby.core.commands import (
    ContinueTask,
    FailTask,
    FinishTask,
    HaltTask,
    LeaveWorker,
    LimitTask,
    ReleaseTask,
)
from layby.core.replies import Claim, Reply, TakeData
from layby.errors import StoreUnavailable
from layby.local import LocalClient
from layby.testing import SlotWatch, virtual_test
from layby.worker.attempt import Attempt
from layby.worker.credit import Ask
from layby.worker.task_loading import TaskLoader
from layby.worker.worker import Worker
from tests.helpers.process_bodies import endless
from tests.helpers.troubled_server import served
from tests.helpers.workers import flow_of, look, settled_down, until


def three_of_them(log):
    @task
    async def running(context):
        log.append("running begins")
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            log.append("running ends")

    @task
    async def parked(context, handle):
        log.append("parked begins")
        try:
            await handle.defer_until(lambda: False, poll_interval=1)
        finally:
            log.append("parked ends")

    @task(dependencies=[running])
    async def pending(context):
        log.append("pending begins")

    return flow_of(running, parked, pending)


@virtual_test
async def test_cancelling_a_run_reaches_running_parked_and_pending_tasks_at_once():
    """Finally blocks run, slots come back, who and why are kept and shown."""
    log = []
    async with Runner("memory:", slots=2) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(three_of_them(log), run_id="r")
            await asyncio.sleep(10)
            begin = runner.now()
            await run.cancel(by="ada", reason="not needed")
            with pytest.raises(RunCancelled, match=r"by ada.*not needed"):
                await run.result()
            await settled_down()
            assert runner.now() == begin
            slots.assert_none_held()
        status = await run.status()
        assert (status.state, status.by, status.reason) == ("Cancelled", "ada", "not needed")
        assert {each.status for each in status.tasks.values()} == {"Cancelled"}
        assert runner.worker.attempts == {}
    assert sorted(log) == ["parked begins", "parked ends", "running begins", "running ends"]


@pytest.mark.parametrize("name", ["running", "parked", "pending"])
@virtual_test
async def test_cancelling_one_task_leaves_the_others_alone(name):
    """It is Cancelled, with who and why; the run goes on and fails in the end."""
    log = []
    async with Runner("memory:", slots=2) as runner:
        run = await runner.start(three_of_them(log), run_id="r")
        await asyncio.sleep(10)
        begin = runner.now()
        await runner.cancel("r", name, by="ada", reason="stuck")
        await settled_down()
        assert runner.now() == begin
        seen = await look(run, name)
        assert seen.status == "Cancelled"
        assert seen.error is not None
        assert "by ada" in seen.error
        assert "stuck" in seen.error
        assert (f"{name} ends" in log) == (name != "pending")
        tasks = (await run.status()).tasks
        assert {tasks[each].status for each in {"running", "parked"} - {name}} == {"Running"}
        await run.cancel()


@virtual_test
async def test_halting_a_run_stops_it_until_somebody_continues_it():
    """Running and parked bodies end at once; continued, they start anew and reuse records."""
    log = []

    @task
    async def works(context, handle):
        log.append(handle.try_number)
        await handle.checkpoint("k", lambda: log.append("once"))
        try:
            await handle.wait_for("go")
        finally:
            log.append("ends")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(10)
        await run.halt()
        await settled_down()
        assert log == [1, "once", "ends"]
        status = await run.status()
        assert (status.state, status.tasks["works"].status) == ("Halted", "Halted")
        assert status.tasks["works"].waiting_on is not None
        assert status.tasks["works"].waiting_on.kind == "manual"
        await runner.resolve("go")
        await asyncio.sleep(1000)
        assert (await run.status()).state == "Halted"
        await run.continue_()
        await run.result()
        assert log == [1, "once", "ends", 2, "ends"]
        assert (await look(run, "works")).crashes == 0


@virtual_test
async def test_halting_one_task_and_continuing_it():
    """While it is halted its slot serves others; a halted pending task is not taken."""
    log = []
    async with Runner("memory:", slots=2) as runner:
        run = await runner.start(three_of_them(log), run_id="r")
        await asyncio.sleep(10)
        for name in ("running", "pending"):
            await runner.halt("r", name)
        await settled_down()
        assert "running ends" in log
        assert runner.worker.credit.held == 0
        assert (await look(run, "running")).status == "Halted"
        await runner.continue_("r", "running")
        await settled_down()
        assert log.count("running begins") == 2
        await run.cancel()


@virtual_test
async def test_a_cancel_that_comes_while_a_task_is_loaded_keeps_it_from_running():
    """Between the claim and the first line of the body nothing is forgotten."""
    log, gate = [], asyncio.Event()

    @task
    async def works(context):
        log.append("zombie")

    async with Runner("memory:") as runner:
        load = runner._program.load

        async def slowly(claim):
            await gate.wait()
            return await load(claim)

        runner._program.load = slowly
        runner._program.load_now = lambda claim: None
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(1)
        await run.cancel()
        await settled_down()
        gate.set()
        await asyncio.sleep(10)
        assert runner.worker.credit.free == 4
    assert log == []


@virtual_test
async def test_a_lost_claim_cancels_the_body_and_refuses_its_writes():
    """Somebody else took the task: its version is refused, the other one's result stands."""
    log = []

    @task
    async def works(context, handle):
        log.append(handle.try_number)
        context["by"] = handle.try_number
        try:
            await asyncio.sleep(10)
            await handle.checkpoint("k", lambda: 1)
            await asyncio.sleep(10)
            log.append("zombie")
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(5)
        released = await runner.client.send(ReleaseTask(id="run/r:works", version=1))
        assert released.is_ok
        taken = await runner.client.send(replace(runner.worker.take(Ask(1)), pid="somebody else"))
        assert isinstance(taken.data, TakeData)
        assert [claim.task.id for claim in taken.data.claims] == ["run/r:works"]
        await asyncio.sleep(2)
        assert log == [1]
        await asyncio.sleep(5)
        assert log == [1, "cancelled"]
        await runner.client.send(ReleaseTask(id="run/r:works", version=2))
        assert (await run.result())["by"] == 3


@virtual_test
async def test_a_task_that_comes_back_ends_its_older_try_first():
    """Its own worker takes it again and has not heard yet that the first claim is over."""
    log = []

    @task
    async def works(context, handle):
        log.append(handle.try_number)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(5)
        await runner.client.send(ReleaseTask(id="run/r:works", version=1))
        await run.result()
        assert log == [1, "cancelled", 2]


@virtual_test
async def test_a_worker_that_lost_its_lease_begins_anew():
    """Its bodies are cancelled, it registers again and takes the work once more."""
    log = []

    @task
    async def works(context, handle):
        log.append(handle.try_number)
        try:
            await handle.sleep(100)
        finally:
            log.append(handle.is_cancelled)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(1)
        worker = runner.worker
        leave = LeaveWorker(pid=worker.config.pid, incarnation=worker.incarnation)
        await runner.client.send(leave)
        await settled_down()
        assert log[:2] == [1, True]
        await run.result()
        assert log == [1, True, 2, False]


@virtual_test
async def test_a_graceful_close_hands_tasks_back_and_another_runner_takes_them(tmp_path):
    """At once, no crash counted; finally blocks run; finished work is not repeated."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    log = []

    @task
    async def running(context, handle):
        await handle.checkpoint("k", lambda: log.append("checkpoint"))
        try:
            await asyncio.sleep(5 if handle.try_number > 1 else 1000)
        finally:
            log.append("running ends")

    @task
    async def parked(context, handle):
        try:
            await handle.sleep(50)
        finally:
            log.append("parked ends")

    @task
    async def done(context):
        log.append("done")

    flow = flow_of(running, parked, done)
    async with Runner(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(10)
        begin = runner.now()
    assert sorted(log) == ["checkpoint", "done", "parked ends", "running ends"]
    async with Runner(address) as runner:
        assert runner.now() - begin < 100
        runner.register(flow)
        run = await runner.get("r")
        await run.result()
        assert runner.now() - begin == pytest.approx(40_000, abs=100)
        status = await run.status()
        assert {each.crashes for each in status.tasks.values()} == {0}
        assert [each.try_number for each in status.tasks.values()] == [2, 2, 1]
    assert log.count("checkpoint") == log.count("done") == 1


def test_a_close_does_not_wait_for_a_thread_that_waits():
    """A plain def parked in its handle hears of the close there."""
    heard = []

    @task
    def parked(context, handle):
        try:
            handle.sleep(3600)
        except BaseException as error:
            heard.append(type(error))
            raise

    async def main():
        async with Runner("memory:") as runner:
            await runner.start(flow_of(parked))
            await until(lambda: len(runner.worker.attempts) == 1 and runner.worker.credit.held == 0)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert heard == [asyncio.CancelledError]


@virtual_test
async def test_a_cancel_reaches_a_thread_that_waits():
    """At once: it does not sleep its hour to the end, and it takes no slot to die."""
    heard = []

    @task
    def parked(context, handle):
        try:
            handle.sleep(3600)
        except BaseException as error:
            heard.append((type(error), handle.is_slot_held()))
            raise

    @task
    async def blocker(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(parked, name="a"), run_id="r")
        await asyncio.sleep(1)
        other = await runner.start(flow_of(blocker, name="b"))
        await asyncio.sleep(1)
        await run.cancel(by="ada")
        await asyncio.sleep(1)
        assert heard == [(asyncio.CancelledError, False)]
        assert (await look(run, "parked")).status == "Cancelled"
        await other.result()


def test_a_cancel_kills_a_process(tmp_path):
    """Running in its own process, it is gone soon after."""
    path = tmp_path / "pid"

    async def main():
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(endless), {"path": str(path)})
            await until(lambda: path.exists() and path.read_text())
            pid = int(path.read_text())
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result(timeout=60)
            await until(lambda: not Path(f"/proc/{pid}").exists())
            await until(lambda: runner.worker.credit.held == 0)

    asyncio.run(main())


def test_a_cancelled_thread_that_computes_keeps_its_slot_until_it_ends():
    """Cancelled in the store at once; the worker takes nothing for a slot it does not have."""
    go_on = threading.Event()

    @task
    def computes(context):
        go_on.wait(30)

    async def main():
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(computes), run_id="r")
            await until(lambda: runner.worker.credit.held == 1)
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result(timeout=60)
            await until(lambda: runner.worker.stuck == ("run/r:computes",))
            assert (runner.worker.credit.held, runner.worker.credit.free) == (1, 0)
            go_on.set()
            await until(lambda: runner.worker.credit.held == 0)

    asyncio.run(main())


@virtual_test
async def test_a_body_that_cancels_itself_has_failed():
    """Nobody ended it from outside: that is an error like any other."""

    @task
    async def odd(context):
        raise asyncio.CancelledError("oops")

    @task
    async def odder(context):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with Runner("memory:") as runner:
        for each in (odd, odder):
            with pytest.raises(RunFailed, match="CancelledError"):
                await runner.execute(flow_of(each, name=each.id))
        assert runner.worker.credit.held == 0


@virtual_test
async def test_what_cannot_be_loaded_fails_instead_of_hanging():
    """A bug between claim and body is the task's failure, told with its name."""

    @task
    async def works(context):
        pass

    async with Runner("memory:") as runner:

        async def broken(claim):
            if claim.task.is_root:
                return await load(claim)
            raise LookupError("no such code")

        load = runner._program.load
        runner._program.load = broken
        runner._program.load_now = lambda claim: None
        run = await runner.start(flow_of(works))
        with pytest.raises(RunFailed, match=r"LookupError: .*no such code"):
            await run.result(timeout=60)
        await until(lambda: runner.worker.credit.free == 4)


# --- errors that a thread may not hand on ----------------------------------------------------


def stops_iterating(*_):
    return next(iter(()))


def in_its_first_check(context, handle):
    handle.defer_until(stops_iterating, max_errors=0)


def in_a_checkpoint(context, handle):
    handle.checkpoint("key", stops_iterating)


@pytest.mark.parametrize("body", [stops_iterating, in_its_first_check, in_a_checkpoint])
def test_a_stop_iteration_ends_a_body_in_a_thread_like_any_error(body):
    """No future takes it: the body would seem to run for ever, and keep its slot."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            with pytest.raises(RunFailed, match="raised StopIteration"):
                await runner.execute(flow_of(task(id="a")(body)), timeout=10)
            assert (runner.worker.credit.held, runner.worker.stuck) == (0, ())

    asyncio.run(scene())


@pytest.mark.parametrize("place", ["embedded", "remote"])
def test_conditions_that_block_in_threads_do_not_hold_up_a_close(place):
    """Those of plain bodies are asked in the loop's threads; what closes needs none of them."""
    over, asked = threading.Event(), []

    def blocks():
        asked.append(True)
        over.wait(30)

    @task
    def waits(context, handle):
        handle.defer_until(blocks)

    async def work(address: str) -> None:
        async with Runner(address, slots=40, max_threads=40) as runner:
            for _ in range(40):
                await runner.start(flow_of(waits))
            await until(lambda: len(asked) >= min(32, (os.cpu_count() or 1) + 4))

    async def in_time(address: str) -> None:
        try:
            await asyncio.wait_for(work(address), 10)
        finally:
            over.set()

    async def main() -> None:
        async with served() as server:
            remote = f"http://127.0.0.1:{server.port}"
            await in_time("memory:" if place == "embedded" else remote)

    asyncio.run(main())


def test_what_is_ended_before_it_began_is_over_at_once():
    """Its executor closes it within that very call: nobody looks after it later."""

    async def scene() -> None:
        attempt: Any = None

        class Host:
            def cancel_body(self, _: object) -> None:
                attempt.close()

            def give_up(self, _: object) -> None:
                raise AssertionError("it goes on")

        attempt = object.__new__(Attempt)
        attempt._host, attempt._timer, attempt._timeout_left = Host(), None, None
        attempt.is_open, attempt.reason = True, None
        attempt.end("lost")
        timer: Any = attempt._timer
        assert timer.cancelled()

    asyncio.run(scene())


@virtual_test
async def test_a_timeout_counts_though_its_report_is_late_and_the_body_ends_first(monkeypatch):
    """The store did not answer the report: the word that the body has ended waits for that."""
    is_away, bodies = True, []

    @task(timeout=1)
    async def stubborn(context):
        bodies.append(1)
        for _ in range(7):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.5)

    send = LocalClient.ask

    def ask(self: LocalClient, request: Any, *args: Any) -> "asyncio.Future[Reply]":
        if not (isinstance(request, FailTask) and is_away):
            return send(self, request, *args)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreUnavailable("away"))
        return failed

    monkeypatch.setattr(LocalClient, "ask", ask)
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(stubborn))
        await asyncio.sleep(20)
        is_away = False
        with pytest.raises(RunFailed, match="timeout"):
            await run.result(timeout=60)
        await asyncio.sleep(1)
        assert runner.worker.holds == {}
    assert bodies == [1]


@virtual_test
async def test_whose_report_is_refused_says_that_the_body_has_ended(monkeypatch):
    """The word that it was halted got lost: nobody else would ever say so."""
    bodies = []
    monkeypatch.setattr(Worker, "lost", lambda *_: None)

    @task(id="body")
    async def body(context, handle):
        bodies.append(handle.try_number)
        await asyncio.sleep(5)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="a")
        await asyncio.sleep(1)
        await runner.client.send(HaltTask(id="run/a:body"))
        await asyncio.sleep(10)
        assert runner.worker.holds == {}
        await runner.client.send(ContinueTask(id="run/a:body"))
        await run.result(timeout=60)
    assert bodies == [1, 2]


@virtual_test
async def test_a_halted_body_that_outlasts_its_timeout_says_when_it_has_ended():
    """Its timeout is refused, since it was halted before; only its end lets the next try begin."""
    bodies, ends = [], []

    @task(id="body", timeout=1)
    async def body(context, handle):
        bodies.append(handle.try_number)
        for _ in range(7 if handle.try_number == 1 else 0):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.5)
        ends.append(handle.try_number)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="a")
        await asyncio.sleep(3)
        await runner.client.send(HaltTask(id="run/a:body"))
        await asyncio.sleep(4)
        await runner.client.send(ContinueTask(id="run/a:body"))
        assert (bodies, ends) == ([1], [])
        await run.result(timeout=60)
    assert (bodies, ends) == ([1, 2], [1, 2])


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
@virtual_test
async def test_what_was_halted_while_it_was_handed_back_unbegun_was_no_try(monkeypatch, is_told):
    """Its report comes too late, and whether a body has begun is said by somebody else."""
    bodies: list[int] = []
    slow = [True]

    @task(id="body", limit=lambda _: "api")
    async def body(context, handle):
        bodies.append(handle.try_number)

    send = LocalClient.ask

    async def later(client: LocalClient, request: Any) -> Reply:
        await asyncio.sleep(5)
        return await send(client, request)

    def ask(self: LocalClient, request: Any, *args: Any) -> "asyncio.Future[Reply]":
        is_late = isinstance(request, LimitTask) and slow.pop()
        return asyncio.ensure_future(later(self, request)) if is_late else send(self, request)

    monkeypatch.setattr(LocalClient, "ask", ask)
    if not is_told:
        monkeypatch.setattr(Worker, "lost", lambda *_: None)
    async with Runner("memory:") as runner:
        await runner.limit("api", concurrency=1)
        run = await runner.start(flow_of(body), run_id="a")
        await asyncio.sleep(1)
        await runner.client.send(HaltTask(id="run/a:body"))
        await asyncio.sleep(10)
        assert runner.worker.holds == {}
        slow.append(False)
        await runner.client.send(ContinueTask(id="run/a:body"))
        await run.result(timeout=60)
    assert bodies == [1]


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
@virtual_test
async def test_what_was_halted_while_it_was_settled_without_a_body_was_no_try(monkeypatch, is_told):
    """It was to be skipped, but then somebody halted it, and the rule says something else now."""
    bodies: list[int] = []
    is_skipped = True

    @task(id="body", rule=lambda *_: not is_skipped)
    async def body(context, handle):
        bodies.append(handle.try_number)

    send = LocalClient.ask

    async def later(client: LocalClient, request: Any) -> Reply:
        await asyncio.sleep(5)
        return await send(client, request)

    def ask(self: LocalClient, request: Any, *args: Any) -> "asyncio.Future[Reply]":
        is_late = isinstance(request, FinishTask) and is_skipped
        return asyncio.ensure_future(later(self, request)) if is_late else send(self, request)

    monkeypatch.setattr(LocalClient, "ask", ask)
    if not is_told:
        monkeypatch.setattr(Worker, "lost", lambda *_: None)
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="a")
        await asyncio.sleep(1)
        await runner.client.send(HaltTask(id="run/a:body"))
        await asyncio.sleep(10)
        assert runner.worker.holds == {}
        is_skipped = False
        await runner.client.send(ContinueTask(id="run/a:body"))
        await run.result(timeout=60)
    assert bodies == [1]


@virtual_test
async def test_a_worker_does_not_wait_for_a_root_that_it_loads_when_it_stops(monkeypatch, tmp_path):
    """It goes back like any task that has not begun, and whoever takes it next settles it."""
    address, load_now, load = f"sqlite:{tmp_path / 'a.db'}", TaskLoader.load_now, TaskLoader.load
    loading = asyncio.Event()

    @task(id="body")
    async def body(context): ...

    async def slowly(self: TaskLoader, claim: Claim) -> Any:
        loading.set()
        await asyncio.sleep(60)
        return await load(self, claim)

    def later(self: TaskLoader, claim: Claim) -> Any:
        return None if claim.task.is_root else load_now(self, claim)

    flow = flow_of(body)
    async with Runner(address) as runner:
        monkeypatch.setattr(runner._program, "conclude", lambda *_: None)
        with monkeypatch.context() as patch:
            patch.setattr(TaskLoader, "load_now", later)
            patch.setattr(TaskLoader, "load", slowly)
            await runner.start(flow, run_id="a")
            await loading.wait()
            before = runner.now()
            await runner.close()
            assert runner.now() - before < 1_000
    async with Runner(address) as runner:
        runner.register(flow)
        await (await runner.get("a")).result(timeout=60)
