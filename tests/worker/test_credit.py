"""Credit: the worker takes what it can run, no more; parking, threads and processes are bounded."""

import asyncio
import threading

import pytest

from layby import RetryPolicy, Runner, task
from layby.core.commands import Take
from layby.testing import SlotWatch, virtual_test
from tests.helpers.process_bodies import doubles
from tests.helpers.workers import flow_of, look, settled_down, until


@pytest.mark.parametrize("slots", [1, 2, 4])
@virtual_test
async def test_never_more_bodies_than_slots(slots):
    """Many runs at once, short chains and failures."""

    @task
    async def first(context):
        await asyncio.sleep(context["n"] % 3)

    @task(dependencies=[first], retry=RetryPolicy(max_attempts=2, delay=1))
    async def second(context, handle):
        await asyncio.sleep(1)
        if handle.try_number == 1 and context["n"] % 4 == 0:
            raise OSError("once")

    flow = flow_of(first, second)
    async with Runner("memory:", slots=slots) as runner:
        with SlotWatch(runner) as held:
            runs = [await runner.start(flow, {"n": n}) for n in range(30)]
            await asyncio.gather(*(run.result() for run in runs))
            held.assert_never_more_than(slots)
            assert held.peak == slots
        await settled_down()
        assert runner.worker.credit.free == slots


@virtual_test
async def test_woken_tasks_and_new_ones_share_the_slots_fairly():
    """The docs: "first come, first served, together with new work". The oldest goes first."""
    is_open = asyncio.Event()
    log = []

    @task
    async def waits(context, handle):
        await handle.defer_until(is_open.is_set, poll_interval=1)
        log.append("woken")
        await asyncio.sleep(5)

    @task
    async def new(context):
        log.append("new")
        await asyncio.sleep(5)

    async with Runner("memory:", slots=2) as runner:
        runs = [await runner.start(flow_of(waits, name="w")) for _ in range(6)]
        await settled_down()
        runs += [await runner.start(flow_of(new, name="n")) for _ in range(6)]
        await asyncio.sleep(1)
        is_open.set()
        await asyncio.gather(*(run.result() for run in runs))
    assert log == [*["new"] * 6, *["woken"] * 6]


@virtual_test
async def test_tasks_that_resume_again_and_again_do_not_keep_new_ones_out():
    """One slot, three bodies that loop: a task started meanwhile waits for a turn, not for all."""
    log = []

    @task
    async def loops(context, handle):
        for turn in range(50):
            ready_at = runner.now() + 10
            await handle.defer_until(lambda at=ready_at: runner.now() >= at, poll_interval=0.01)
            log.append((context["n"], turn))
            await asyncio.sleep(0.05)

    @task
    async def new(context):
        log.append("new")

    async with Runner("memory:", slots=1) as runner:
        runs = [await runner.start(flow_of(loops, name="l"), {"n": n}) for n in range(3)]
        await asyncio.sleep(1)
        before = len(log)
        await runner.execute(flow_of(new, name="n"))
        assert log.index("new") - before <= 3, "who stood in line before, and no more"
        await asyncio.gather(*(run.result() for run in runs))


@virtual_test
async def test_an_idle_worker_still_takes_after_hours():
    """The take that waits in the engine ends now and then; a new one takes its place."""
    log = []

    @task(retry=RetryPolicy(max_attempts=2, delay=40_000, max_delay=40_000))
    async def works(context, handle):
        log.append(handle.try_number)
        if handle.try_number == 1:
            raise OSError("once")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works), timeout=50_000)
    assert log == [1, 2]


@virtual_test
async def test_backing_off_holds_no_slot():
    """Pending, with `backoff` as what it waits for; other work has the slot."""

    @task(retry=RetryPolicy(max_attempts=2, delay=60))
    async def fails(context, handle):
        if handle.try_number == 1:
            raise OSError("once")

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(fails))
        begin = runner.now()
        await asyncio.sleep(1)
        seen = await look(run, "fails")
        assert (seen.status, seen.sub_status, seen.failures) == ("Pending", None, 1)
        assert seen.waiting_on is not None
        assert seen.waiting_on.kind == "backoff"
        assert seen.error is not None
        assert "once" in seen.error
        assert runner.worker.credit.held == 0
        assert runner.worker.credit.free == 1
        await run.result()
        assert runner.now() == begin + 60_000


@virtual_test
async def test_at_max_parked_one_more_is_parked_each_second():
    """Waits keep their slots, and a health event says so once; other slots take new tasks."""
    is_open = asyncio.Event()

    @task
    async def waits(context, handle):
        await handle.defer_until(is_open.is_set, poll_interval=1)

    @task
    async def new(context):
        pass

    async with Runner("memory:", slots=3, max_parked=2) as runner:
        with SlotWatch(runner) as slots:
            runs = [await runner.start(flow_of(waits, name="w")) for _ in range(4)]
            await asyncio.sleep(0.5)
            seen = [await look(run, "waits") for run in runs]
            assert [each.sub_status for each in seen] == ["Deferred"] * 2 + ["Active"] * 2
            assert seen[3].waiting_on is not None
            assert "(max_parked)" in seen[3].waiting_on.sentence
            assert (runner.worker.credit.free, runner.worker.slots_lent) == (1, 0)
            await runner.execute(flow_of(new, name="n"))
            [event] = runner.worker.health.snapshot()
            assert (event.kind, event.capacity) == ("parked_limit", 2)
            runs += [await runner.start(flow_of(waits, name="w")) for _ in range(20)]
            for second in range(1, 6):
                await asyncio.sleep(1)
                assert runner.worker.slots_lent == second
            is_open.set()
            await asyncio.gather(*(run.result() for run in runs))
            slots.assert_never_more_than(3)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("way", ["plain", "gather"])
@virtual_test
async def test_who_waits_for_its_own_run_goes_on_at_max_parked(way, count, slots):
    """The run that it waits for needs a slot of the same worker."""

    @task
    async def child(context):
        await asyncio.sleep(0.1)

    @task
    async def parent(context, handle):
        run = await runner.start(flow_of(child, name="child"))
        if way == "plain":
            await run.result()
        else:
            await asyncio.gather(handle.sleep(1, key="s"), run.result())

    async with Runner("memory:", slots=slots, max_parked=1) as runner:
        runs = [await runner.start(flow_of(parent, name="parent")) for _ in range(count)]
        await asyncio.gather(*(run.result(timeout=30) for run in runs))


@virtual_test
async def test_a_wait_at_max_parked_keeps_its_slot_and_says_so():
    """Two bodies start before either parks: the second finds the limit reached."""
    is_open = asyncio.Event()

    @task(timeout=100)
    async def waits(context, handle):
        await asyncio.sleep(1)
        await handle.defer_until(is_open.is_set, poll_interval=1)

    async with Runner("memory:", slots=2, max_parked=1) as runner:
        runs = [await runner.start(flow_of(waits, name="w")) for _ in range(2)]
        await asyncio.sleep(1.5)
        parked, kept = [await look(run, "waits") for run in runs]
        assert (parked.sub_status, kept.sub_status) == ("Deferred", "Active")
        assert kept.waiting_on is not None
        assert kept.waiting_on.kind == "condition"
        assert "keeps its slot" in kept.waiting_on.sentence
        assert (runner.worker.credit.held, runner.worker.slots_lent) == (1, 0)
        await asyncio.sleep(8.5)
        lent = await look(runs[1], "waits")
        assert lent.sub_status == "Deferred"
        assert lent.waiting_on is not None
        assert "is lent" in lent.waiting_on.sentence
        assert "keeps its slot" not in lent.waiting_on.sentence
        assert (runner.worker.credit.held, runner.worker.slots_lent) == (0, 1)
        is_open.set()
        await asyncio.gather(*(run.result() for run in runs))
        assert (await look(runs[1], "waits")).waiting_on is None


@virtual_test
async def test_one_take_waits_in_the_engine_whatever_happens():
    """Each change of credit replaces it; none is left behind."""

    @task
    async def works(context, handle):
        await handle.sleep(1)

    async with Runner("memory:", slots=3) as runner:
        for _ in range(5):
            runs = [await runner.start(flow_of(works)) for _ in range(7)]
            await asyncio.gather(*(run.result() for run in runs))
            await settled_down()
            takes = [item.request for item in runner.engine._takes._until]
            assert all(isinstance(each, Take) for each in takes)
            assert [each.free for each in takes if each.group == "default"] == [3]  # type: ignore[union-attr]


@virtual_test
async def test_threads_are_bounded_and_counted():
    """Two threads, four bodies that wait in theirs: the others begin as threads come free."""

    @task
    def waits(context, handle):
        handle.sleep(10)

    async with Runner("memory:", slots=4, max_threads=2) as runner:
        begin = runner.now()
        runs = [await runner.start(flow_of(waits)) for _ in range(4)]
        await asyncio.sleep(5)
        assert runner.worker.threads == 2
        await asyncio.gather(*(run.result() for run in runs))
        assert runner.now() - begin == 20_000
        assert runner.worker.threads == 0


@virtual_test
async def test_a_body_without_a_thread_is_cancelled_cleanly():
    """It never starts; the next one gets the thread."""
    log = []

    @task
    def waits(context, handle):
        log.append(context["name"])
        handle.sleep(10)

    async with Runner("memory:", slots=4, max_threads=1) as runner:
        runs = [await runner.start(flow_of(waits), {"name": name}) for name in "abc"]
        await asyncio.sleep(1)
        await runs[1].cancel()
        await runs[0].result()
        await runs[2].result()
    assert log == ["a", "c"]


def test_plain_functions_run_side_by_side_in_threads():
    """As many as there are slots, none of them on the loop."""
    barrier = threading.Barrier(3, timeout=30)

    @task
    def meets(context):
        barrier.wait()
        return {"main": threading.current_thread() is threading.main_thread()}

    async def main():
        async with Runner("memory:", slots=3) as runner:
            runs = [await runner.start(flow_of(meets)) for _ in range(3)]
            results = await asyncio.gather(*(run.result(30) for run in runs))
            assert [result["main"] for result in results] == [False] * 3

    asyncio.run(main())


def test_more_process_bodies_than_processes_wait_their_turn():
    """None is lost, each has its own result, in processes of their own."""

    async def main():
        async with Runner("memory:", slots=4) as runner:
            runs = [await runner.start(flow_of(doubles), {"n": n}) for n in range(6)]
            results = await asyncio.gather(*(run.result(60) for run in runs))
            assert [result["doubled"] for result in results] == [n * 2 for n in range(6)]
            await until(lambda: runner.worker.credit.free == 4)

    asyncio.run(main())


def test_real_threads_of_the_engine_keep_the_books_straight():
    """Two hundred short runs on four slots, store and worker in different threads."""

    @task
    async def first(context, handle):
        await handle.sleep(0.001)

    @task(dependencies=[first])
    async def second(context):
        context["n"] += 1

    async def main():
        async with Runner("memory:", slots=4) as runner:
            with SlotWatch(runner) as slots:
                flow = flow_of(first, second)
                runs = [await runner.start(flow, {"n": n}) for n in range(200)]
                results = await asyncio.gather(*(run.result(60) for run in runs))
                assert [result["n"] for result in results] == list(range(1, 201))
                slots.assert_never_more_than(4)
            await until(lambda: runner.worker.credit.free == 4)
            assert runner.worker.attempts == {}

    asyncio.run(main())
