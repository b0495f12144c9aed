"""The façade for code without an event loop, in real time on real files."""

import threading
from pathlib import Path

import pytest

import layby
from layby import BlockingRunner, RunCancelled, RunFailed, UsageError, task
from layby.errors import StoreOwned
from tests.helpers.flows import flow_of


@task
async def double(context):
    context["n"] *= 2


@task
async def waits(context, handle):
    context["answer"] = await handle.wait_for(context["id"])


def test_layby_run_is_one_line():
    """A workflow, a context, a result."""
    assert layby.run(flow_of(double), {"n": 4}) == {"n": 8}


def test_layby_run_on_a_file(tmp_path: Path):
    """With an address the run stays in the file."""
    address = f"sqlite:{tmp_path / 'layby.db'}"
    assert layby.run(flow_of(double), {"n": 4}, address=address) == {"n": 8}
    with BlockingRunner(address) as runner:
        (run,) = runner.list()
        assert run.status().state == "Completed"


def test_every_verb(tmp_path: Path):
    """The same verbs as the Runner's, each blocking until it is done."""
    flow = flow_of(waits)
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
        runner.register(flow)
        assert runner.execute(flow_of(double, name="double"), {"n": 1}) == {"n": 2}
        run = runner.start(flow, {"id": "p"}, run_id="r")
        assert repr(run) == "<run 'r'>"
        run.halt()
        assert runner.get("r").status().state == "Halted"
        run.continue_()
        runner.halt("r")
        runner.continue_("r")
        runner.resolve("p", 5)
        assert run.result(timeout=60) == {"id": "p", "answer": 5}
        bad = runner.start(flow, {"id": "q"})
        runner.reject("q", "no")
        with pytest.raises(RunFailed, match="no"):
            bad.result(timeout=60)
        cancelled = runner.start(flow, {"id": "z"})
        cancelled.cancel(by="me")
        runner.cancel(cancelled.id)
        with pytest.raises(RunCancelled, match="by me"):
            cancelled.result(timeout=60)
        assert len(runner.list(state="Failed")) == 1


def test_it_is_open_only_inside_with(tmp_path: Path):
    """Before and after, and a second time, it says so."""
    runner = BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}")
    with pytest.raises(UsageError, match="inside `with BlockingRunner"):
        runner.list()
    with runner:
        assert runner.list() == []
    with pytest.raises(UsageError, match="inside `with BlockingRunner"):
        runner.list()
    with pytest.raises(UsageError, match="entered only once"), runner:
        pass


@pytest.mark.files_only("who owns a file")
def test_a_file_in_use(tmp_path: Path):
    """The second one fails to open, and leaves no thread behind."""
    address = f"sqlite:{tmp_path / 'layby.db'}"
    with BlockingRunner(address):
        before = threading.active_count()
        with pytest.raises(StoreOwned), BlockingRunner(address):
            pass
        assert threading.active_count() == before


def test_use_from_several_threads(tmp_path: Path):
    """It is one loop for all of them."""
    flow = flow_of(double)
    found = []
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:

        def use(number: int) -> None:
            found.append(runner.execute(flow, {"n": number})["n"])

        threads = [threading.Thread(target=use, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [number * 2 for number in range(10)]


def test_a_task_must_not_block_the_loop_it_runs_on(tmp_path: Path):
    """An async body that calls the BlockingRunner would wait for itself: it is told so."""
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:

        @task
        async def body(context):
            runner.list()

        with pytest.raises(RunFailed, match="cannot be used by code on its own loop"):
            runner.execute(flow_of(body))


def test_a_plain_body_may_use_it(tmp_path: Path):
    """A `def` body is on a thread of its own."""
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:

        @task
        def body(context):
            context["runs"] = len(runner.list())

        assert runner.execute(flow_of(body)) == {"runs": 1}
