"""Errors that name the thing and the remedy."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

import layby
from layby import BlockingRunner, ContextError, Runner, UsageError, Workflow, WorkflowError, task
from layby.errors import StoreUnreadable
from layby.testing import virtual_test
from tests.helpers.flows import flow_of


@task
async def nothing(context): ...


FLOW = flow_of(nothing)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql:x", "write for example 'postgresql://USER@HOST/DATABASE'"),
        ("redis://cache", "unknown scheme"),
        ("sqlite:", "no path; write for example 'sqlite:layby.db'"),
        ("", "no path"),
        ("sqlite::memory:", "use 'memory:'"),
        (7, "an address is a string"),
        ("127.0.0.1:8001", "did you mean 'http://127.0.0.1:8001'"),
        ("localhost:8001", "for a file of this name write './localhost:8001'"),
        ("[::1]:8001/", "did you mean 'http://"),
        ("memory", "did you mean 'memory:'"),
    ],
)
def test_bad_addresses(address, told):
    """Refused when the Runner is made, before anything is opened."""
    with pytest.raises(UsageError, match=f"(?i:{re.escape(told)})") as error:
        Runner(address)
    assert repr(address) in str(error.value)


@pytest.mark.parametrize("address", ["./localhost:8001", "sqlite:7", "a/b:7", "C:\\x.db"])
def test_addresses_of_files(address):
    """They only look a little like something else."""
    Runner(address)


@pytest.mark.parametrize("option", ["max_parked", "max_threads", "max_crashes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True])
def test_bad_counts(option, value):
    """Counts are whole numbers from 1."""
    with pytest.raises(UsageError, match=f"{option} must be a whole number of at least 1"):
        Runner("memory:", **{option: value})


def test_bad_durability_and_group():
    """Unknown words are refused with those that are known."""
    with pytest.raises(UsageError, match="'full', 'normal', got 'maybe'"):
        Runner("memory:", durability="maybe")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="group 'a:b' must not contain ':'"):
        Runner("memory:", group="a:b")


@virtual_test
async def test_a_folder_that_is_not_there(tmp_path: Path):
    """The error names the file and what to look at."""
    with pytest.raises(layby.StoreError, match="check that the folder exists"):
        await Runner(f"sqlite:{tmp_path}/missing/layby.db").__aenter__()


@virtual_test
async def test_a_file_that_is_no_database(tmp_path: Path):
    """It is left alone, and a second try says the same."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 100)
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match=r"notes\.txt"):
            await Runner(f"sqlite:{path}").__aenter__()
    assert path.read_text() == "dear diary " * 100


@virtual_test
async def test_a_runner_that_is_not_open():
    """Before and after `async with` every verb says so."""
    runner = Runner("memory:")
    for told in ("use it inside `async with Runner", "is closed: open another one"):
        for call in (
            lambda: runner.start(FLOW),
            lambda: runner.execute(FLOW),
            lambda: runner.get("r"),
            runner.list,
            lambda: runner.cancel("r"),
            lambda: runner.halt("r"),
            lambda: runner.continue_("r"),
            lambda: runner.resolve("p"),
            lambda: runner.reject("p", "no"),
        ):
            with pytest.raises(UsageError, match=told):
                await call()
        with pytest.raises(UsageError, match=told):
            runner.register(FLOW)
        async with runner:
            pass


@virtual_test
async def test_unknown_runs_and_tasks():
    """Each verb names the run or task that is not there, and what to do."""
    async with Runner("memory:") as runner:
        for call in (runner.get, runner.cancel, runner.halt, runner.continue_):
            with pytest.raises(UsageError, match=r"run 'nobody'.*check the id"):
                await call("nobody")
        await runner.execute(FLOW, run_id="r")
        for call in (runner.cancel, runner.halt, runner.continue_):
            with pytest.raises(UsageError, match="no task 'nothin'; did you mean 'nothing'"):
                await call("r", "nothin")
            with pytest.raises(UsageError, match="no task 'other'; it has nothing"):
                await call("r", "other")


@pytest.mark.parametrize("run_id", ["a:b", "a.b", "a/b", "", 7, "x" * 300, "a\nb"])
@virtual_test
async def test_bad_run_ids(run_id):
    """Refused wherever a run id is given."""
    async with Runner("memory:") as runner:
        for call in (runner.get, runner.cancel, runner.halt):
            with pytest.raises(UsageError, match="run id"):
                await call(run_id)
        with pytest.raises(UsageError, match="run id"):
            await runner.start(FLOW, run_id=run_id)
        assert await runner.list() == []


@pytest.mark.parametrize("given", [5, None, b"p", ("p",)])
@virtual_test
async def test_ids_that_are_not_text(given, caplog):
    """Of a promise, a run, a task, a schedule or a workflow: nothing is sent."""
    async with Runner("memory:") as runner:
        await runner.start(FLOW, run_id="r")
        calls = [
            runner.resolve(given, 1),
            runner.reject(given, "no"),
            runner.get(given),
            runner.cancel(given),
            runner.unschedule(given),
        ]
        if given is not None:
            calls += [
                runner.cancel("r", given),
                runner.halt("r", given),
                runner.continue_("r", given),
                runner.list(flow=given),
                runner.schedule(FLOW, "0 0 1 1 *", id=given),
            ]
        for call in calls:
            with pytest.raises(UsageError, match="must be a string, not"):
                await call
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@virtual_test
async def test_bad_run_ids_come_with_one_that_would_do():
    """The remedy is part of the error."""
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="use 'order-7', for instance"):
            await runner.start(FLOW, run_id="order:7")


@virtual_test
async def test_bad_contexts():
    """Not JSON names the key; too large names the largest keys; no dict says so."""
    async with Runner("memory:") as runner:
        with pytest.raises(ContextError, match="when"):
            await runner.start(FLOW, {"when": {"deep": object()}})
        with pytest.raises(ContextError, match=r"'blob' \(1,500,0\d\d bytes\)"):
            await runner.start(FLOW, {"blob": "x" * 1_500_000, "n": 1})
        with pytest.raises(ContextError, match="1 is not a string"):
            await runner.start(FLOW, {1: 2})  # pyright: ignore[reportArgumentType]
        with pytest.raises(ContextError, match="must be a dict"):
            await runner.start(FLOW, [1])  # pyright: ignore[reportArgumentType]
        with pytest.raises(ContextError, match="the value of promise 'p'"):
            await runner.resolve("p", object())
        assert await runner.list() == []


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), "soon", True])
@virtual_test
async def test_bad_deadlines(deadline):
    """A deadline is a positive number of seconds or a timedelta."""
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="deadline of a run"):
            await runner.start(FLOW, deadline=deadline)


@virtual_test
async def test_what_is_no_workflow():
    """A task or function where a Workflow is wanted."""
    async with Runner("memory:") as runner:
        for thing in (nothing, test_bad_addresses, None):
            with pytest.raises(WorkflowError, match="is not a Workflow: write Workflow"):
                await runner.start(thing)  # pyright: ignore[reportArgumentType]


@virtual_test
async def test_one_name_for_two_codes():
    """Which code a stored task belongs to nobody could say; the same code built twice is fine."""

    def build(number: int) -> Workflow:
        @task
        async def work(context):
            context["n"] = number

        return flow_of(work)

    async with Runner("memory:") as runner:
        assert await runner.execute(build(1)) == {"n": 1}
        assert await runner.execute(build(1)) == {"n": 1}
        for other in (build(2), flow_of(nothing)):
            with pytest.raises(UsageError, match="workflow 'flow' is already registered"):
                await runner.start(other)
        assert len(await runner.list()) == 2


@virtual_test
async def test_one_run_id_for_two_workflows():
    """The same id is the same run, so it cannot be one of another workflow."""
    async with Runner("memory:") as runner:
        await runner.execute(FLOW, run_id="r")
        with pytest.raises(UsageError, match="'r' already exists and belongs to workflow 'flow'"):
            await runner.start(flow_of(nothing, name="other"), run_id="r")


@virtual_test
async def test_runs_are_not_made_by_resolving():
    """An id under `run/` that does not exist is refused, not created."""
    async with Runner("memory:") as runner:
        for promise_id in ("run/nobody", "run/nobody:task"):
            with pytest.raises(UsageError, match="created by starting it"):
                await runner.resolve(promise_id)
        assert await runner.list() == []


def test_layby_run_inside_a_loop():
    """It would block the loop: the error says what to write instead."""

    async def main():
        layby.run(FLOW)

    with pytest.raises(UsageError, match=r"await runner\.execute"):
        asyncio.run(main())


@task(process=True)
def computes(context):
    context["n"] = 1


def test_a_module_that_does_not_import_in_the_child(monkeypatch):
    """A process body whose module cannot be found there fails and names it."""
    monkeypatch.setattr(computes.function, "__module__", "no_such_module_anywhere")
    monkeypatch.setattr(computes, "__module__", "no_such_module_anywhere", raising=False)
    with pytest.raises(layby.RunFailed, match="no_such_module_anywhere"):
        layby.run(flow_of(computes), address="memory:")


def test_layby_run_keeps_nothing_behind(tmp_path, monkeypatch):
    """Without an address the file is temporary."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert layby.run(FLOW, {"n": 1}) == {"n": 1}
    assert list(tmp_path.iterdir()) == []


def test_the_switch_interval_is_put_back(tmp_path):
    """The last Runner to close restores it; None leaves it alone; a user's own value stays."""
    before = sys.getswitchinterval()
    with BlockingRunner("memory:"):
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        with BlockingRunner("memory:", switch_interval=0.001):
            assert sys.getswitchinterval() == pytest.approx(0.0005)
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before
    with BlockingRunner("memory:", switch_interval=None):
        assert sys.getswitchinterval() == before
    try:
        with BlockingRunner("memory:"):
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)
