"""A task whose old body has not ended: nobody begins another one beside it."""

import asyncio
import threading
from pathlib import Path

import pytest

from layby import Runner, task
from layby.core.commands import GetTask, LeaveWorker, ReleaseTask
from layby.core.replies import TaskData, refuse
from layby.testing import virtual_test
from tests.helpers.callers import answer_to, call
from tests.helpers.server_thread import Elsewhere, play, server_elsewhere, soon
from tests.helpers.workers import flow_of, look, settled_down, until

CLEAN_UP_S = 3


class Bodies:
    """Bodies that clean up for a while, and how many there are at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.log: list[str] = []

    def code(self, **options):
        @task(id="works", **options)
        async def works(context, handle):
            self.now += 1
            self.most = max(self.most, self.now)
            self.log.append(f"begins {handle.try_number}")
            try:
                if handle.try_number == 1:
                    await asyncio.sleep(3600)
            finally:
                if handle.try_number == 1:
                    await asyncio.sleep(CLEAN_UP_S)
                self.now -= 1
                self.log.append(f"ends {handle.try_number}")

        return works


ONE_AFTER_THE_OTHER = ["begins 1", "ends 1", "begins 2", "ends 2"]


# --- halted and continued --------------------------------------------------------------------


@virtual_test
async def test_continued_while_the_old_body_ends_a_task_has_one_body_at_a_time():
    bodies = Bodies()
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(bodies.code()), run_id="r")
        await asyncio.sleep(1)
        await runner.halt("r", "works")
        await runner.continue_("r", "works")
        await asyncio.sleep(1)
        assert bodies.log == ["begins 1"]
        seen = await look(run, "works")
        assert seen.stuck
        assert seen.waiting_on is not None
        assert "that the halted body has ended" in seen.waiting_on.sentence
        begin = runner.now()
        await run.result()
        assert runner.now() - begin == (CLEAN_UP_S - 1) * 1000  # as soon as it has ended
        assert (bodies.log, bodies.most) == (ONE_AFTER_THE_OTHER, 1)
        seen = await look(run, "works")
        assert [each.outcome for each in seen.tries] == ["Halted", "Completed"]
        assert [each.why for each in seen.tries] == ["first", "continued"]
        assert not seen.stuck


def test_another_worker_waits_for_the_end_as_well():
    """The holder's lease goes on as long as the body does."""
    bodies = Bodies()
    flow = flow_of(bodies.code())

    async def scene(elsewhere: Elsewhere) -> None:
        async with elsewhere.runner() as one, elsewhere.runner() as two:
            run = await one.start(flow, run_id="r")
            await soon(lambda: bodies.log)
            two.register(flow)
            await two.halt("r", "works")
            await soon(lambda: not one.worker.running or one.worker.attempts)
            await two.continue_("r", "works")
            assert (await two.get("r")).id == run.id
            await run.result()
            assert (bodies.log, bodies.most) == (ONE_AFTER_THE_OTHER, 1)

    with server_elsewhere() as elsewhere:
        play(lambda: scene(elsewhere))


def test_a_thread_that_goes_on_is_waited_for_too():
    """It cannot be ended: it keeps its slot, and its task."""
    go_on, log = threading.Event(), []

    @task
    def works(context, handle):
        log.append(f"begins {handle.try_number}")
        if handle.try_number == 1:
            go_on.wait(30)
        log.append(f"ends {handle.try_number}")

    async def main() -> None:
        async with Runner("memory:", slots=2) as runner:
            run = await runner.start(flow_of(works), run_id="r")
            await until(lambda: log)
            await runner.halt("r", "works")
            await runner.continue_("r", "works")
            await until(lambda: runner.worker.stuck)
            await runner.send(GetTask(id="run/r:works"))
            assert (await look(run, "works")).stuck
            assert log == ["begins 1"]
            go_on.set()
            await run.result(timeout=20)
            assert log == ONE_AFTER_THE_OTHER

    asyncio.run(main())


@virtual_test
async def test_halted_while_it_is_loaded_a_task_is_let_go_at_once():
    """No body has begun, so there is none to wait for."""
    bodies, gate = Bodies(), asyncio.Event()
    async with Runner("memory:") as runner:
        load = runner._program.load

        async def slowly(claim):
            await gate.wait()
            return await load(claim)

        runner._program.load = slowly
        runner._program.load_now = lambda claim: None
        run = await runner.start(flow_of(bodies.code()), run_id="r")
        await asyncio.sleep(1)
        await runner.halt("r", "works")
        await settled_down()
        found = await runner.send(GetTask(id="run/r:works"))
        assert isinstance(found.data, TaskData)
        assert (found.data.task.state, found.data.task.holder) == ("halted", None)
        gate.set()
        await runner.continue_("r", "works")
        await asyncio.sleep(1)
        assert bodies.log == ["begins 1"]
        assert (await look(run, "works")).try_number == 1
        await run.cancel()


@virtual_test
async def test_the_hold_ends_with_the_holder():
    """A worker that is given up has nothing to report any more."""
    bodies = Bodies()
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(bodies.code()), run_id="r")
        await asyncio.sleep(1)
        await runner.halt("r", "works")
        worker = runner.worker
        leave = LeaveWorker(pid=worker.config.pid, incarnation=worker.incarnation)
        await runner.client.send(leave)
        await runner.continue_("r", "works")
        await run.result()
        assert (bodies.log, bodies.most) == (ONE_AFTER_THE_OTHER, 1)


# --- a claim that meets an old body ----------------------------------------------------------


@virtual_test
async def test_a_claim_that_meets_an_old_body_goes_back_for_a_second():
    """As often as it takes; none of this is a try."""
    bodies = Bodies()
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(bodies.code()), run_id="r")
        await asyncio.sleep(1)
        await runner.client.send(ReleaseTask(id="run/r:works", version=1))
        await run.result()
        assert (bodies.log, bodies.most) == (ONE_AFTER_THE_OTHER, 1)
        seen = await look(run, "works")
        assert (seen.try_number, seen.crashes, seen.failures) == (2, 0, 0)
        found = await runner.send(GetTask(id="run/r:works"))
        assert isinstance(found.data, TaskData)
        assert found.data.task.version > 3


@virtual_test
async def test_a_call_that_meets_an_old_body_waits_for_its_end():
    bodies = Bodies()
    async with Runner("memory:") as runner:
        runner.register(bodies.code(rpc="work"))
        await call(runner, "c", "work")
        await asyncio.sleep(1)
        await runner.client.send(ReleaseTask(id="c", version=1))
        await answer_to(runner, "c")
        assert (bodies.log, bodies.most) == (ONE_AFTER_THE_OTHER, 1)


# --- while the worker stops ------------------------------------------------------------------


@virtual_test
async def test_a_lost_lease_ends_bodies_while_the_worker_stops():
    """Those that are waited for as well: what they do counts for nothing any more."""
    log = []

    @task
    async def works(context, handle):
        await handle.checkpoint("step", step)

    async def step() -> None:
        log.append("step")
        try:
            await asyncio.sleep(3600)
        finally:
            log.append("over")

    async with Runner("memory:", grace=1000) as runner:
        await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(runner.close())
        await asyncio.sleep(10)
        assert log == ["step"]
        begin = runner.now()
        runner.worker.start_over(runner.worker.incarnation, refuse(409, "gone"))
        await closing
        assert log == ["step", "over"]
        assert runner.now() - begin < 100


@virtual_test
async def test_closing_hands_each_task_back_in_order(tmp_path: Path):
    """What is parked and what runs; the history says so."""

    @task
    async def parked(context, handle):
        await handle.sleep(3600)

    @task
    async def running(context):
        await asyncio.sleep(3600)

    address = f"sqlite:{tmp_path / 'a.db'}"
    flow = flow_of(parked, running)
    async with Runner(address, slots=1) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        status = await (await runner.get("r")).status()
        told = {key: [try_.outcome for try_ in each.tries] for key, each in status.tasks.items()}
        assert told == {"parked": ["Released"], "running": ["Released"]}
        assert {each.crashes for each in status.tasks.values()} == {0}


@pytest.mark.parametrize("plain", [False, True])
def test_a_plain_body_that_looks_hears_of_the_stop(plain: bool, tmp_path: Path):
    """Having looked it is to end: what it returns is no result. One that does not look has one."""
    begun = threading.Event()

    @task
    def works(context, handle):
        begun.set()
        for _ in range(10 if plain else 3000):
            if not plain and handle.is_cancelled:
                break
            threading.Event().wait(0.01)

    async def main() -> None:
        address, flow = f"sqlite:{tmp_path / 'a.db'}", flow_of(works)
        async with Runner(address) as runner:
            await runner.start(flow, run_id="r")
            await until(begun.is_set)
        async with Runner(address) as runner:
            seen = await look(await runner.get("r"), "works")
            assert seen.status == ("Completed" if plain else "Ready")

    asyncio.run(main())


def test_what_is_parked_too_late_is_handed_back():
    """A plain body that wants to wait while the worker stops ends there."""
    heard: list[type[BaseException]] = []
    begun, go_on = threading.Event(), threading.Event()

    @task
    def works(context, handle):
        begun.set()
        go_on.wait(30)
        try:
            handle.sleep(3600)
        except BaseException as error:
            heard.append(type(error))
            raise

    async def main() -> None:
        async with Runner("memory:", grace=60) as runner:
            await runner.start(flow_of(works), run_id="r")
            await until(begun.is_set)
            closing = asyncio.ensure_future(runner.close())
            await settled_down()
            go_on.set()
            await closing
        assert heard == [asyncio.CancelledError]
        assert runner.worker.overlaps == 0

    asyncio.run(main())
