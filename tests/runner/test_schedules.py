"""Schedules of workflows, end to end with the real Runner in virtual time."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from layby import BlockingRunner, ContextError, RunFailed, Runner, UsageError, Workflow, task
from layby.core.commands import CreateSchedule, GetSchedule
from layby.engine.items import Item
from layby.errors import WorkflowError
from layby.testing import current_clock, run_virtual, virtual_test
from tests.helpers import requests as r
from tests.helpers.flows import flow_of, sound
from tests.helpers.worlds import World

MINUTE = 60
DAY = 24 * 60 * MINUTE
BERLIN = ZoneInfo("Europe/Berlin")
NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000


@task
async def note(context):
    context["noted_at"] = current_clock().now()


@task(dependencies=[note])
async def count(context):
    context["count"] = context.get("count", 0) + 1


report = Workflow("report", tasks=[note, count])


def in_2026(main: Callable[..., Any]) -> Callable[..., Any]:
    """A virtual test that begins with the year."""

    def test(**given: Any) -> None:
        run_virtual(main(**given), start=NEW_YEAR)

    test.__name__, test.__doc__ = main.__name__, main.__doc__
    return test


def minutes(*numbers: int) -> list[str]:
    return [f"report-{NEW_YEAR + number * MINUTE * 1000}" for number in numbers]


async def runs_of(runner: Runner, schedule_id: str = "report") -> list[str]:
    """Ids, oldest first."""
    (schedule,) = [each for each in await runner.schedules() if each.id == schedule_id]
    return [run.id for run in reversed(await schedule.runs())]


def local(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, BERLIN).isoformat(" ")


# --- it starts runs ----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["memory:", "sqlite"])
def test_every_minute_has_its_run(address: str, tmp_path: Path) -> None:
    """At its minute, with the context given, worked on like any other."""

    async def main() -> None:
        where = address if address == "memory:" else f"sqlite:{tmp_path / 'layby.db'}"
        async with Runner(where) as runner:
            schedule = await runner.schedule(report, "* * * * *", context={"count": 5})
            assert (schedule.id, schedule.flow, schedule.last_run_at) == ("report", "report", None)
            assert schedule.next_run_at == NEW_YEAR + 60_000
            await current_clock().advance(5 * MINUTE)
            runs = await schedule.runs()
            assert [run.id for run in runs] == minutes(5, 4, 3, 2, 1)
            results = [await run.result(timeout=1) for run in runs]
            assert [each["noted_at"] for each in results] == [
                NEW_YEAR + number * 60_000 for number in (5, 4, 3, 2, 1)
            ]
            assert {each["count"] for each in results} == {6}
            assert [run.id for run in await schedule.runs(limit=2)] == minutes(5, 4)
            await sound(runner)

    run_virtual(main(), start=NEW_YEAR)


@pytest.mark.parametrize(
    ("begin", "first_days"),
    [
        (
            "2026-03-27T12:00+01:00",
            ["2026-03-28 09:00:00+01:00", "2026-03-29 09:00:00+02:00", "2026-03-30 09:00:00+02:00"],
        ),
        (
            "2026-10-23T12:00+02:00",
            ["2026-10-24 09:00:00+02:00", "2026-10-25 09:00:00+01:00", "2026-10-26 09:00:00+01:00"],
        ),
    ],
    ids=["summer time begins", "summer time ends"],
)
def test_nine_in_berlin_is_nine_on_every_day(begin: str, first_days: list[str]) -> None:
    """The clock on the wall counts, also across its changes; two ways to name it are the same."""

    async def main() -> None:
        async with Runner("memory:") as runner:
            schedules = [
                await runner.schedule(report, "0 9 * * *", timezone=timezone, id=schedule_id)
                for schedule_id, timezone in (("name", "Europe/Berlin"), ("zone", BERLIN))
            ]
            assert [each.timezone for each in schedules] == ["Europe/Berlin"] * 2
            await current_clock().advance(3 * DAY)
            for schedule in schedules:
                results = [await run.result(timeout=1) for run in reversed(await schedule.runs())]
                assert [local(each["noted_at"]) for each in results] == first_days

    run_virtual(main(), start=int(datetime.fromisoformat(begin).timestamp()) * 1000)


@in_2026
async def test_a_deadline_counts_from_the_occurrence() -> None:
    """A run that is not done by then has failed."""

    @task
    async def slow(context, handle):
        await handle.sleep(90)

    async with Runner("memory:") as runner:
        schedule = await runner.schedule(
            flow_of(slow, name="slow"), "* * * * *", deadline=timedelta(seconds=30)
        )
        await current_clock().advance(100)
        (run,) = await schedule.runs()
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        assert (await run.status()).state == "Failed"


@in_2026
async def test_two_schedules_of_one_workflow() -> None:
    """Each with an id, a rule and a context of its own."""
    async with Runner("memory:") as runner:
        await runner.schedule(report, "*/2 * * * *", id="even", context={"count": 10})
        await runner.schedule(report, "1-59/2 * * * *", id="odd", context={"count": 20})
        await current_clock().advance(4 * MINUTE)
        assert [each.id for each in await runner.schedules()] == ["even", "odd"]
        for each, expected in zip(await runner.schedules(), (11, 21), strict=True):
            runs = await each.runs()
            assert [(await run.result())["count"] for run in runs] == [expected, expected]


# --- downtime and restart ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "expected"), [(True, [1, 2, 3, 4, 5, 6, 7]), (False, [1, 2, 6, 7])]
)
def test_what_passed_while_nothing_was_running(
    catch_up: bool, expected: list[int], tmp_path: Path
) -> None:
    """Every missed run, or only the latest; afterwards it goes on as before."""
    address = f"sqlite:{tmp_path / 'layby.db'}"

    async def main() -> None:
        clock = current_clock()
        async with Runner(address) as runner:
            await runner.schedule(report, "* * * * *", catch_up=catch_up)
            await clock.advance(2 * MINUTE)
        await clock.advance(4 * MINUTE + 30)
        async with Runner(address) as runner:
            runner.register(report)
            await clock.settled()
            assert await runs_of(runner) == minutes(*expected[:-1])
            await clock.advance(MINUTE)
            assert await runs_of(runner) == minutes(*expected)
            for run_id in minutes(*expected):
                await (await runner.get(run_id)).result(timeout=1)
            await sound(runner)

    run_virtual(main(), start=NEW_YEAR)


def test_a_restarted_program_schedules_again_and_nothing_is_new(tmp_path: Path) -> None:
    """What programs do when they start: the schedule is there, and keeps its place."""
    address = f"sqlite:{tmp_path / 'layby.db'}"

    async def main() -> None:
        for number in (1, 2, 3):
            async with Runner(address) as runner:
                schedule = await runner.schedule(report, "*/2 * * * *", context={"a": 1, "b": [2]})
                assert schedule.next_run_at == NEW_YEAR + (number + 1) // 2 * 120_000
                await current_clock().advance(MINUTE)
        async with Runner(address) as runner:
            schedule = await runner.schedule(report, "*/2 * * * *", context={"b": [2], "a": 1})
            assert schedule.last_run_at == NEW_YEAR + 120_000
            assert await runs_of(runner) == minutes(2)

    run_virtual(main(), start=NEW_YEAR)


# --- the same id, deleting ---------------------------------------------------------------


@in_2026
async def test_the_same_id_twice_is_one_schedule() -> None:
    """When all of it is the same."""
    async with Runner("memory:") as runner:
        first = await runner.schedule(report, "* * * * *", timezone="Asia/Tokyo", deadline=5)
        again = await runner.schedule(report, "* * * * *", timezone="Asia/Tokyo", deadline=5.0)
        assert again.next_run_at == first.next_run_at
        assert len(await runner.schedules()) == 1


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"cron": "0 9 * * *"}, r"cron \('\* \* \* \* \*', not '0 9 \* \* \*'\)"),
        ({"timezone": "Asia/Tokyo"}, r"time zone \('UTC', not 'Asia/Tokyo'\)"),
        ({"context": {"count": 2}}, "differs in context"),
        ({"catch_up": True}, r"catch_up \(False, not True\)"),
        ({"deadline": 5}, "differs in deadline"),
        (
            {"flow": flow_of(note, name="other")},
            r"workflow \('report', not 'other'\), tasks \(removed 'count'\):",
        ),
    ],
)
def test_another_schedule_of_the_same_id_is_refused(changed: dict[str, Any], what: str) -> None:
    """The error says what differs and what to do, and the first one stays."""

    async def main() -> None:
        given: dict[str, Any] = {"flow": report, "cron": "* * * * *", "context": {"count": 1}}
        async with Runner("memory:") as runner:
            await runner.schedule(**given, id="x")
            with pytest.raises(UsageError, match=what) as refused:
                await runner.schedule(**given | changed, id="x")
            assert str(refused.value).endswith(": use replace to change it, or another id")
            await runner.schedule(**given, id="x")
            await runner.schedule(**given | changed, id="x", replace=True)
            await runner.unschedule("x")
            await runner.schedule(**given | changed, id="x")

    run_virtual(main())


@in_2026
async def test_once_deleted_no_more_runs_are_started() -> None:
    """Those that were started end as they would have."""

    @task
    async def long(context, handle):
        await handle.sleep(10 * MINUTE)

    async with Runner("memory:") as runner:
        schedule = await runner.schedule(flow_of(long, name="long"), "* * * * *")
        await current_clock().advance(2 * MINUTE)
        await schedule.delete()
        assert await runner.schedules() == []
        await current_clock().advance(30 * MINUTE)
        runs = await schedule.runs()
        assert len(runs) == 2
        assert [(await run.status()).state for run in runs] == ["Completed"] * 2
        with pytest.raises(UsageError, match="there is no schedule 'long'"):
            await schedule.delete()


@in_2026
async def test_an_unknown_schedule_has_its_nearest_named() -> None:
    """Or the place to look."""
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match=r"no schedule 'x'; runner\.schedules\(\) lists"):
            await runner.unschedule("x")
        await runner.schedule(report, "* * * * *", id="nightly")
        with pytest.raises(UsageError, match="no schedule 'nightli'; did you mean 'nightly'"):
            await runner.unschedule("nightli")


@in_2026
async def test_schedules_of_the_protocol_are_not_listed() -> None:
    """They start no runs."""
    tags = {"resonate:target": r.OTHER, "layby:kind": "root"}
    async with Runner("memory:") as runner:
        plain = CreateSchedule(
            id="p", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=tags
        )
        assert (await runner.send(plain)).is_ok
        assert await runner.schedules() == []


@in_2026
async def test_a_rule_that_has_ended_says_so() -> None:
    """There is no next run; the schedule is still there."""
    async with Runner("memory:") as runner:
        await runner.schedule(report, "0 1 0 1 1 * 2026")
        await current_clock().advance(5 * MINUTE)
        (schedule,) = await runner.schedules()
        assert (schedule.next_run_at, schedule.last_run_at) == (None, NEW_YEAR + 60_000)
        assert await runs_of(runner) == minutes(1)


# --- bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"cron": "61 * * * *"},
            r"cron '61 \* \* \* \*' is not a valid rule \(Bad minute\): write five",
        ),
        ({"cron": ""}, r"Schedule 'report': cron '' is not a valid rule .*: write five fields"),
        ({"timezone": ""}, r"Schedule 'report': time zone '' is not known: give one such as"),
        ({"cron": 5}, "cron must be a string such as '0 9 .*got 5"),
        ({"cron": "0 0 0 1 1 * 1999"}, "has no more occurrences"),
        ({"timezone": "Europe/Berln"}, "'Europe/Berln' is not known: did you mean 'Europe/Berlin'"),
        ({"timezone": UTC}, "timezone must be a string such as 'Europe/Berlin', got"),
        ({"catch_up": "no"}, "catch_up must be True or False, got 'no'"),
        ({"id": "a/b"}, "schedule id 'a/b' must not contain '/': use 'a-b', for instance"),
        ({"id": ""}, "schedule id '' must not be empty"),
        ({"id": "x" * 187}, "is too long: at most 186 bytes"),
        ({"deadline": 0}, "deadline of a scheduled run must be above 0 seconds"),
        ({"deadline": "1d"}, "deadline of a scheduled run must be seconds or a timedelta"),
        ({"context": {"x": object()}}, r'context\["x"\]'),
        ({"context": 5}, "context must be a dict"),
        ({"flow": note}, "is not a Workflow"),
        (
            {"flow": flow_of(note, name="v1.0")},
            r"pass id= to schedule\(\), since the workflow's name",
        ),
    ],
)
def test_what_cannot_be_is_said_at_the_call(given: dict[str, Any], why: str) -> None:
    """And nothing is scheduled."""

    async def main() -> None:
        async with Runner("memory:") as runner:
            with pytest.raises((UsageError, WorkflowError, ContextError), match=why):
                await runner.schedule(**{"flow": report, "cron": "* * * * *"} | given)
            assert await runner.schedules() == []

    run_virtual(main())


@virtual_test
async def test_a_limit_is_a_number_from_one() -> None:
    """As everywhere."""
    async with Runner("memory:") as runner:
        schedule = await runner.schedule(report, "* * * * *")
        with pytest.raises(UsageError, match="limit must be a whole number of at least 1, got 0"):
            await schedule.runs(limit=0)


# --- without an event loop ---------------------------------------------------------------


def test_the_blocking_runner_has_the_same_verbs(tmp_path: Path) -> None:
    """On a real clock: the rule comes once a year, what is looked at is the schedule."""
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
        schedule = runner.schedule(report, "0 0 1 1 *", id="yearly", timezone="Asia/Tokyo")
        (found,) = runner.schedules()
        assert (
            repr(found)
            == repr(schedule)
            == ("<schedule 'yearly' of 'report': 0 0 1 1 * Asia/Tokyo>")
        )
        assert found.next_run_at == schedule.next_run_at
        assert (found.flow, found.cron, found.timezone) == ("report", "0 0 1 1 *", "Asia/Tokyo")
        assert (found.catch_up, found.last_run_at, found.runs()) == (False, None, [])
        found.delete()
        assert runner.schedules() == []
        runner.schedule(report, "0 0 1 1 *")
        runner.unschedule("report")
        assert runner.schedules() == []


# --- ten thousand at once ----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_ten_thousand_missed_runs_do_not_hold_up_other_commands(backend: Any) -> None:
    """Whoever asks meanwhile waits for one portion at most, and in the end all are there."""
    missed, portion = 10_000, 250  # a root and a node each, 500 rows in one transaction
    seen: list[int] = []
    done: Future[None] = Future()

    with World(backend, threaded=True, paused=False) as world:

        def ask() -> None:
            world.engine.submit([Item(GetSchedule(id="nightly"), hear)])

        def hear(answers: Any) -> None:
            ((_, reply),) = answers
            seen.append((reply.data.schedule.last_run_at or 0) // 60_000)
            done.set_result(None) if seen[-1] == missed else ask()

        world.ok(r.nightly(cron="* * * * *", catch_up=True))
        world.clock.advance(missed * 60_000)
        ask()
        done.result(timeout=100)
        assert len(world.dump().promises) == 2 * missed
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= portion
    assert len(seen) > missed // portion


def test_without_catching_up_ten_thousand_missed_are_one() -> None:
    """Found without looking at each."""
    with World("sqlite", paused=False) as world:
        world.ok(r.nightly(cron="* * * * * *"))
        world.clock.advance(10_000_000_500)
        world.engine.pump()
        roots: list[str] = [key for key in world.dump().promises if ":" not in key]
        assert roots == ["run/nightly-10000000000"]
