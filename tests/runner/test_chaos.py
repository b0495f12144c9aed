"""A server, two workers, and kill -9 for any of them: everything ends as if nothing had been.

What "no checkpointed step ran twice" can mean: a process that dies between a step and the record
of it leaves nothing that could be known, so the step is done again. Once it *is* recorded, no
later try does it: they all read the record. Effects carry the number of their try, and so do the
results of steps; so this can be seen afterwards.
"""

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from deploy.topology import process

from layby import Runner, Workflow
from layby.core.model import NEVER
from layby.core.state import State
from layby.worker.replay import record_of
from layby.workflow import plan
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.places import address_of, state_of
from tests.runner import chaos_flows

CLIENT = Path(__file__).with_name("chaos_client.py")
SLOTS = 8
LEASE_S = 2


class Effect(NamedTuple):
    what: str
    run: str
    number: int
    """The try that left it."""
    at: int


class HasEffects(Protocol):
    effects_file: Path


class Cluster:
    """One server on one port and file, and workers by name."""

    flows = chaos_flows.__file__
    """What its workers run."""

    def __init__(self, folder: Path, lease: str, environment: dict[str, str]) -> None:
        self._environment = environment
        self.file = folder / "layby.db"
        self.effects_file = folder / "effects"
        self.effects_file.touch()
        self._lease = lease
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._open = ExitStack()
        self.processes: dict[str, Process] = {}

    def close(self) -> None:
        self._open.close()

    def serve(self) -> None:
        flags = ("--port", str(self._port), "--tasks-max-crashes", "1000")
        self._begin(
            "server", layby("serve", "--db", address_of(self.file), *flags, **self._environment)
        )
        self.processes["server"].hear("layby serves")

    def work(self, name: str) -> None:
        flags = ("--url", self.url, "--lease", self._lease, "--slots", str(SLOTS))
        told = {"EFFECTS": str(self.effects_file), **self._environment}
        self._begin(name, layby("worker", self.flows, *flags, **told))

    def client(self, count: int, seed: int, pace_s: float = 0.005) -> Process:
        command = [str(CLIENT), self.url, str(count), str(seed), str(pace_s)]
        return self._begin("client", Process(command, EFFECTS=str(self.effects_file)))

    def kill(self, name: str) -> None:
        """And start it again at once."""
        self.processes[name].kill()
        self.processes[name].start()

    def effects(self) -> list[Effect]:
        split = (line.split() for line in self.effects_file.read_text().splitlines())
        return [Effect(what, run, int(number), int(at)) for what, run, number, at in split]

    def _begin(self, name: str, process: Process) -> Process:
        self.processes[name] = self._open.enter_context(process)
        return process


@contextmanager
def cluster(
    folder: Path, *workers: str, lease: str = f"{LEASE_S}s", **environment: str
) -> Iterator[Cluster]:
    """Workers and server, not the client, have what is added to the environment."""
    made = Cluster(folder, lease, environment)
    try:
        made.serve()
        for name in workers:
            made.work(name)
            made.processes[name].hear("layby works for")
        yield made
    finally:
        made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- chaos -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "runs", "kills"),
    [
        (1, 100, 5),
        *[pytest.param(seed, 1_000, 30, marks=pytest.mark.slow) for seed in range(2, 8)],
    ],
)
@pytest.mark.timeout(300)
def test_killed_again_and_again_everything_ends_well(
    seed: int, runs: int, kills: int, tmp_path: Path
):
    """All runs finish, every result is right, and what was recorded was not done again.

    Now and then a worker stands still for longer than its lease, and then goes on as if it had
    not lost everything.
    """
    chance = random.Random(seed)
    with cluster(tmp_path, "one", "two") as found:
        client = found.client(runs, seed)
        client.hear("started")
        for number in range(kills):
            wait_for_work(found, chance.randrange(5, 3 * runs // kills), client)
            if number % 9 == 4:
                found.processes[chance.choice(("one", "two"))].pause(LEASE_S + 0.5)
            found.kill(chance.choice(("server", "one", "two")))
        client.hear("done")
        assert [line for line in client.said if line.startswith("wrong")] == []
        effects, state = found.effects(), state_of(found.file)
    assert doctor(tmp_path / "layby.db") == 0
    assert_all_ended_well(state, runs)
    assert_no_try_ran_twice(effects)
    assert_recorded_steps_were_not_done_again(effects, state)
    repeated = sum(each.number > 1 for each in effects)
    assert repeated <= kills * 2 * SLOTS * 3


def wait_for_work(found: HasEffects, more: int, client: process.Process) -> None:
    """Until so many effects have come, or for a moment: sooner or later nothing is left to do."""
    size, until_ = found.effects_file.stat().st_size, time.monotonic() + 1

    def is_enough() -> bool:
        is_over = time.monotonic() > until_ or not client.is_alive  # a fast machine is done by then
        return is_over or found.effects_file.stat().st_size > size + more * 30

    until(is_enough)


def doctor(file: Path) -> int:
    command = [sys.executable, "-m", "layby.cli", "doctor", "--db", address_of(file)]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


def assert_all_ended_well(state: State, runs: int) -> None:
    roots = [each for key, each in state.promises.items() if is_root(key)]
    assert len(roots) == runs
    assert Counter(promise.state for promise in roots) == {"resolved": runs}
    nodes = [task for task in state.tasks.values() if task.id.startswith("run/")]
    assert {task.state for task in nodes} == {"fulfilled"}
    assert {task.failures for task in nodes} == {0}


def is_root(promise_id: str) -> bool:
    return promise_id.startswith("run/") and ":" not in promise_id


def assert_no_try_ran_twice(effects: list[Effect]) -> None:
    """A version is claimed once, so each of its effects happens at most once."""
    twice = Counter((each.what, each.run, each.number) for each in effects)
    assert [key for key, times in twice.items() if times > 1] == []


def assert_recorded_steps_were_not_done_again(effects: list[Effect], state: State) -> None:
    """No try after the one whose result was recorded has done the step."""
    for what in ("pay", "ship"):
        recorded = recorded_tries(state, what)
        assert recorded
        again = [each for each in effects if each.what == what and each.number > recorded[each.run]]
        assert again == []
        done = {each.run for each in effects if each.what == what}
        assert done == recorded.keys()


def recorded_tries(state: State, key: str) -> dict[str, int]:
    """Which try the recorded result of a step is of."""
    found: dict[str, int] = {}
    for promise_id, promise in state.promises.items():
        if promise_id.endswith(f":pays.c.checkpoint.{key}"):
            run = promise_id.removeprefix("run/").partition(":")[0]
            found[run] = int(str(record_of(promise).value).rpartition("-")[2])
    return found


# --- asked to stop ---------------------------------------------------------------------------


def test_a_worker_asked_to_stop_hands_over_at_once(tmp_path: Path):
    """What it runs and what is parked in it: the other worker has it long before a lease ends."""
    with cluster(tmp_path, "one", lease="60s") as found:
        start_runs(found, chaos_flows.waiter, 60)
        until(lambda: len(found.effects()) == 60)
        start_runs(found, chaos_flows.holder, SLOTS)
        until(
            lambda: len(found.effects()) == 60 + SLOTS
        )  # they have every slot: the rest is parked
        found.work("two")
        found.processes["two"].hear("layby works for")
        asked_at = time.time_ns() // 1_000_000
        took = found.processes["one"].stop()
        until(lambda: len(found.effects()) >= 2 * (60 + SLOTS))
        handed_over = [each.at - asked_at for each in found.effects() if each.number == 2]
        assert len(handed_over) == 60 + SLOTS
        assert max(handed_over) < 20_000
        assert took < 20
        tasks = state_of(found.file).tasks.values()
        assert {task.crashes for task in tasks} == {0}


def test_a_server_asked_to_stop_is_back_before_anybody_is_hurt(tmp_path: Path):
    """Workers and clients go on with the one that comes after it; nothing is lost or repeated."""
    with cluster(tmp_path, "one", "two", lease="15s") as found:
        client = found.client(120, seed=0)
        client.hear("started")
        server, took = found.processes["server"], list[float]()
        for more in (60, 60, 60):
            wait_for_work(found, more, client)
            took.append(server.stop())
            before = len(server.said)
            server.start()
            server.hear("layby serves", before)
        assert max(took) < 8  # of 10 that it may take
        client.hear("done")
        effects, state = found.effects(), state_of(found.file)
        assert found.processes["one"].is_alive
        assert found.processes["two"].is_alive
    assert [line for line in client.said if line.startswith("wrong")] == []
    assert_all_ended_well(state, 120)
    assert set(Counter((each.what, each.run) for each in effects).values()) == {1}


def start_runs(found: Cluster, flow: Workflow, count: int) -> None:
    """By somebody who takes none of their tasks."""

    async def start() -> None:
        async with Runner(found.url) as runner:
            for number in range(count):
                run = f"{flow.name}-{number}"
                command = plan.plan(flow, run, {"run": run}, "default", NEVER)
                assert (await runner.send(command)).is_ok

    asyncio.run(start())
