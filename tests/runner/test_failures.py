"""Failures show where, and nothing that a task returns vanishes: in one process, and over HTTP."""

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from layby import BlockingRunner, RunCancelled, RunFailed, Runner, RunStatus, Workflow, task
from layby.errors import ContextError, TaskFailed
from layby.testing import virtual_test
from layby.workflow.outcome import MAX_RESULTS_IN_ROOT
from layby.workflow.task_results import MAX_RESULT_BYTES
from tests.helpers import process_bodies
from tests.helpers.flows import flow_of
from tests.helpers.troubled_server import play, served

Scene = Callable[[Runner], Awaitable[None]]


@asynccontextmanager
async def runner_at(place: str, folder: object) -> AsyncIterator[Runner]:
    if place == "http":
        async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
            yield runner
    else:
        async with Runner("memory:" if place == "memory" else f"sqlite:{folder}/x.db") as runner:
            yield runner


@pytest.fixture(params=["memory", "sqlite", "http"])
def playing(request, tmp_path) -> Callable[[Scene], None]:
    """Plays a scene with a Runner on each kind of engine."""

    def play_it(scene: Scene) -> None:
        async def run() -> None:
            async with runner_at(request.param, tmp_path) as runner:
                await scene(runner)

        play(run)

    return play_it


def no_money() -> None:
    raise ValueError("no money")


@task
async def reserve(context):
    context["reserved"] = 7
    return ("seat", 12)


@task(dependencies=[reserve])
async def charge(context):
    try:
        no_money()
    except ValueError as error:
        raise RuntimeError("cannot charge") from error


@task(dependencies=[reserve])
def pack(context):
    context["half"] = "packed"
    return {}["box"]


@task(dependencies=[charge, pack])
async def ship(context): ...


ORDER = Workflow("order", tasks=[reserve, charge, pack, ship])


async def failure_of(runner: Runner, flow: Workflow, run_id: str = "o-7") -> RunFailed:
    with pytest.raises(RunFailed) as raised:
        await runner.execute(flow, {"order": 7}, run_id=run_id)
    return raised.value


# --- where ---------------------------------------------------------------------------------


def test_a_failed_run_says_where_each_task_failed(playing):
    """Also that of a plain def, and of another error it was raised from; none of our frames."""

    async def scene(runner: Runner) -> None:
        failed = await failure_of(runner, ORDER)
        assert failed.failed == {"charge": "RuntimeError: cannot charge", "pack": "KeyError: 'box'"}
        charged, packed = failed.errors["charge"], failed.errors["pack"]
        assert (charged.type, charged.message, charged.try_number) == (
            "RuntimeError",
            "cannot charge",
            1,
        )
        assert "in no_money" in charged.traceback
        assert "direct cause" in charged.traceback
        assert packed.type == "KeyError"
        assert packed.traceback.splitlines()[1].endswith("in pack")
        for each in (charged, packed):
            assert "src/layby" not in each.traceback
            assert "concurrent" not in each.traceback
        _check_causes(pickle.loads(pickle.dumps(failed)))
        _check_causes(failed)
        status = await (await runner.get("o-7")).status()
        assert status.tasks["charge"].traceback == charged.traceback
        assert status.tasks["reserve"].traceback == ""

    playing(scene)


def _check_causes(failed: RunFailed) -> None:
    """They are made from what is stored, wherever the task ran."""
    assert isinstance(failed.__cause__, ExceptionGroup)
    for cause, told in zip(failed.__cause__.exceptions, failed.errors.values(), strict=True):
        assert isinstance(cause, TaskFailed)
        assert cause.__notes__ == [told.traceback]
        assert cause.__traceback__ is cause.__cause__ is cause.__context__ is None


def test_what_the_run_had_made_is_there(playing):
    """With the failed run, and whenever it is asked for; a failed try leaves nothing."""

    async def scene(runner: Runner) -> None:
        failed = await failure_of(runner, ORDER)
        assert failed.context == {"order": 7, "reserved": 7}
        assert failed.context.result("reserve") == ["seat", 12]
        assert pickle.loads(pickle.dumps(failed)).context.result("reserve") == ["seat", 12]
        again = await (await runner.get("o-7")).context()
        assert again == failed.context

    playing(scene)


@virtual_test
async def test_one_failure_is_the_cause_itself():
    async with Runner("memory:") as runner:
        failed = await failure_of(runner, flow_of(reserve, charge))
        assert failed.__cause__ is failed.errors["charge"]


@virtual_test
async def test_the_last_of_several_tries_counts():
    """Its traceback is stored once: with the promise, not with the task as well."""

    @task(retries=2)
    async def flaky(context, handle):
        raise ValueError(f"try {handle.try_number}")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(flaky), run_id="r")
        await asyncio.sleep(0.5)
        backing_off = (await run.status()).tasks["flaky"]
        assert (backing_off.error, backing_off.status) == ("ValueError: try 1", "Pending")
        assert "in flaky" in backing_off.traceback
        with pytest.raises(RunFailed) as raised:
            await run.result()
        assert raised.value.errors["flaky"].try_number == 3
        assert "try 3" in raised.value.errors["flaky"].traceback
        row = runner.engine._store.dump().tasks["run/r:flaky"]
        assert row.error is None


@virtual_test
async def test_a_deadline_shows_what_kept_failing():
    """What only waited for it has not failed."""

    @task(retries=100)
    async def keeps_failing(context):
        raise ConnectionError("down")

    @task
    async def waits(context, handle):
        await handle.sleep(3600)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(reserve, keeps_failing, waits), deadline=10)
        with pytest.raises(RunFailed) as raised:
            await run.result()
    failed = raised.value
    assert (failed.failed, list(failed.errors)) == ({}, ["keeps_failing"])
    assert failed.errors["keeps_failing"].type == "ConnectionError"
    assert failed.context == {"reserved": 7}


@virtual_test
async def test_a_task_that_was_cancelled_has_no_traceback():
    @task
    async def waits(context, handle):
        await handle.sleep(3600)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits), run_id="r")
        await asyncio.sleep(1)
        await runner.cancel("r", "waits", by="ann", reason="lunch")
        with pytest.raises(RunFailed) as raised:
            await run.result()
    error = raised.value.errors["waits"]
    assert (error.type, error.message) == ("Cancelled", "cancelled by ann: lunch")
    assert error.traceback == ""


def test_a_body_in_a_process_of_its_own_shows_where():
    """What it raised stays there; its type, message and traceback come back."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            failed = await failure_of(runner, flow_of(process_bodies.raises))
        error = failed.errors["raises"]
        assert failed.failed == {"raises": "ValueError: in the child"}
        assert (error.type, error.message, error.try_number) == ("ValueError", "in the child", 2)
        assert error.traceback.splitlines()[1].endswith("in raises")
        assert "src/layby" not in error.traceback

    asyncio.run(scene())


@pytest.mark.parametrize("silent", [False, True])
def test_a_timeout_in_a_process_of_its_own_shows_where(tmp_path, silent):
    """As far as the process can tell: without layby's own frames, or a sentence that says so."""

    async def main() -> None:
        async with Runner("memory:", slots=1) as runner:
            flow = flow_of(process_bodies.deaf if silent else process_bodies.never_ends)
            with pytest.raises(RunFailed) as raised:
                await runner.execute(flow, {"path": str(tmp_path / "pid")})
            (failed,) = raised.value.errors.values()
            assert failed.type == "TaskTimeout"
            if silent:
                assert failed.traceback == "(its process did not tell where it stood)"
                return
            first, second, code, *_, last = failed.traceback.splitlines()
            assert last.endswith(f"TaskTimeout: {failed.message}")
            assert first == "Traceback (most recent call last):"
            assert second.startswith(f'  File "{process_bodies.__file__}", line ')
            assert second.endswith(" in never_ends")
            assert code == "    Event().wait(600)"
            assert "src/layby" not in failed.traceback

    asyncio.run(main())


def test_a_broken_rule_shows_where():
    def rule(outcomes, context):
        return no_money()

    broken = task(dependencies=[reserve], rule=rule)(charge.function)

    async def scene() -> None:
        async with Runner("memory:") as runner:
            failed = await failure_of(runner, flow_of(reserve, broken))
        assert "in no_money" in failed.errors["charge"].traceback

    asyncio.run(scene())


def test_the_log_says_each_failure_once(caplog):
    """A try that is followed by another is a warning; the task's failure an error, and where."""

    @task(retries=1)
    async def flaky(context):
        no_money()

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await failure_of(runner, flow_of(flaky))

    virtual_test(scene)()
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.levelname for each in said] == ["WARNING", "ERROR"]
    warning, error = (each.getMessage() for each in said)
    assert warning == (
        "run/o-7:flaky failed in try 1: ValueError: no money; it is tried again in 1.0 s"
    )
    assert error.splitlines()[:2] == [
        "run/o-7:flaky failed in try 2: ValueError: no money",
        "Traceback (most recent call last):",
    ]
    assert "in no_money" in error
    assert "src/layby" not in error


# --- the context of a run -------------------------------------------------------------------


@virtual_test
async def test_the_context_of_a_run_at_any_time():
    """Before anything ran, while it runs, when it was cancelled, and when it has completed."""

    @task(dependencies=[reserve])
    async def waits(context, handle):
        context["not"] = "yet"
        await handle.wait_for("go")

    flow = flow_of(reserve, waits)
    async with Runner("memory:") as runner:
        run = await runner.start(flow, {"order": 7}, run_id="r")
        assert await run.context() == {"order": 7}
        await asyncio.sleep(1)
        running = await run.context()
        assert running == {"order": 7, "reserved": 7}
        assert running.result("reserve") == ["seat", 12]
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert await run.context() == running
        other = await runner.start(flow, run_id="other")
        await runner.resolve("go")
        assert await other.result() == await other.context() == {"reserved": 7, "not": "yet"}


@virtual_test
async def test_changes_behind_a_task_that_was_cancelled_early_are_there():
    """It settled before the task before it did, so nobody has seen those changes."""

    @task
    async def slow(context, handle):
        await handle.sleep(10)
        context["slow"] = True

    @task(dependencies=[slow])
    async def never(context): ...

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(slow, never), run_id="r")
        await runner.cancel("r", "never")
        with pytest.raises(RunFailed) as raised:
            await run.result()
        assert raised.value.context == {"slow": True}


def test_a_blocking_run_has_it_too(tmp_path):
    with BlockingRunner(f"sqlite:{tmp_path}/x.db") as runner:
        run = runner.start(ORDER, run_id="r")
        with pytest.raises(RunFailed) as raised:
            run.result()
        assert run.context() == raised.value.context == {"reserved": 7}


# --- results --------------------------------------------------------------------------------


@dataclass
class Point:
    x: int


def test_a_result_that_is_not_a_mapping_is_kept(playing):
    """For later tasks, in the status and with the final context; even if it is false or empty."""

    @task
    async def lists(context):
        context["n"] = 1
        return [1, (2, None)]

    @task
    def zero(context):
        return 0

    @task
    async def merges(context):
        return {"merged": True}

    @task(dependencies=[lists, zero, merges])
    async def reads(context):
        context["read"] = [context.result("lists"), context.result(zero), context.result("merges")]
        return "done"

    @task(dependencies=[reads])
    async def last(context):
        context["from afar"] = context.result("lists")

    async def scene(runner: Runner) -> None:
        flow = flow_of(lists, zero, merges, reads, last)
        result = await runner.execute(flow, run_id="r")
        assert result["read"] == [[1, [2, None]], 0, None]
        assert result["from afar"] == [1, [2, None]]
        assert (result.result("reads"), result.result("last")) == ("done", None)
        status: RunStatus = await (await runner.get("r")).status()
        kept = {each: status.tasks[each].result for each in status.tasks}
        assert kept == {
            "lists": [1, [2, None]],
            "zero": 0,
            "merges": None,
            "reads": "done",
            "last": None,
        }

    playing(scene)


@pytest.mark.parametrize("size", [MAX_RESULTS_IN_ROOT, 1_500_000])
def test_large_results_are_kept_as_well(playing, size):
    """They stand with their task only, and are read from there."""

    @task
    async def large(context):
        return "x" * size

    @task
    async def small(context):
        return 1

    async def scene(runner: Runner) -> None:
        result = await runner.execute(flow_of(large, small))
        assert (len(result.result("large")), result.result("small")) == (size, 1)

    playing(scene)


def made(returned):
    """A flow whose only task returns this, and a list of its tries."""
    tries = []

    @task(retries=3)
    async def returns(context):
        tries.append(1)
        return returned

    return flow_of(returns), tries


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ((each for each in "ab"), "is of type generator, .* use list"),
        (b"raw", "is of type bytes, .* base64"),
        (Point(1), "is of type Point, .* use dataclasses.asdict"),
        (
            [1, {"at": datetime.now(UTC)}],
            r"'returns'\[1\]\[\"at\"\] is of type datetime, .*isoformat",
        ),
        (float("nan"), "is nan, which JSON does not have"),
        ({1, 2}, "is of type set, .* use sorted"),
        (object(), "is of type object, .* use a dict, list"),
        ("x" * MAX_RESULT_BYTES, "2,000,002 bytes, more than 2,000,000: store it elsewhere"),
        ({"k": object()}, "is of type object"),
        ({1: 2}, "context key 1 is not a string"),
    ],
    ids=str.split("generator bytes dataclass deep nan set object huge merged key"),
)
def test_what_is_not_json_fails_the_task_at_once(returned, told):
    """Another try would do its work again, and fail again."""

    @virtual_test
    async def scene():
        flow, tries = made(returned)
        async with Runner("memory:") as runner:
            failed = await failure_of(runner, flow)
        error = failed.errors["returns"]
        assert error.type == ContextError.__name__
        assert (len(tries), error.try_number) == (1, 1)
        with pytest.raises(ContextError, match=told):
            raise ContextError(error.message)

    scene()


def test_results_reach_processes_and_come_from_them():
    """And what is not JSON fails there without another try."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            result = await runner.execute(
                flow_of(process_bodies.returns_list, process_bodies.reads_result)
            )
            assert result.to_dict() == {"read": [1, [2]]}
            assert result.result("returns_list") == [1, [2]]
            failed = await failure_of(runner, flow_of(process_bodies.returns_lambda, name="bad"))
        error = failed.errors["returns_lambda"]
        assert (error.type, error.try_number) == ("ContextError", 1)
        assert "is of type function" in error.message

    asyncio.run(scene())


@virtual_test
async def test_only_results_of_tasks_before_it_may_be_read():
    """Of others it would depend on luck."""

    @task
    async def reads(context):
        told = []
        for each in ("reserve", "reserv", "nobody"):
            try:
                context.result(each)
            except ContextError as error:
                told.append(str(error))
        context["told"] = told

    async with Runner("memory:") as runner:
        told = (await runner.execute(flow_of(reserve, reads)))["told"]
    assert "add it to the dependencies of 'reads'" in told[0]
    assert told[1].endswith("this run has no such task; did you mean 'reserve'?")
    assert told[2].endswith("this run has no such task; it has reserve, reads")
