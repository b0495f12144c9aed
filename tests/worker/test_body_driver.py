"""The driver of a body: resumed only with the slot, and asyncio does not notice."""

import asyncio
import gc
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layby import Runner, task
from layby.executors import PoolClosed, SlotPool
from layby.testing import SlotWatch, run_virtual, virtual_test
from layby.testing.deadlock import describe_tasks
from layby.worker.body_driver import BodyDriver
from layby.worker.shared_slot import SharedSlot
from tests.helpers.workers import flow_of, settled_down

# --- by itself ---------------------------------------------------------------------------


def cancelling() -> int:
    """How many cancels the current Task counts."""
    this = asyncio.current_task()
    assert this is not None
    return this.cancelling()


class Stage:
    """A driven body on a pool of one slot, which others may have meanwhile."""

    def __init__(self, body):
        self.pool = SlotPool(1)
        self.token = self.pool.token()
        self.shared = SharedSlot(self.token, None, is_driven=True)
        self.driver = BodyDriver(body, self.shared)

    async def begin(self):
        await self.token.reclaim()
        self.task = asyncio.create_task(self._run())
        await settled_down()
        return self

    async def _run(self):
        return await self.driver

    async def give_to_another(self):
        """Let somebody else have the slot, as when a strand of the body waits."""
        self.token.release()
        self.other = await self.pool.acquire()


@virtual_test
async def test_it_passes_values_and_errors():
    """As `await body()` would."""

    async def body(what):
        await asyncio.sleep(1)
        if isinstance(what, Exception):
            raise what
        return what

    assert await (await Stage(body(7)).begin()).task == 7
    stage = await Stage(body(OSError("no"))).begin()
    with pytest.raises(OSError, match="no"):
        await stage.task


@virtual_test
async def test_any_awaitable_may_be_driven():
    """A body need not be a coroutine."""
    future = asyncio.get_running_loop().create_future()
    stage = await Stage(future).begin()
    future.set_result("there")
    assert await stage.task == "there"


@virtual_test
async def test_a_resume_without_the_slot_stands_in_line():
    """Whether what it awaited came or failed."""
    log = []

    async def body(future):
        try:
            log.append(await future)
        except OSError as error:
            log.append(str(error))
        log.append(stage.token.is_held())

    for outcome in ("result", OSError("failure")):
        future = asyncio.get_running_loop().create_future()
        stage = await Stage(body(future)).begin()
        await stage.give_to_another()
        if isinstance(outcome, OSError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await asyncio.sleep(100)
        assert log == []
        assert stage.pool.waiting == 1
        stage.other.release()
        await stage.task
        assert log == [str(outcome), True]
        log.clear()


@virtual_test
async def test_a_cancel_is_remembered_with_its_message():
    """The first of several, once; the Task counts them all."""
    heard = []

    async def body():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError as error:
            heard.append((error.args, cancelling(), stage.token.is_held()))
            raise

    stage = await Stage(body()).begin()
    await stage.give_to_another()
    for message in ("first", "second"):
        stage.task.cancel(message)
        await settled_down()
    assert heard == []
    assert stage.pool.waiting == 1
    stage.other.release()
    await asyncio.wait([stage.task])
    assert stage.task.cancelled()
    assert heard == [(("first",), 2, True)]


@virtual_test
async def test_a_cancel_wins_over_what_came_before():
    """As it does in asyncio between two steps of a Task."""
    heard = []

    async def body(future):
        try:
            await future
        except BaseException as error:
            heard.append(type(error))
            raise

    for failure in (None, OSError("lost")):
        future = asyncio.get_running_loop().create_future()
        stage = await Stage(body(future)).begin()
        await stage.give_to_another()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
        await settled_down()
        stage.task.cancel()
        await settled_down()
        stage.other.release()
        await asyncio.wait([stage.task])
        assert stage.task.cancelled()
    assert heard == [asyncio.CancelledError] * 2


@virtual_test
async def test_a_line_that_fails_is_heard_by_the_body():
    """There is no slot any more: nobody is left to hang."""
    heard = []

    async def body():
        try:
            await asyncio.sleep(1)
        except PoolClosed as error:
            heard.append(type(error))

    stage = await Stage(body()).begin()
    await stage.give_to_another()
    await asyncio.sleep(2)
    stage.pool.close()
    await stage.task
    late = await Stage(body()).begin()
    late.token.release()
    late.pool.close()
    await late.task
    assert heard == [PoolClosed, PoolClosed]


@virtual_test
async def test_who_looks_where_it_waits_sees_through_the_driver():
    """Errors about deadlocks name the line of the user."""

    async def body():
        await asyncio.sleep(1)

    stage = await Stage(body()).begin()
    assert "in test_who_looks_where_it_waits_sees_through_the_driver.<locals>.body" in (
        describe_tasks(asyncio.get_running_loop())
    )
    await stage.task


def test_a_driver_that_is_closed_closes_its_body():
    """A loop that ends with bodies under way: their `finally` runs."""
    closed = []

    async def body():
        try:
            await asyncio.sleep(1000)
        finally:
            closed.append(True)

    async def leave_it():
        stage = await Stage(body()).begin()
        stage.driver.close()
        stage.task.cancel()
        await asyncio.wait([stage.task])

    run_virtual(leave_it())
    assert closed == [True]


@virtual_test
async def test_a_task_may_have_it_as_its_coroutine():
    """Without a coroutine around it, and without a cycle that outlives the body."""

    async def body():
        await asyncio.sleep(1)
        return asyncio.current_task()

    pool = SlotPool(1)
    driver = BodyDriver(body(), SharedSlot(await pool.acquire(), None, is_driven=True))
    running = asyncio.Task(cast("Any", driver))
    assert await running is running


def test_a_body_that_has_ended_is_no_cycle():
    """It is freed at once: parked tasks are frozen, and cycles among them would stay."""

    async def scene():
        async def body():
            await asyncio.sleep(1)

        stage = await Stage(body()).begin()
        await stage.task
        return [each for each in gc.get_referrers(stage.task) if isinstance(each, SharedSlot)]

    assert run_virtual(scene()) == []


# --- what people write -------------------------------------------------------------------


class Scene:
    """Bodies on one slot, with another one that wants it all the time."""

    def __init__(self):
        self.faults = []

    def check(self, handle):
        if not handle.is_slot_held():
            self.faults.append(handle.task_execution_id)
        if self.is_neighbour_working:
            self.faults.append("two at once")

    is_neighbour_working = False

    async def play(self, body, times=2):
        @task
        async def works(context, handle):
            context["result"] = await body(handle)
            self.check(handle)

        @task
        async def neighbour(context, handle):
            for number in range(30):
                await handle.sleep(0.07, key=f"n{number}")
                self.is_neighbour_working = True
                await asyncio.sleep(0.05)
                self.is_neighbour_working = False

        async with Runner("memory:", slots=1) as runner:
            with SlotWatch(runner) as slots:
                other = await runner.start(flow_of(neighbour, name="neighbour"))
                runs = [await runner.start(flow_of(works)) for _ in range(times)]
                results = [(await run.result())["result"] for run in runs]
                await other.result()
                slots.assert_never_more_than(1)
                slots.assert_none_held()
            assert runner.worker.slots_lent == 0
        assert self.faults == []
        return results


@virtual_test
async def test_timeout_around_plain_awaits_and_waits():
    """It expires, is turned into a TimeoutError, and leaves no cancel behind."""
    scene = Scene()

    async def body(handle):
        beside = asyncio.create_task(handle.sleep(20, key="beside"))
        heard = []
        waits: dict[str, Any] = {"plain": asyncio.sleep, "handle": handle.sleep}
        for key, wait in waits.items():
            try:
                async with asyncio.timeout(0.2) as limit:
                    await (wait(9) if key == "plain" else wait(9, key=key))
            except TimeoutError:
                scene.check(handle)
                heard.append((key, limit.expired(), cancelling()))
            await asyncio.sleep(0.01)
            scene.check(handle)
        async with asyncio.timeout(9) as limit:
            await handle.sleep(0.1, key="in time")
        scene.check(handle)
        heard.append(limit.expired())
        beside.cancel()
        await asyncio.wait([beside])
        return heard

    expected = [["plain", True, 0], ["handle", True, 0], False]
    assert await scene.play(body) == [expected, expected]


@virtual_test
async def test_nested_timeouts():
    """The outer one expires in the inner one's block: only the outer raises."""
    scene = Scene()

    async def body(handle):
        beside = asyncio.create_task(handle.sleep(20, key="beside"))
        inner = asyncio.timeout(5)
        try:
            async with asyncio.timeout(0.3) as outer, inner:
                await asyncio.sleep(50)
        except TimeoutError:
            scene.check(handle)
        assert cancelling() == 0
        beside.cancel()
        return [outer.expired(), inner.expired()]

    assert await scene.play(body) == [[True, False]] * 2


@virtual_test
async def test_a_task_group_whose_child_fails():
    """It cancels its siblings and main; main hears the group, with the slot."""
    scene = Scene()

    async def body(handle):
        cancelled = []

        async def waits(key):
            try:
                await handle.sleep(30, key=key)
            except asyncio.CancelledError:
                scene.check(handle)
                cancelled.append(key)
                raise

        async def fails():
            await handle.sleep(0.2, key="fails")
            scene.check(handle)
            raise OSError("child")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(waits("a"))
                group.create_task(waits("b"))
                group.create_task(fails())
                await asyncio.sleep(50)
        except* OSError as failed:
            scene.check(handle)
            told = [str(each) for each in failed.exceptions]
        assert cancelling() == 0
        return [sorted(cancelled), told]

    assert await scene.play(body) == [[["a", "b"], ["child"]]] * 2


@virtual_test
async def test_first_completed():
    """Main handles one result after another, each with the slot."""
    scene = Scene()

    async def body(handle):
        pending = {
            asyncio.create_task(handle.sleep(0.1 * n, key=f"s{n}"), name=f"s{n}") for n in (3, 1, 2)
        }
        order = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            scene.check(handle)
            order += sorted(each.get_name() for each in done)
        return order

    assert await scene.play(body) == [["s1", "s2", "s3"]] * 2


@virtual_test
async def test_wait_for_and_as_completed():
    """`asyncio.wait_for` runs its argument in a Task of its own."""
    scene = Scene()

    async def body(handle):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.sleep(9, key="long"), 0.2)
        scene.check(handle)
        await asyncio.wait_for(handle.sleep(0.1, key="short"), 9)
        scene.check(handle)
        for each in asyncio.as_completed([handle.sleep(0.1 * n, key=f"c{n}") for n in (2, 1)]):
            await each
            scene.check(handle)
        return cancelling()

    assert await scene.play(body) == [0, 0]


@virtual_test
async def test_gather_with_a_failure():
    """The others go on; main hears it at once, with the slot."""
    scene = Scene()

    async def body(handle):
        async def fails():
            await handle.sleep(0.1, key="fails")
            raise OSError("one")

        async def works():
            await handle.sleep(0.3, key="works")
            scene.check(handle)
            return "worked"

        other = asyncio.create_task(works())
        with pytest.raises(OSError, match="one"):
            await asyncio.gather(fails(), other)
        scene.check(handle)
        return await other

    assert await scene.play(body) == ["worked"] * 2


@virtual_test
async def test_async_generators_and_nested_tasks():
    """However deep the wait is, its strand goes on with the slot."""
    scene = Scene()

    async def body(handle):
        async def ticks(name):
            try:
                for number in range(3):
                    await handle.sleep(0.1, key=f"{name}{number}")
                    scene.check(handle)
                    yield number
            finally:
                await handle.sleep(0.1, key=f"{name} closes")
                scene.check(handle)

        async def takes(name, most):
            seen = []
            stream = ticks(name)
            async for number in stream:
                scene.check(handle)
                seen.append(number)
                if number == most:
                    break
            await stream.aclose()
            return seen

        async def deep(name, levels):
            if levels == 0:
                return await takes(name, 1)
            await handle.sleep(0.01, key=name)  # a Task that has not called it is not seen
            found = await asyncio.create_task(deep(f"{name}.", levels - 1))
            scene.check(handle)
            return found

        found = await asyncio.gather(takes("a", 5), deep("b", 2))
        return [*found, await takes("c", 0)]

    assert await scene.play(body) == [[[0, 1, 2], [0, 1], [0]]] * 2


# --- at random ---------------------------------------------------------------------------

SHORT = st.floats(0.01, 0.3)
LONG = st.floats(0.01, 4)


def steps(plain):
    """A script for a strand: each step is one thing people write."""
    simple = st.one_of(
        st.tuples(st.just("plain"), plain),
        st.tuples(st.just("sleep"), LONG),
        st.tuples(st.just("yield")),
    )

    def extend(inner):
        scripts = st.lists(inner, max_size=3)
        several = st.lists(scripts, min_size=1, max_size=3)
        return st.one_of(
            simple,
            st.tuples(st.just("gather"), several),
            st.tuples(st.just("first"), several),
            st.tuples(st.just("timeout"), LONG, scripts),
        )

    return st.recursive(simple, extend, max_leaves=8)


class Player:
    """Plays scripts in bodies, and notes every moment of one that runs without its slot."""

    def __init__(self):
        self.keys = 0
        self.faults = []
        self.lent = set()

    def check(self, handle):
        task_id = handle.task_execution_id
        if not handle.is_slot_held() and task_id not in self.lent:
            self.faults.append(task_id)

    async def play(self, handle, script):
        for move, *how in script:
            await getattr(self, move)(handle, *how)
            self.check(handle)

    async def plain(self, handle, seconds):
        await asyncio.sleep(seconds)

    async def sleep(self, handle, seconds):
        self.keys += 1
        await handle.sleep(seconds, key=f"k{self.keys}")

    async def do_yield(self, handle):
        await handle.yield_slot()

    async def strand(self, handle, script):
        await self.sleep(handle, 0.01)  # from now on it is known
        self.check(handle)
        await self.play(handle, script)

    async def gather(self, handle, scripts):
        await asyncio.gather(*(self.strand(handle, script) for script in scripts))

    async def first(self, handle, scripts):
        strands = [asyncio.create_task(self.strand(handle, each)) for each in scripts]
        try:
            await asyncio.wait(strands, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.check(handle)
            for each in strands:
                each.cancel()
            await asyncio.gather(*strands, return_exceptions=True)

    async def timeout(self, handle, seconds, script):
        before = cancelling()
        try:
            async with asyncio.timeout(seconds):
                await self.play(handle, script)
        except TimeoutError:
            self.check(handle)
        assert cancelling() == before


setattr(Player, "yield", Player.do_yield)


async def run_scripts(scripts, slots):
    player = Player()

    @task
    async def works(context, handle):
        await player.play(handle, scripts[context["n"]])

    async with Runner("memory:", slots=slots) as runner:
        told = runner.worker.lent

        def lent(attempt, why):
            player.lent.add(attempt.id)
            told(attempt, why)

        runner.worker.lent = lent
        with SlotWatch(runner) as watch:
            runs = [await runner.start(flow_of(works), {"n": n}) for n in range(len(scripts))]
            for run in runs:
                await run.result()
            watch.assert_never_more_than(slots)
            watch.assert_none_held()
    assert player.faults == []
    return player


@settings(max_examples=60)
@given(st.lists(st.lists(steps(SHORT), max_size=4), min_size=1, max_size=4), st.integers(1, 2))
def test_whatever_a_body_does_it_runs_with_its_slot(scripts, slots):
    """And every run ends: `VirtualDeadlock` would say who waits for what."""
    run_virtual(run_scripts(scripts, slots), limit=3600)


@settings(max_examples=40)
@given(st.lists(st.lists(steps(LONG), max_size=4), min_size=1, max_size=4), st.integers(1, 2))
def test_long_plain_awaits_only_lend(scripts, slots):
    """What is lent is counted; nobody else runs without a slot, and nothing hangs."""
    run_virtual(run_scripts(scripts, slots), limit=3600)
