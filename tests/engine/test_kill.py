"""kill -9 at random moments: what was acknowledged is there, what was held is taken again.

Every round is a real process under load, killed after a random number of acknowledgements; the
parent never waits for time. What the child said was acknowledged is then looked for in the file.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec import Struct, field

from layby.cli.doctor import examine
from layby.clock import SystemClock
from layby.core.birth import encoded
from layby.core.commands import SettlePromise, Take
from layby.core.model import Task
from layby.core.replies import TakeData
from layby.core.settings import Settings
from layby.core.state import State
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.sqlite import SqliteReader, SqliteStore
from tests.engine.kill_child import value_of

CHILD = Path(__file__).with_name("kill_child.py")


class Acknowledged(Struct):
    """What the child was told is done."""

    created: dict[str, bool] = field(default_factory=dict)
    """Promise ids, and whether a task came with them."""
    settled: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    suspended: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, said: dict) -> None:
        promise_id = said["id"]
        match said["what"]:
            case "create":
                self.created[promise_id] = said["task"]
            case "settle":
                self.settled[promise_id] = said["state"]
            case "take":
                version = max(said["version"], self.versions.get(promise_id, 0))
                self.versions[promise_id] = version
            case "suspend":
                self.suspended[promise_id] = said["version"], said["awaited"]


def killed(file: Path, seed: int, acknowledgements: int) -> Acknowledged:
    """Run the child, kill it after so many acknowledgements, return all it was given."""
    command = [sys.executable, str(CHILD), str(file), str(seed)]
    noted = Acknowledged()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["what"] == "open"
        for number, line in enumerate(_lines(child.stdout), start=1):
            noted.note(json.loads(line))
            if number == acknowledgements:
                child.kill()  # what is still in the pipe was acknowledged, too: read on
        assert child.wait() == -9
    return noted


def _lines(stream) -> Iterator[bytes]:
    yield from iter(stream.readline, b"")


def test_nothing_acknowledged_is_lost(tmp_path):
    """Six rounds with six seeds, in every run of the tests."""
    rounds(tmp_path, range(6))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_in_a_hundred_rounds(tmp_path):
    """The same, for long."""
    rounds(tmp_path, range(100, 200))


@pytest.mark.parametrize("acknowledgements", [1, 2, 3])
def test_a_child_killed_in_its_first_moments(tmp_path, acknowledgements):
    """Hardly open and already dead: the file is sound."""
    noted = killed(tmp_path / "a.db", 1, acknowledgements)
    verify(tmp_path / "a.db", noted)


def rounds(folder: Path, seeds: range) -> None:
    """Each with its own file and its own moment; together they met everything worth meeting."""
    met: Counter[str] = Counter()
    for seed in seeds:
        file = folder / f"{seed}.db"
        met += verify(file, killed(file, seed, Random(seed).randint(20, 1_000)))
        for left in folder.glob(f"{seed}.db*"):
            left.unlink()
    assert {"embedded", "remote", "suspended", "pending", "fulfilled"} <= met.keys()


def verify(file: Path, noted: Acknowledged) -> Counter[str]:
    """Returns what the killed process left behind: states of tasks, and who held them."""
    assert doctor(file) == 0
    before = state_of(file)
    nothing_is_lost(before, noted)
    engine = Engine(SqliteStore(file, Settings(), next_after), SystemClock())
    engine.start_inline()
    engine.pump()
    after = state_of(file)
    the_dead_holder_is_void(before, after)
    every_pending_task_is_taken_again(engine, after)
    suspended_tasks_resume(engine, state_of(file))
    engine.stop()
    assert examine(file, limit=0).violations == []
    return Counter(task.pid or task.state for task in before.tasks.values())


def nothing_is_lost(state: State, noted: Acknowledged) -> None:
    for promise_id, has_task in noted.created.items():
        promise = state.promises[promise_id]
        assert promise.param == encoded(value_of(promise_id))
        assert (promise_id in state.tasks) == has_task
    for promise_id, settled in noted.settled.items():
        promise = state.promises[promise_id]
        assert (promise.state, promise.value) == (settled, encoded(value_of(promise_id)))
    for task_id, version in noted.versions.items():
        assert state.tasks[task_id].version >= version
    for task_id, (version, awaited) in noted.suspended.items():
        task = state.tasks[task_id]
        if task.state == "suspended" and task.version == version:
            assert (awaited, task_id) in state.waits
        else:
            assert not state.promises[awaited].is_pending or task.version > version


def the_dead_holder_is_void(before: State, after: State) -> None:
    """Embedded: lost, and its tasks are free at their version. Remote: nothing has changed."""
    for holder in after.holders.values():
        assert holder.standing == ("lost" if holder.embedded else "alive")
        assert holder.held == (0 if holder.embedded else before.holders[_key(holder)].held)
    for task in held(before, "embedded"):
        freed = after.tasks[task.id]
        assert (freed.state, freed.version) == ("pending", task.version)
        assert freed.crashes == task.crashes + 1
    assert held(after, "embedded") == []
    assert held(after, "remote") == held(before, "remote")


def every_pending_task_is_taken_again(engine: Engine, state: State) -> None:
    """By anybody who comes, each with the next version."""
    pending = {task.id: task.version for task in state.tasks.values() if task.state == "pending"}
    assert taken(engine) == {task_id: version + 1 for task_id, version in pending.items()}


def suspended_tasks_resume(engine: Engine, state: State) -> None:
    """Their waits have survived: what they wait for is settled, and they are handed out."""
    waiting = {task.id: task.version for task in state.tasks.values() if task.state == "suspended"}
    for awaited in {wait.awaited for wait in state.waits.values() if not wait.is_read}:
        assert engine.call(SettlePromise(id=awaited, state="resolved")).is_ok
    assert taken(engine) == {task_id: version + 1 for task_id, version in waiting.items()}


def taken(engine: Engine) -> dict[str, int]:
    take = Take(pid="next", incarnation="1", group="g", names=("n",), free=100_000, embedded=True)
    reply = engine.call(take)
    assert isinstance(reply.data, TakeData)
    return {claim.task.id: claim.task.version for claim in reply.data.claims}


def held(state: State, pid: str) -> list[Task]:
    found = (task for task in state.tasks.values() if task.state == "acquired" and task.pid == pid)
    return sorted(found, key=lambda task: task.id)


def state_of(file: Path) -> State:
    reader = SqliteReader(file, Settings(), next_after)
    with reader.transaction():
        state = reader.dump()
    reader.close()
    return state


def doctor(file: Path) -> int:
    command = [sys.executable, "-m", "layby.cli", "doctor", str(file)]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


def _key(holder) -> tuple[str, str]:
    return holder.pid, holder.incarnation
