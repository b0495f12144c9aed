"""Workers asked to stop while bodies run: a task is handed back when its body has ended."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from layby import BlockingRunner, Runner, TaskExecution, task
from layby.client.http import HttpClient
from layby.core.commands import GetPromise, GetTask
from layby.core.model import NEVER, Task
from layby.core.replies import PromiseData, TaskData
from layby.workflow import plan
from layby.workflow.workflow import Workflow
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.places import address_of
from tests.helpers.server_process import ServerProcess

HERE = Path(__file__)
FLOWS = HERE.with_name("stopping_flows.py")
STARTER = HERE.with_name("starts_and_closes.py")
NAMES = {
    "charging": "charges",
    "computing": "computes",
    "deafness": "deaf",
    "stepping": "steps",
    "waiting": "waits",
}

pytestmark = pytest.mark.timeout(60)


class Effect(NamedTuple):
    what: str
    number: int
    pid: int
    at: int


class Site:
    """A server, and workers that write what they do to one file."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{server.port}"
        (folder / "effects").touch()

    def worker(self, *flags: str) -> Process:
        place = ("--url", self.url, "--slots", "1", "--lease", "2s")
        return layby("worker", FLOWS, *place, *flags, FOLDER=str(self.folder))

    def effects(self) -> list[Effect]:
        lines = (line.split() for line in (self.folder / "effects").read_text().splitlines())
        return [Effect(what, int(number), int(pid), int(at)) for what, number, pid, at in lines]

    def seen(self) -> list[str]:
        return [f"{each.what} {each.number}" for each in self.effects()]

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def begin(self, flow: str) -> None:
        """By somebody who takes none of its tasks."""
        asyncio.run(self._begin(flow))

    async def _begin(self, flow: str) -> None:
        @task(id=NAMES[flow])
        async def body(context) -> None: ...

        client = HttpClient(self.url)
        command = plan.plan(Workflow(flow, tasks=[body]), "r", {}, "default", NEVER)
        assert (await client.send(command)).is_ok
        await client.close()

    def task(self, flow: str) -> Task:
        data = asyncio.run(self._ask(GetTask(id=plan.node_id("r", NAMES[flow]))))
        assert isinstance(data, TaskData)
        return data.task

    def state(self) -> str:
        data = asyncio.run(self._ask(GetPromise(id=plan.root_id("r"))))
        assert isinstance(data, PromiseData)
        return data.promise.state

    async def _ask(self, request):
        client = HttpClient(self.url)
        reply = await client.send(request)
        await client.close()
        return reply.data

    def look(self, flow: str) -> TaskExecution:
        async def look() -> TaskExecution:
            async with Runner(self.url) as runner:
                status = await (await runner.get("r")).status()
                return status.tasks[NAMES[flow]]

        return asyncio.run(look())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ServerProcess(tmp_path) as server:
        yield Site(tmp_path, server)


@contextmanager
def busy_worker(site: Site, flow: str, *flags: str) -> Iterator[Process]:
    """One that runs a body of this flow."""
    with site.worker(*flags) as process:
        process.hear("layby works for")
        site.begin(flow)
        until(site.seen, process)
        yield process


# --- plain `def` -----------------------------------------------------------------------------


def test_a_plain_body_ends_and_counts_before_its_worker_goes(site: Site):
    """SIGTERM in its middle: nobody else begins it, and what it returns is the result."""
    with busy_worker(site, "charging") as one, site.worker() as two:
        two.hear("layby works for")
        one.send(signal.SIGTERM)
        told = one.hear("layby waits for 1 task to end")
        assert "run/r:charges" in told
        assert "25 s left" in told or "24 s left" in told
        pause(3)  # longer than the lease: it is renewed while the body runs
        assert site.seen() == ["begins 1"]
        site.let_go()
        assert one.end() == 0, one.tail
        until(lambda: site.state() == "resolved", two)
        assert site.seen() == ["begins 1", "ends 1"]
        assert site.look("charging").crashes == 0


def test_who_only_starts_a_run_and_closes_hands_over_no_running_body(site: Site):
    command = [str(STARTER), site.url, "charging", "25"]
    environment = {"FOLDER": str(site.folder), "PYTHONPATH": pythonpath()}
    with Process(command, **environment) as one, site.worker() as two:
        until(site.seen, one)
        two.hear("layby works for")
        pause(3)
        assert site.seen() == ["begins 1"]
        site.let_go()
        one.hear("@closed")
        assert one.end() == 0, one.tail
        until(lambda: site.state() == "resolved", two)
        assert site.seen() == ["begins 1", "ends 1"]


def test_a_plain_body_that_outlasts_the_grace_is_handed_back_and_that_is_told(site: Site):
    with busy_worker(site, "charging", "--grace", "1s") as one:
        one.send(signal.SIGTERM)
        one.hear("run/r:charges is handed back though its body goes on")
        assert one.end() == 0, one.tail
        site.let_go()
        with site.worker() as two:
            until(lambda: site.state() == "resolved", two)
        assert site.seen() == ["begins 1", "begins 2", "ends 2"]
        tries = site.look("charging").tries
        assert [each.outcome for each in tries] == ["Released", "Completed"]


# --- processes, deaf coroutines, checkpoints -------------------------------------------------


def test_a_process_is_killed_when_the_grace_is_over(site: Site):
    with busy_worker(site, "computing", "--grace", "1s") as one:
        child = site.effects()[0].pid
        asked_at = time.monotonic()
        one.send(signal.SIGTERM)
        assert one.end() == 0, one.tail
        assert 1 <= time.monotonic() - asked_at < 10
        assert not Path(f"/proc/{child}").exists()
        assert not [line for line in one.said if "goes on" in line]
        assert site.task("computing").state == "pending"
        assert site.task("computing").crashes == 0


def test_a_process_that_ends_in_time_has_its_result(site: Site):
    with busy_worker(site, "computing") as one:
        one.send(signal.SIGTERM)
        one.hear("layby waits for 1 task to end")
        site.let_go()
        assert one.end() == 0, one.tail
        assert site.task("computing").state == "fulfilled"
        assert [each.what for each in site.effects()] == ["begins", "ends"]


def test_a_coroutine_that_swallows_its_cancel_is_waited_for_as_well(site: Site):
    with busy_worker(site, "deafness") as one, site.worker() as two:
        two.hear("layby works for")
        one.send(signal.SIGTERM)
        one.hear("layby waits for 1 task to end")
        pause(2.5)
        assert {each.pid for each in site.effects()} == {one.pid}
        site.let_go()
        assert one.end() == 0, one.tail
        until(lambda: site.state() == "resolved", two)
        ended = [each for each in site.effects() if each.what == "ends"]
        begun = [each for each in site.effects() if each.what == "begins"]
        assert [each.pid for each in begun] == [one.pid, two.pid]
        assert begun[1].at >= ended[0].at


def test_a_checkpoint_ends_first_and_is_stored(site: Site):
    """Then its body hears of the end; whoever goes on reads the record."""
    with busy_worker(site, "stepping") as one:
        until(lambda: "step 0" in site.seen(), one)
        one.send(signal.SIGTERM)
        one.hear("layby waits for 1 task to end")
        site.let_go()
        assert one.end() == 0, one.tail
        assert site.seen() == ["begins 1", "step 0", "stepped 0"]
        with site.worker() as two:
            until(lambda: site.state() == "resolved", two)
        assert site.seen()[3:] == ["begins 2", "goes-on 2"]


def test_a_parked_body_keeps_nobody_waiting(site: Site):
    with busy_worker(site, "waiting") as one:
        until(lambda: site.look("waiting").sub_status == "Deferred", one)
        assert one.stop() < 5
        assert not [line for line in one.said if "layby waits" in line]
        found = site.task("waiting")
        assert (found.state, found.crashes) == ("pending", 0)
        assert [each.outcome for each in site.look("waiting").tries] == ["Released"]


# --- signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_a_second_later_ends_the_process(number: signal.Signals, site: Site):
    with busy_worker(site, "charging") as one:
        one.send(signal.SIGTERM)
        one.hear("layby is stopping")
        one.send(signal.SIGTERM)  # a terminal and a supervisor: that is one
        one.hear("layby waits for 1 task to end")
        pause(1)
        assert one.is_alive
        began = time.monotonic()
        one.send(number)
        assert one.end() == 128 + number
        assert time.monotonic() - began < 15  # of 25 that its body may take


def test_an_interrupted_run_waits_for_its_plain_body_as_well(tmp_path: Path):
    """`layby run`: the task it was in is finished when it says how to go on."""
    (tmp_path / "effects").touch()
    place = ("--db", address_of(tmp_path / "a.db"), "--id", "r")
    with layby("run", f"{FLOWS}:charging", *place, FOLDER=str(tmp_path)) as one:
        until((tmp_path / "effects").read_text, one)
        one.send(signal.SIGINT)
        one.hear("layby waits for 1 task to end")
        (tmp_path / "go").touch()
        assert one.end() == 130, one.tail
        one.hear("the run 'r' has completed; see how it ended with")
    with BlockingRunner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        assert runner.get("r").status().tasks["charges"].status == "Completed"


# --- in this process -------------------------------------------------------------------------


def test_a_blocking_runner_waits_for_a_plain_body(tmp_path: Path):
    """And its result counts."""
    log = []

    @task
    def works(context):
        log.append("begins")
        pause(0.5)
        log.append("ends")

    flow, address = Workflow("flow", tasks=[works]), f"sqlite:{tmp_path / 'a.db'}"
    with BlockingRunner(address) as runner:
        run = runner.start(flow, run_id="r")
        until(lambda: log)
        del run
    assert log == ["begins", "ends"]
    with BlockingRunner(address) as runner:
        assert runner.get("r").status().tasks["works"].status == "Completed"
    assert log == ["begins", "ends"]


def test_what_is_handed_back_while_it_runs_is_counted(tmp_path: Path):
    go_on = threading.Event()

    @task
    def works(context):
        go_on.wait(30)

    async def main() -> None:
        runner = Runner(f"sqlite:{tmp_path / 'a.db'}", grace=0.1)
        async with runner:
            await runner.start(Workflow("flow", tasks=[works]), run_id="r")
            while not runner.worker.running:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        go_on.set()
        assert runner.worker.overlaps == 1
        told = [each for each in runner.worker.health.snapshot() if each.kind == "overlap"]
        assert ["run/r:works" in each.reason for each in told] == [True]

    asyncio.run(main())


def test_without_such_a_body_closing_is_quick(tmp_path: Path):
    @task
    async def works(context):
        await asyncio.sleep(3600)

    async def main() -> None:
        async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
            await runner.start(Workflow("flow", tasks=[works]), run_id="r")
            while not runner.worker.running:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            began = time.monotonic()
        assert time.monotonic() - began < 15  # of 25 that a plain body may take

    asyncio.run(main())


def pause(seconds: float) -> None:
    """Time in which something must not happen."""
    threading.Event().wait(seconds)


def pythonpath() -> str:
    """For a child that is a script: it finds `tests` as we do."""
    root = str(HERE.parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
