"""`handle.defer`: a task leaves memory, and goes on in a new try when its trigger fires."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from layby import (
    BlockingRunner,
    Conflict,
    ContextError,
    DeferTimeout,
    NotFound,
    RunFailed,
    Runner,
    TriggerError,
    UsageError,
    task,
    triggers,
)
from layby.core.commands import GetPromise
from layby.core.queries import GetRecords
from layby.core.questions import settled_by
from layby.testing import virtual_test
from layby.worker.deferring import Deferred, new_deferral
from tests.helpers.workers import (
    crashing,
    flow_of,
    look,
    promises,
    rows,
    settled_down,
    until,
)

seen: list[Any] = []
"""What the functions below were given: they are found by their names."""


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def fetch(context: Any, handle: Any, event: Any, factor: int = 1) -> None:
    seen.append((event, handle.event, handle.try_number, dict(context)))
    context["total"] = event["amount"] * factor


def fetch_plainly(context: Any, handle: Any, event: Any) -> None:
    seen.append((event, handle.event, handle.try_number, dict(context)))
    context["total"] = event["amount"]


async def again(context: Any, handle: Any, event: Any, left: int) -> None:
    seen.append((event, left))
    if left:
        await handle.defer(triggers.Event(f"step-{left}"), resume=again, kwargs={"left": left - 1})


async def sleeps(context: Any, handle: Any, event: Any) -> None:
    await handle.sleep(7)
    seen.append(await handle.wait_for("third"))


async def fails(context: Any, handle: Any, event: Any) -> None:
    seen.append(("fails", handle.try_number, handle.failures))
    raise ValueError("no")


@task
async def pays(context, handle):
    context["before"] = 1
    await handle.defer(
        triggers.Event("paid"), resume=fetch, kwargs={"factor": 10}, timeout=timedelta(hours=1)
    )


@virtual_test
async def test_a_new_try_begins_at_the_function_with_the_payload_and_the_context(tmp_path):
    """Nothing is held in between: neither a slot nor a coroutine; retries are not used up."""
    path = tmp_path / "a.db"

    async with Runner(f"sqlite:{path}", slots=1) as runner:
        run = await runner.start(flow_of(pays), run_id="r")
        await asyncio.sleep(5)
        status = await look(run, "pays")
        assert (status.status, status.sub_status, status.parked_in) == (
            "Running",
            "Deferred",
            "store",
        )
        assert status.waiting_on is not None
        assert status.waiting_on.kind == "trigger"
        (row,) = [row for row in rows(path) if row["name"] == "flow/pays"]
        assert (row["state"], row["sub_status"], row["pid"]) == ("deferred", "Deferred", None)
        assert runner.worker.attempts == {}
        assert runner.worker.holds == {}
        await runner.resolve("paid", {"amount": 7})
        result = await run.result()
        assert result == {"before": 1, "total": 70}
        assert seen == [({"amount": 7}, {"amount": 7}, 2, {"before": 1})]
        status = await look(run, "pays")
        assert (status.try_number, status.failures) == (2, 0)
        first, second = status.tries
        assert (first.outcome, second.why, second.callback, second.event) == (
            "Suspended",
            "resumed",
            f"{__name__}:fetch",
            "paid",
        )


async def keeps(context: Any, handle: Any, event: Any) -> None:
    await handle.checkpoint("once", lambda: seen.append("kept"))
    seen.append(await handle.wait_for("crash"))


def reads_of(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all reads of promises and records from now on."""
    found: list[str] = []
    ask = runner.client.ask

    def counted(request: Any, *given: Any, **named: Any) -> Any:
        if isinstance(request, GetRecords | GetPromise):
            found.append(request.kind)
        return ask(request, *given, **named)

    monkeypatch.setattr(runner.client, "ask", counted)
    return found


@virtual_test
async def test_who_has_kept_nothing_goes_on_without_a_read(tmp_path, monkeypatch):
    """Ten thousand that wake at once would be ten thousand reads; the claim has all they need."""
    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        run = await runner.start(flow_of(pays))
        await asyncio.sleep(5)
    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        runner.register(flow_of(pays))
        reads = reads_of(runner, monkeypatch)
        await runner.resolve("paid", {"amount": 7})
        await settled_down()
        assert seen
        assert reads == []
        assert (await (await runner.get(run.id)).result())["total"] == 70


@virtual_test
async def test_what_was_kept_after_it_is_recalled_by_the_next_claim(tmp_path):
    """The first try after the wait had nothing to recall; the one after its crash has."""

    @task
    async def job(context, handle):
        await handle.defer(triggers.Event("go"), resume=keeps)

    async with crashing(f"sqlite:{tmp_path / 'a.db'}") as runner:
        run = await runner.start(flow_of(job))
        await asyncio.sleep(5)
        await runner.resolve("go", 1)
        await until(lambda: seen == ["kept"])
        await asyncio.sleep(1)
    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        runner.register(flow_of(job))
        await runner.resolve("crash", "over")
        await (await runner.get(run.id)).result()
    assert seen == ["kept", "over"]


@virtual_test
async def test_what_was_kept_before_it_is_recalled_after_it(tmp_path):
    @task
    async def job(context, handle):
        token = await handle.promise("ask")
        await handle.checkpoint("once", lambda: seen.append(token.id))
        await handle.defer(triggers.Event("go"))
        await handle.defer(triggers.Event("on"))

    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        run = await runner.start(flow_of(job))
        for each in ("go", "on"):
            await asyncio.sleep(5)
            await runner.resolve(each, 1)
        await run.result()
    assert len(seen) == 1


@virtual_test
async def test_plain_functions_defer_and_are_resumed_in_threads():
    @task
    def plain(context, handle):
        handle.defer(triggers.Event("paid"), resume=fetch_plainly)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(plain))
        await asyncio.sleep(5)
        await runner.resolve("paid", {"amount": 7})
        assert await run.result() == {"total": 7}


@virtual_test
async def test_without_a_function_the_task_runs_again_and_its_calls_return_at_once():
    calls: list[str] = []

    @task
    async def job(context, handle):
        calls.append("body")
        await handle.checkpoint("submit", lambda: calls.append("submit"))
        first = await handle.defer(triggers.Event("a"))
        await handle.sleep(5)
        second = await handle.defer(triggers.Delay(60))
        third = await handle.defer(triggers.Event("b"), timeout=600)
        calls.append("end")
        context["got"] = [first, second, third, handle.event]

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        await asyncio.sleep(1)
        await runner.resolve("a", 1)
        await asyncio.sleep(100)
        await runner.resolve("b", 3)
        assert (await run.result())["got"] == [1, None, 3, 3]
        assert calls == ["body", "submit", "body", "body", "body", "end"]
        assert (await look(run, "job")).try_number == 4


@virtual_test
async def test_deferring_any_number_of_times():
    @task
    async def job(context, handle):
        await handle.defer(triggers.Event("step-5"), resume=again, kwargs={"left": 4})

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        for number in (5, 4, 3, 2, 1):
            await asyncio.sleep(1)
            await runner.resolve(f"step-{number}", number)
        await run.result()
        assert seen == [(5, 4), (4, 3), (3, 2), (2, 1), (1, 0)]
        assert (await look(run, "job")).failures == 0


@virtual_test
async def test_calls_of_the_function_are_not_mistaken_for_those_before():
    """The first sleep of each is its own, though both are the first without a key."""

    @task
    async def job(context, handle):
        await handle.sleep(3)
        await handle.wait_for("first")
        await handle.defer(triggers.Event("second"), resume=sleeps)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        for name in ("first", "second", "third"):
            await runner.resolve(name, name)
        began = asyncio.get_running_loop().time()
        await run.result()
        assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.1)
        assert seen == ["third"]


@virtual_test
async def test_time_up_fails_the_try_that_would_have_begun():
    @task
    async def job(context, handle):
        await handle.defer(triggers.Event("never"), resume=fetch, timeout=30)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        with pytest.raises(RunFailed, match=r"DeferTimeout: .*never had not fired"):
            await run.result()
        assert (await look(run, "job")).try_number == 2
        assert seen == []


@virtual_test
async def test_without_a_function_errors_are_raised_where_it_waits():
    got: list[str] = []

    @task
    async def job(context, handle):
        try:
            await handle.defer(triggers.Event("never"), timeout=30)
        except DeferTimeout:
            got.append("late")
        try:
            await handle.defer(triggers.Event("bad"))
        except TriggerError as error:
            got.append(str(error))

    async with Runner("memory:") as runner:
        await runner.reject("bad", "it is off")
        await (await runner.start(flow_of(job))).result()
        late, error = got[-2:]
        assert late == "late"
        assert "bad failed" in error
        assert "it is off" in error


@virtual_test
async def test_a_retry_begins_at_the_function_of_the_task():
    tries: list[tuple[int, int]] = []

    @task(retries=1)
    async def job(context, handle):
        tries.append((handle.try_number, handle.failures))
        assert handle.event is None
        await handle.defer(triggers.Delay(5), resume=fails)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        with pytest.raises(RunFailed, match="ValueError: no"):
            await run.result()
        assert (tries, seen) == ([(1, 0), (3, 1)], [("fails", 2, 0), ("fails", 4, 1)])
        assert (await look(run, "job")).failures == 2


@virtual_test
async def test_it_cannot_be_swallowed():
    """Neither by `except Exception`, nor by code that catches everything and returns."""

    @task
    async def careful(context, handle):
        with suppress(Exception):
            await handle.defer(triggers.Delay(5), resume=fetch_nothing)

    @task
    async def greedy(context, handle):
        try:
            await handle.defer(triggers.Delay(5), resume=fetch_nothing)
        except BaseException:  # noqa: BLE001 - on purpose
            with pytest.raises(Deferred):
                await handle.sleep(1)

    @task
    async def grouped(context, handle):
        async with asyncio.TaskGroup() as group:
            group.create_task(handle.defer(triggers.Delay(5), resume=fetch_nothing))

    async with Runner("memory:") as runner:
        await (await runner.start(flow_of(careful, greedy, grouped))).result()
        assert seen == ["went on"] * 3


async def fetch_nothing(context: Any, handle: Any, event: Any) -> None:
    seen.append("went on")


@virtual_test
async def test_an_error_on_the_way_out_is_a_failure():
    @task
    async def job(context, handle):
        try:
            await handle.defer(triggers.Event("paid"), resume=fetch)
        finally:
            raise ValueError("on the way out")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        with pytest.raises(RunFailed, match="on the way out"):
            await run.result()


@virtual_test
async def test_what_cannot_be_found_again_is_refused_at_the_call():
    def closure(context: Any, handle: Any, event: Any) -> None: ...

    refused: list[str] = []

    @task
    async def job(context, handle):
        for given in (
            {"resume": lambda context, handle, event: None},
            {"resume": closure},
            {"resume": print},
            {"resume": fetch, "kwargs": {"unknown": 1}},
            {"resume": fetch, "kwargs": {"factor": {1, 2}}},
            {"resume": fetch, "kwargs": {"factor": "x" * 1_000_001}},
            {"kwargs": {"factor": 1}},
            {"trigger": "tomorrow"},
            {"timeout": -1},
        ):
            with pytest.raises(UsageError) as error:
                await handle.defer(**{"trigger": triggers.Delay(5)} | given)
            refused.append(str(error.value))

    async with Runner("memory:") as runner:
        await (await runner.start(flow_of(job))).result()
    assert "at the top of a module" in refused[0]
    assert "at the top of a module" in refused[1]
    assert "unknown" in refused[3]
    assert "JSON" in refused[4]
    assert "1,000,014 bytes" in refused[5]


def test_triggers_check_their_arguments():
    with pytest.raises(UsageError, match="time zone"):
        triggers.At(datetime(2026, 1, 1))  # noqa: DTZ001 - that is refused
    with pytest.raises(UsageError, match="negative"):
        triggers.Delay(-1)
    with pytest.raises(UsageError, match="required"):
        triggers.Event("")
    with pytest.raises(UsageError) as error:
        triggers.Event("x" * 100_000)
    assert len(str(error.value)) < 400
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert triggers.At(moment).arguments() == {"at": 1_767_225_600_000}
    assert triggers.Delay(timedelta(minutes=1)).arguments() == {"ms": 60_000}
    assert triggers.Event("a").arguments() == {"name": "a"}
    assert triggers.PromiseSettled("run/a").arguments() == {"id": "run/a"}


@virtual_test
async def test_later_tasks_read_the_event():
    @task
    async def waits(context, handle):
        await handle.defer(triggers.Event("paid"), resume=fetch_plainly)

    @task(dependencies=["waits"])
    async def reads(context):
        context["seen"] = context.event("waits")
        assert context.event(reads_too) is None

    @task
    async def reads_too(context):
        with pytest.raises(ContextError, match="add it to the dependencies"):
            context.event("waits")

    reads = task(id="reads", dependencies=["waits", "reads_too"])(reads.function)
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits, reads_too, reads))
        await runner.resolve("paid", {"amount": 3, "big": "x" * 1000})
        result = await run.result()
        assert result["seen"] == {"amount": 3, "big": "x" * 1000}
        with pytest.raises(ContextError, match="only tasks of its run"):
            result.event("waits")


@virtual_test
async def test_a_crash_while_it_waits_and_one_after_the_event(tmp_path):
    """The payload is read again, and nothing is waited for twice."""
    where = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def job(context, handle):
        context["before"] = 1
        await handle.defer(triggers.Event("paid"), resume=hangs_once)

    async with crashing(where) as runner:
        await runner.start(flow_of(job), run_id="r")
        await asyncio.sleep(5)
    async with crashing(where) as runner:
        await runner.start(flow_of(job), run_id="r")
        await runner.resolve("paid", {"amount": 7})
        await asyncio.sleep(5)
    assert seen == [({"amount": 7}, {"before": 1})]
    async with Runner(where) as runner:
        run = await runner.start(flow_of(job), run_id="r")
        assert await run.result() == {"before": 1, "total": 7}
        assert seen == [({"amount": 7}, {"before": 1})] * 2


async def hangs_once(context: Any, handle: Any, event: Any) -> None:
    seen.append((event, dict(context)))
    if len(seen) == 1:
        await asyncio.sleep(1000)
    context["total"] = event["amount"]


def test_blocking_runners_defer_as_well():
    @task
    def job(context, handle):
        handle.defer(triggers.Event("paid"), resume=fetch_plainly)

    with BlockingRunner("memory:") as runner:
        run = runner.start(flow_of(job))
        runner.resolve("paid", {"amount": 7})
        assert run.result(timeout=30) == {"total": 7}


def test_blocking_runners_wake_as_well():
    @task
    def job(context, handle):
        handle.defer(triggers.Event("never"), resume=fetch_plainly)

    with BlockingRunner("memory:") as runner:
        run = runner.start(flow_of(job), run_id="r")
        while run.status().tasks["job"].parked_in != "store":
            pass
        runner.extend("r", "job", 3600)
        runner.wake("r", "job", {"amount": 7})
        assert run.result(timeout=30) == {"total": 7}


# --- races: one defined outcome each (docs/deferring.md) -------------------------------------


@task
async def races(context, handle):
    context["got"] = await handle.defer(triggers.Event("paid"), timeout=60)


@virtual_test
async def test_settled_before_the_wait():
    async with Runner("memory:") as runner:
        await runner.resolve("paid", 1)
        run = await runner.start(flow_of(races))
        assert await run.result() == {"got": 1}
        assert (await look(run, "races")).try_number == 2


@virtual_test
async def test_settled_twice():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races))
        assert (await runner.resolve("paid", 1)).won
        assert not (await runner.resolve("paid", 2)).won
        assert await run.result() == {"got": 1}


@virtual_test
async def test_fired_after_the_timeout():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races))
        await asyncio.sleep(60)
        assert (await runner.resolve("paid", 1)).won
        with pytest.raises(RunFailed, match="DeferTimeout"):
            await run.result()


@virtual_test
async def test_timed_out_after_it_fired():
    """The deadline that was left over wakes nobody."""

    @task
    async def job(context, handle):
        context["got"] = await handle.defer(triggers.Event("paid"), timeout=60)
        await handle.defer(triggers.Delay(100))
        context["waited"] = True

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        await asyncio.sleep(59.9)
        await runner.resolve("paid", 1)
        await asyncio.sleep(50)
        assert (await look(run, "job")).sub_status == "Deferred"
        assert await run.result() == {"got": 1, "waited": True}


@virtual_test
async def test_cancelled_while_it_fires():
    """Whichever is stored first counts; a run that was cancelled runs nothing more."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races), run_id="r")
        await asyncio.sleep(1)
        await asyncio.gather(run.cancel(), runner.resolve("paid", 1))
        await settled_down()
        assert (await run.status()).state == "Cancelled"
        assert all(not each.is_pending for each in promises(runner).values())


@virtual_test
async def test_fired_while_it_is_cancelled():
    """The other way round: the task has gone on, and is cancelled like any that runs."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(cleans_up), run_id="r")
        await asyncio.sleep(1)
        await runner.resolve("paid", {"amount": 1})
        await until(lambda: seen)
        assert (await run.cancel()).won
        await until(lambda: len(seen) == 2)
        assert seen == ["begun", "cancelled"]
        assert (await run.status()).state == "Cancelled"
        assert promises(runner)["paid"].state == "resolved"


@task
async def cleans_up(context, handle):
    await handle.defer(triggers.Event("paid"), resume=is_cancelled, timeout=60)


async def is_cancelled(context: Any, handle: Any, event: Any) -> None:
    seen.append("begun")
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


@virtual_test
async def test_people_wake_it_and_move_its_deadline():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races), run_id="r")
        await asyncio.sleep(1)
        await runner.extend("r", "races", timedelta(seconds=100), by="ann")
        await asyncio.sleep(99)
        assert (await look(run, "races")).sub_status == "Deferred"
        await runner.wake("r", "races", {"cash": 5}, by="ann", reason="paid in cash")
        with pytest.raises(Conflict, match=r"task 'races' of run 'r': .*does not wait"):
            await runner.wake("r", "races")
        with pytest.raises(NotFound, match="has no task 'race'"):
            await runner.wake("r", "race")
        assert await run.result() == {"got": {"cash": 5}}
        assert promises(runner)["paid"].is_pending
        first, last = (await look(run, "races")).tries
        assert (first.by, last.by, last.reason) == (None, "ann", "paid in cash")
        assert last.event is not None
        assert settled_by(promises(runner)[last.event]) == ("ann", "paid in cash")


@virtual_test
async def test_people_let_it_wait_for_ever_or_fail():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races), run_id="r")
        await asyncio.sleep(1)
        await runner.extend("r", "races", None)
        await asyncio.sleep(10_000)
        await runner.wake("r", "races", error="the provider lost the job")
        with pytest.raises(RunFailed, match=r"TriggerError: .*the provider lost the job"):
            await run.result()


@virtual_test
async def test_who_moved_its_deadline_is_not_who_woke_it():
    """It fires by itself."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(races), run_id="r")
        await asyncio.sleep(1)
        await runner.extend("r", "races", 100, by="me")
        await runner.resolve("paid", 1)
        await run.result()
        assert (await look(run, "races")).tries[-1].by is None


# --- triggers that run code: here by hand, as a manager would ----------------------------------


class Poll(triggers.Trigger, frozen=True):
    url: str


@task
async def polls(context, handle):
    await handle.defer(Poll("u"), resume=fetch, timeout=600)


@virtual_test
async def test_a_trigger_that_fails_is_not_one_of_the_tasks_of_the_run():
    """Neither in the status nor among what failed; whoever waits for it gets a TriggerError."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(polls), run_id="r")
        await asyncio.sleep(1)
        assert list((await run.status()).tasks) == ["polls"]
        await runner.reject("run/r:polls.defer.1", "it is off")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert list(failed.value.failed) == ["polls"]
        assert "TriggerError" in str(failed.value)
        assert "it is off" in str(failed.value)
        assert await run.context() == {}


@virtual_test
async def test_a_run_that_is_run_again_defers_again():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(polls), run_id="r")
        await asyncio.sleep(601)
        with pytest.raises(RunFailed, match="DeferTimeout"):
            await run.result()
        again = await run.rerun()
        await asyncio.sleep(1)
        await runner.resolve("run/r:life/2:polls.defer.1", {"amount": 4})
        assert await again.result() == {"total": 4}


def test_what_is_not_a_function_has_no_name_either():
    for wrong in (5, Poll("u"), pays, [], fetch.__get__(object())):
        with pytest.raises(UsageError, match="at the top of a module"):
            new_deferral(triggers.Delay(1), wrong, None, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="must be a dict"):
        new_deferral(triggers.Delay(1), fetch, ["factor"], None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="must be a dict"):
        new_deferral(triggers.Delay(1), fetch, {1: 2}, None)  # pyright: ignore[reportArgumentType]
