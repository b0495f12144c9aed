"""Schedules that people change while they run: through the Runner, in virtual time."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from layby import BlockingRunner, NotFound, Runner, UsageError, Workflow, task
from layby.core.queries import ExplainPromise
from layby.testing import current_clock, run_virtual
from layby.workflow.why import find_why, told
from tests.helpers.flows import flow_of, sound

MINUTE = 60
NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000


@task
async def slow(context, handle):
    await handle.sleep(context.get("seconds", 150))


@task(dependencies=[slow])
async def after(context):
    context["done"] = True


report = Workflow("report", tasks=[slow, after])


def in_2026(main: Callable[..., Any]) -> Callable[..., Any]:
    """A virtual test that begins with the year."""

    def test(**given: Any) -> None:
        run_virtual(main(**given), start=NEW_YEAR)

    test.__name__, test.__doc__ = main.__name__, main.__doc__
    return test


def run_id(minute: int) -> str:
    return f"report-{NEW_YEAR + minute * MINUTE * 1000}"


async def why(runner: Runner, promise_id: str) -> str:
    async def look(asked: str) -> Any:
        reply = await runner.send(ExplainPromise(id=asked))
        return reply.data if reply.is_ok else None

    found = await find_why(look, promise_id, runner.now())
    assert found is not None
    return told(found, runner.now())


def test_a_changed_workflow_is_replaced_at_start_up(tmp_path: Path) -> None:
    """Without `replace` the error names the task that is new, and nothing else."""
    address = f"sqlite:{tmp_path / 'layby.db'}"

    async def main() -> None:
        async with Runner(address) as runner:
            first = await runner.schedule(report, "* * * * *", context={"to": "ada"})
        extended = Workflow("report", tasks=[slow, after, task(id="sign")(_sign)])
        async with Runner(address) as runner:
            with pytest.raises(UsageError) as refused:
                await runner.schedule(extended, "* * * * *", context={"to": "ada"})
            assert str(refused.value) == (
                "Schedule 'report' already exists and differs in tasks (added 'sign'): "
                "use replace to change it, or another id"
            )
            replaced = await runner.schedule(
                extended, "* * * * *", context={"to": "ada"}, replace=True
            )
            assert replaced.next_run_at == first.next_run_at
            await current_clock().advance(MINUTE)
            status = await (await runner.get(run_id(1))).status()
            assert list(status.tasks) == ["slow", "after", "sign"]

    run_virtual(main(), start=NEW_YEAR)


async def _sign(context):
    pass


@in_2026
async def test_a_queued_run_says_what_it_waits_for() -> None:
    """Its status and `why`, until the previous run has ended."""
    async with Runner("memory:") as runner:
        schedule = await runner.schedule(report, "* * * * *", overlap="queue_one")
        assert (schedule.overlap, schedule.skipped) == ("queue_one", 0)
        await current_clock().advance(2 * MINUTE + 1)
        queued = await runner.get(run_id(2))
        status = await queued.status()
        waiting = {each.id: each.waiting_on for each in status.tasks.values()}
        previous = f"the previous run of schedule 'report' ('{run_id(1)}')"
        assert status.state == "Pending"
        assert waiting["slow"] is not None
        assert waiting["slow"].sentence == f"waits for {previous}"
        assert waiting["after"] is not None
        assert waiting["after"].sentence == "waits for 'slow'"
        sentence = await why(runner, queued.promise_id)
        assert sentence.startswith(
            f"run '{queued.id}' waits for task 'slow', which waits for {previous}, which waits for "
            "task 'slow', which is parked"
        )
        node = await why(runner, f"{queued.promise_id}:slow")
        assert node.startswith(f"task 'slow' of run '{queued.id}' waits for {previous}, which")
        alone = await runner.send(ExplainPromise(id=f"{queued.promise_id}:slow"))
        assert alone.is_ok
        await current_clock().advance(MINUTE)
        (schedule,) = await runner.schedules()
        assert schedule.skipped == 1
        await current_clock().advance(MINUTE)
        status = await queued.status()
        assert status.state == "Running"
        assert status.tasks["slow"].status == "Running"
        await queued.result(timeout=200)
        await sound(runner)


@in_2026
async def test_why_names_the_previous_run_also_in_a_long_chain() -> None:
    """And what that waits for in the end."""

    @task
    async def asks(context, handle):
        await handle.wait_for("answer")

    @task(dependencies=[asks])
    async def tells(context):
        pass

    async with Runner("memory:") as runner:
        flow = flow_of(asks, tells, name="report")
        await runner.schedule(flow, "* * * * *", overlap="queue_one")
        await current_clock().advance(2 * MINUTE + 1)
        sentence = await why(runner, f"run/{run_id(2)}:tells")
        previous = f"the previous run of schedule 'report' ('{run_id(1)}')"
        assert sentence.startswith(
            f"task 'tells' of run '{run_id(2)}' waits for task 'asks', which waits for {previous}, "
            "which waits for task 'asks', which waits for promise answer, which has not been"
        )


@in_2026
async def test_a_run_behind_two_names_both() -> None:
    async with Runner("memory:") as runner:
        schedule = await runner.schedule(report, "* * * * *", overlap="queue_one")
        await current_clock().advance(MINUTE)
        by_hand = await schedule.start_now()
        await current_clock().advance(MINUTE)
        status = await (await runner.get(run_id(2))).status()
        told = status.tasks["slow"].waiting_on
        assert told is not None
        assert told.sentence == (
            f"waits for the previous runs of schedule 'report' ('{by_hand.id}' and '{run_id(1)}')"
        )


@in_2026
async def test_pause_unpause_and_start_now() -> None:
    """A paused schedule starts nothing by itself; what passes meanwhile never comes."""
    async with Runner("memory:") as runner:
        schedule = await runner.schedule(report, "* * * * *", context={"seconds": 5}, catch_up=True)
        await current_clock().advance(MINUTE)
        await schedule.pause()
        assert (schedule.paused_at, schedule.next_run_at) == (NEW_YEAR + 60_000, None)
        assert repr(schedule) == "<schedule 'report' of 'report': * * * * *, paused>"
        await current_clock().advance(10 * MINUTE)
        run = await schedule.start_now()
        assert run.is_new
        assert run.id.startswith(f"{run_id(11)}-now-")
        assert (await run.result(timeout=10))["done"] is True
        await schedule.unpause()
        assert (schedule.paused_at, schedule.next_run_at) == (None, NEW_YEAR + 12 * 60_000)
        await current_clock().advance(2 * MINUTE)
        ids = [each.id for each in await schedule.runs()]
        assert ids == [run_id(13), run_id(12), run.id, run_id(1)]
        await schedule.delete()
        for act in (schedule.pause, schedule.unpause, schedule.start_now):
            with pytest.raises(NotFound, match="there is no schedule 'report'"):
                await act()


@in_2026
async def test_mistakes_are_told_at_the_call() -> None:
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="overlap must be one of 'allow', 'skip', 'queue_one'"):
            await runner.schedule(report, "* * * * *", overlap="later")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="replace must be True or False, got 1"):
            await runner.schedule(report, "* * * * *", replace=1)  # type: ignore[arg-type]


def test_the_same_without_an_event_loop() -> None:
    with BlockingRunner("memory:") as runner:
        quick = flow_of(after_nothing, name="quick")
        schedule = runner.schedule(quick, "0 0 1 1 *", overlap="skip")
        assert (schedule.overlap, schedule.skipped, schedule.paused_at) == ("skip", 0, None)
        schedule.pause()
        assert schedule.next_run_at is None
        assert schedule.paused_at is not None
        run = schedule.start_now()
        assert run.result(timeout=10)["done"] is True
        schedule.unpause()
        assert schedule.next_run_at is not None
        again = runner.schedule(quick, "0 0 2 1 *", replace=True)
        assert (again.cron, again.overlap) == ("0 0 2 1 *", "allow")
        assert [each.id for each in schedule.runs()] == [run.id]


@task
async def after_nothing(context):
    context["done"] = True
