"""Priorities and slots of tasks, as users write them: who begins first, and who waits for whom."""

import asyncio

import pytest

from layby import BlockingRunner, Runner, Workflow, task
from layby.core.fields import MAX_PRIORITY
from layby.errors import UsageError, WorkflowError
from layby.testing import SlotWatch, virtual_test
from layby.workflow.turn_checks import check_fits
from tests.helpers.workers import flow_of, settled_down


def logging_flow(log, name="logging", **options):
    @task(**options)
    async def step(context):
        log.append(context["n"])
        await asyncio.sleep(1)

    return flow_of(step, name=name)


@virtual_test
async def test_runs_of_higher_priority_begin_first_and_every_eighth_is_the_oldest():
    """One slot, and twenty runs that wait for it: ten were started first, with no priority."""
    log = []
    flow = logging_flow(log)
    async with Runner("memory:", slots=1) as runner:
        runs = [await runner.start(flow, {"n": -1})]
        await settled_down()
        for n in range(10):
            runs.append(await runner.start(flow, {"n": n}))
            await asyncio.sleep(0.01)
        for n in range(100, 110):
            runs.append(await runner.start(flow, {"n": n}, priority=5))
            await asyncio.sleep(0.01)
        await asyncio.gather(*(run.result() for run in runs))
    prior, plain = list(range(100, 110)), list(range(10))
    assert log == [-1, *prior[:6], plain[0], *prior[6:], *plain[1:]]


@virtual_test
async def test_what_a_task_has_of_its_own_is_added_to_the_priority_of_its_run():
    log = []

    def step(name, priority):
        @task(id=name, priority=priority)
        async def body(context):
            log.append((context["n"], name))
            await asyncio.sleep(1)

        return body

    flow = flow_of(step("low", -3), step("high", 3))
    async with Runner("memory:", slots=1) as runner:
        first = await runner.start(logging_flow([]), {"n": 0}, run_id="first")
        await settled_down()
        runs = [await runner.start(flow, {"n": priority}, priority=priority) for priority in (0, 4)]
        status = await runs[1].status()
        assert status.priority == 4
        assert {each: status.tasks[each].priority for each in status.tasks} == {"low": 1, "high": 7}
        await asyncio.gather(first.result(), *(run.result() for run in runs))
    assert log == [(4, "high"), (0, "high"), (4, "low"), (0, "low")]


@pytest.mark.parametrize("slots", [2, 3, 4])
@virtual_test
async def test_a_task_holds_as_many_slots_as_it_says(slots):
    """Small and large ones at once: never more than there are, and none is forgotten."""

    @task
    async def small(context, handle):
        await asyncio.sleep(context["n"] % 3)
        await handle.sleep(1)

    @task(slots=2)
    async def large(context, handle):
        await asyncio.sleep(1)
        await handle.sleep(context["n"] % 2)
        await asyncio.sleep(1)

    flow = flow_of(small, large)
    async with Runner("memory:", slots=slots) as runner:
        with SlotWatch(runner) as held:
            runs = [await runner.start(flow, {"n": n}) for n in range(20)]
            await asyncio.gather(*(run.result() for run in runs))
            held.assert_never_more_than(slots)
        await settled_down()
        assert runner.worker.credit.free == slots


@virtual_test
async def test_a_large_task_is_not_passed_by_small_ones_that_came_later():
    """It waits for the bodies that run; what becomes free is kept for it."""
    log = []

    @task
    async def small(context):
        log.append(context["n"])
        await asyncio.sleep(context["s"])

    @task(slots=2)
    async def large(context):
        log.append("large")
        await asyncio.sleep(1)

    one, two = flow_of(small, name="one"), flow_of(large, name="two")
    async with Runner("memory:", slots=2) as runner:
        runs = [await runner.start(one, {"n": n, "s": 5 + n}) for n in range(2)]
        await settled_down()
        runs.append(await runner.start(two))
        await asyncio.sleep(0.01)
        for n in range(2, 8):
            runs.append(await runner.start(one, {"n": n, "s": 1}))
            await asyncio.sleep(0.01)
        await asyncio.gather(*(run.result() for run in runs))
    assert log[:3] == [0, 1, "large"]
    assert sorted(log[3:]) == [2, 3, 4, 5, 6, 7]  # two begin at a time, in either order


@virtual_test
async def test_a_parked_task_releases_all_its_slots_and_gets_all_of_them_again():
    log = []

    @task(slots=2)
    async def large(context, handle):
        log.append("large")
        await handle.sleep(1)
        log.append("large again")
        await asyncio.sleep(1)

    @task
    async def small(context):
        log.append("small")
        await asyncio.sleep(3)

    async with Runner("memory:", slots=2) as runner:
        first = await runner.start(flow_of(large, name="large"))
        await settled_down()
        others = [await runner.start(flow_of(small, name="small")) for _ in range(2)]
        await asyncio.gather(*(run.result() for run in (first, *others)))
    assert log == ["large", "small", "small", "large again"]


@virtual_test
async def test_a_task_larger_than_the_worker_is_refused_with_both_numbers():
    @task(slots=3)
    async def large(context):
        pass

    flow = flow_of(large)
    async with Runner("memory:", slots=2) as runner:
        for refused in (lambda: runner.register(flow), lambda: check_fits(flow, 2, "default")):
            with pytest.raises(UsageError, match="needs 3 slots at once, but this worker has 2"):
                refused()
        with pytest.raises(UsageError, match="needs 3 slots"):
            await runner.start(flow)
    async with Runner("memory:", slots=3) as runner:
        await runner.execute(flow)


def test_a_task_of_another_group_may_be_larger():
    """Its workers are others."""

    @task(slots=9, group="large")
    async def large(context):
        pass

    check_fits(flow_of(large), 1, "default")
    with pytest.raises(UsageError, match="9 slots"):
        check_fits(flow_of(large), 1, "large")


@pytest.mark.parametrize("wrong", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, True, 1.5, "1", None])
def test_a_priority_is_a_whole_number_of_a_small_range(wrong):
    with pytest.raises(WorkflowError, match="priority of task 'x' must be a whole number between"):
        task(id="x", priority=wrong)(lambda context: None)
    with BlockingRunner("memory:") as runner:
        flow = logging_flow([])
        for call in (runner.start, runner.execute):
            with pytest.raises(UsageError, match="priority must be a whole number between"):
                call(flow, {"n": 1}, priority=wrong)
        with pytest.raises(UsageError, match="priority of a scheduled run"):
            runner.schedule(flow, "0 3 * * *", priority=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1_001, True, 1.5, "1", None])
def test_slots_are_a_whole_number(wrong):
    with pytest.raises(WorkflowError, match="slots of task 'x' must be a whole number between"):
        task(id="x", slots=wrong)(lambda context: None)


def test_a_schedule_has_the_priority_of_its_runs():
    with BlockingRunner("memory:") as runner:
        made = runner.schedule(logging_flow([], priority=2), "0 3 * * *", priority=3)
        status = made.start_now().status()
        assert (status.priority, status.tasks["step"].priority) == (3, 5)


def test_a_workflow_says_what_its_tasks_need():
    @task(slots=2, priority=-1)
    def body(context):
        pass

    (node,) = Workflow("w", tasks=[body]).tasks.values()
    assert (node.slots, node.priority) == (2, -1)


BEHIND_A_LIMIT = {
    "concurrency": ("api", {"concurrency": 1}),
    "two at once": ("api", {"concurrency": 2}),
    "rate": ("api", {"rate": "1/s"}),
    "function": (lambda context: "api", {"concurrency": 1}),
}


@pytest.mark.parametrize("how", BEHIND_A_LIMIT)
@virtual_test
async def test_every_eighth_behind_a_limit_is_the_oldest(how):
    """'Nothing starves': those without a priority began to wait first, and a permit is what
    everybody waits for.
    """
    limit, numbers = BEHIND_A_LIMIT[how]
    log = []
    plain = logging_flow(log, "plain", limit=limit)
    prior = logging_flow(log, "prior", limit=limit, priority=5)
    async with Runner("memory:", slots=4) as runner:
        await runner.limit("api", **numbers)
        runs = [await runner.start(prior, {"n": "first"})]
        await settled_down()
        runs += [await runner.start(plain, {"n": "plain"}) for _ in range(7)]
        await asyncio.sleep(0.01)
        runs += [await runner.start(prior, {"n": "prior"}) for _ in range(48)]
        await asyncio.gather(*(run.result() for run in runs))
    eights = [log[at : at + 8] for at in range(1, 41, 8)]
    assert all("plain" in eight for eight in eights), log
    assert log[:41].count("plain") <= 6  # one begins while permits are free
