"""Limits of tasks, end to end with the real Runner in virtual time."""

import asyncio
from typing import Any, cast

import pytest

from layby import BlockingRunner, Runner, UsageError, Workflow, WorkflowError, task
from layby.errors import RunFailed
from layby.testing import current_clock, virtual_test


class Counter:
    """How many bodies run, and how many ran at once at most."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.begun: list[int] = []

    async def run(self, seconds: float) -> None:
        self.begun.append(current_clock().now())
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(seconds)
        self.now -= 1


@virtual_test
async def test_no_more_run_at_once_than_the_limit_says() -> None:
    count = Counter()

    @task(limit="api")
    async def call(context):
        await count.run(1)

    async with Runner("memory:", slots=8) as runner:
        shown = await runner.limit("api", concurrency=2)
        assert (shown.name, shown.concurrency, shown.held) == ("api", 2, 0)
        runs = [await runner.start(Workflow("w", tasks=[call])) for _ in range(7)]
        for run in runs:
            await run.result()
    assert count.most == 2


@virtual_test
async def test_a_rate_spreads_the_begins() -> None:
    count = Counter()

    @task(limit="api")
    async def call(context):
        await count.run(0)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("api", rate="10/min")
        runs = [await runner.start(Workflow("w", tasks=[call])) for _ in range(5)]
        for run in runs:
            await run.result()
    gaps = [after - before for before, after in zip(count.begun, count.begun[1:], strict=False)]
    assert all(6_000 <= gap < 6_100 for gap in gaps), gaps


@virtual_test
async def test_a_limit_may_follow_from_the_context() -> None:
    counts = {"a": Counter(), "b": Counter()}

    @task(limit=lambda context: f"tenant-{context['tenant']}")
    async def call(context):
        await counts[context["tenant"]].run(1)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("tenant-*", concurrency=1)
        flow = Workflow("w", tasks=[call])
        runs = [await runner.start(flow, {"tenant": each}) for each in "aabbab"]
        for run in runs:
            await run.result()
        status = await runs[0].status()
        assert status.tasks["call"].try_number == 1
        assert [each.name for each in await runner.limits()] == ["tenant-*"]
    assert (counts["a"].most, counts["b"].most) == (1, 1)


@virtual_test
async def test_a_limit_is_changed_while_tasks_wait_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = Counter()

    @task(limit="api")
    async def call(context):
        await count.run(10)

    async with Runner("memory:", slots=8) as runner:
        flow = Workflow("w", tasks=[call])
        runs = [await runner.start(flow) for _ in range(4)]
        await asyncio.sleep(5)
        assert count.now == 0  # nobody has defined it
        assert caplog.text.count("limit 'api', which is not defined: runner.limit('api', …)") == 1
        assert f"run '{runs[0].id}' has tasks" in caplog.text
        await runner.limit("api", concurrency=1)
        await asyncio.sleep(1)
        assert count.now == 1
        await runner.limit("api", concurrency=3)
        await asyncio.sleep(1)
        assert count.now == 3
        for run in runs:
            await run.result()
    assert count.most == 3


@virtual_test
async def test_a_task_that_waits_for_a_permit_holds_no_slot() -> None:
    order: list[str] = []

    @task(limit="api")
    async def limited(context):
        order.append("limited")
        await asyncio.sleep(10)

    @task
    async def free(context):
        order.append("free")

    async with Runner("memory:", slots=2) as runner:
        await runner.limit("api", concurrency=1)
        slow = [await runner.start(Workflow("w", tasks=[limited])) for _ in range(3)]
        await runner.execute(Workflow("v", tasks=[free]))
        assert order == ["limited", "free"]
        for run in slow:
            await run.result()


@virtual_test
async def test_a_task_with_two_limits_needs_both() -> None:
    count = Counter()

    @task(id="both", limit=["a", "b"])
    async def both(context):
        await count.run(1)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("a", concurrency=3)
        await runner.limit("b", concurrency=2)
        runs = [await runner.start(Workflow("w", tasks=[both])) for _ in range(6)]
        for run in runs:
            await run.result()
    assert count.most == 2


@virtual_test
async def test_a_failed_try_gives_its_permit_back_while_it_backs_off() -> None:
    begun: list[str] = []

    @task(limit="api", retries=1)
    async def fails(context):
        begun.append(context["name"])
        if begun.count(context["name"]) == 1:
            raise ValueError("once")

    async with Runner("memory:", slots=2) as runner:
        await runner.limit("api", concurrency=1)
        runs = [await runner.start(Workflow("w", tasks=[fails]), {"name": each}) for each in "ab"]
        for run in runs:
            await run.result()
    assert begun[:2] == ["a", "b"]


@virtual_test
async def test_what_a_function_says_is_checked() -> None:
    @task(limit=lambda context: cast("str", 7))
    async def call(context):
        raise AssertionError

    async with Runner("memory:", slots=2) as runner:
        with pytest.raises(RunFailed, match="limit of task 'call' must be the name"):
            await runner.execute(Workflow("w", tasks=[call]))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rate": "10"}, "10/min"),
        ({"rate": "0/s"}, "10/min"),
        ({"rate": "10/fortnight"}, "10/min"),
        ({"rate": 10}, "rate of limit 'api' 10 must be a string"),
        ({}, "limit 'api': it limits nothing"),
        ({"concurrency": -1}, "concurrency"),
        ({"concurrency": 1, "burst": 2}, "burst needs a rate"),
    ],
)
def test_wrong_numbers_are_refused_with_what_to_write(given: dict[str, object], why: str) -> None:
    with (
        BlockingRunner("memory:", slots=1) as runner,
        pytest.raises((UsageError, ValueError), match=why),
    ):
        runner.limit("api", **given)  # type: ignore[arg-type]


def test_a_name_that_is_not_text_is_refused() -> None:
    with BlockingRunner("memory:", slots=1) as runner:
        with pytest.raises(UsageError, match="name of a limit None must be a string"):
            runner.limit(None, concurrency=1)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="name of a limit 7 must be a string"):
            runner.delete_limit(7)  # type: ignore[arg-type]


def test_a_wrong_limit_of_a_task_is_refused_where_it_is_made() -> None:
    for wrong in ("", "a*", ["a", "a"], ".own", 7, ["a", 7], {"a": 1}):
        with pytest.raises(WorkflowError, match="imit"):

            @task(id="x", limit=wrong)  # type: ignore[call-overload]
            async def _x(context):
                pass


def test_the_blocking_runner_has_the_same() -> None:
    with BlockingRunner("memory:", slots=1) as runner:
        assert runner.limit("api", concurrency=2).concurrency == 2
        assert [each.name for each in runner.limits()] == ["api"]
        runner.delete_limit("api")
        assert runner.limits() == []


@virtual_test
async def test_a_parked_body_lets_others_in_and_goes_on_with_a_permit() -> None:
    count = Counter()
    parked: list[str] = []

    @task(limit="api")
    async def call(context, handle):
        await count.run(1)
        parked.append(context["name"])
        await handle.sleep(100)
        await count.run(1)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("api", concurrency=1)
        flow = Workflow("w", tasks=[call])
        runs = [await runner.start(flow, {"name": each}, run_id=each) for each in "abcd"]
        await asyncio.sleep(50)
        assert parked == ["a", "b", "c", "d"]
        for run in runs:
            await run.result()
        assert (await runner.limits())[0].held == 0
    assert count.most == 1


@virtual_test
async def test_a_body_that_waits_for_its_permit_can_be_cancelled() -> None:
    @task(limit="api")
    async def call(context, handle):
        await handle.sleep(1)
        await asyncio.sleep(100)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("api", concurrency=1)
        flow = Workflow("w", tasks=[call])
        runs = [await runner.start(flow, run_id=each) for each in ("a", "b", "c")]
        await asyncio.sleep(10)
        await runner.cancel("b")
        await asyncio.sleep(10)
        assert (await runner.limits())[0].held == 1
        await runs[0].result()
        await runs[2].result()
        assert (await runner.limits())[0].held == 0


@virtual_test
async def test_whether_parked_bodies_count_is_true_or_false() -> None:
    """A word such as "no" would be stored as it is, and be true to some who read it."""
    wrong: Any = "no"
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="count_parked must be True or False, got 'no'"):
            await runner.limit("api", concurrency=1, count_parked=wrong)
        assert await runner.limits() == []


@virtual_test
async def test_a_parked_body_counts_if_the_limit_says_so() -> None:
    begun: list[str] = []

    @task(limit="api")
    async def call(context, handle):
        begun.append(context["name"])
        await handle.sleep(100)

    async with Runner("memory:", slots=8) as runner:
        await runner.limit("api", concurrency=1, count_parked=True)
        flow = Workflow("w", tasks=[call])
        runs = [await runner.start(flow, {"name": each}) for each in "ab"]
        await asyncio.sleep(50)
        assert begun == ["a"]
        for run in runs:
            await run.result()
