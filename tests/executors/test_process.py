import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from layby.executors import HealthEventSink, ProcessTaskExecutor, ProcessTaskExecutorConfig
from layby.executors.process import _ProcessTaskRunner
from layby.executors.task_records import Discard, PlainTask
from tests.helpers import process_work
from tests.helpers.waiting import PATIENCE, assert_identities, eventually


@pytest.fixture
def make():
    made = []

    def build(**config):
        discards = []
        executor = ProcessTaskExecutor(
            ProcessTaskExecutorConfig(**config), on_discard=lambda *args: discards.append(args)
        )
        made.append(executor)
        return executor, discards

    yield build
    for executor in made:
        executor.shutdown(timeout=PATIENCE)


def is_running(pid):
    """A zombie that nobody has buried yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is read
        return False


def started(executor, tmp_path, name="started"):
    """Submit an endless task and return its id and the pid of its process."""
    path = tmp_path / name
    submission = executor.submit(partial(process_work.loop_for_ever, path))
    assert submission.accepted
    eventually(lambda: path.exists() and path.read_text())
    return submission.task_id, int(path.read_text())


def test_work_runs_in_another_process_that_is_used_again(make):
    """Starting an interpreter for each task would be too dear."""
    executor, _ = make(queue_capacity=2)
    for _ in range(3):
        executor.submit(process_work.pid)
    assert executor.wait_for_idle(PATIENCE)
    pids = {done.payload for done in executor.run_ready()}
    assert len(pids) == 1
    assert pids != {os.getpid()}


def test_failures_of_every_kind_become_records(make):
    """Raising, leaving, dying, what cannot be sent and what cannot be sent back."""
    executor, _ = make(queue_capacity=8)
    executor.submit(partial(process_work.fail, "boom"))
    executor.submit(partial(process_work.leave, 3))
    executor.submit(partial(process_work.die, 7))
    executor.submit(lambda: "a closure")
    executor.submit(process_work.unpicklable)
    executor.submit(process_work.pid, metadata={"order": 7})
    assert executor.wait_for_idle(PATIENCE)
    records = executor.run_ready()
    assert [done.ok for done in records] == [False, False, False, False, False, True]
    boom, left, died, closure, unpicklable, alive = records
    assert boom.error == "boom"
    assert left.error == "3"
    assert died.error == "worker process ended with exit code 7"
    assert "cannot be pickled" in closure.error
    assert "submit a module-level function" in closure.error
    assert "return plain data" in unpicklable.error
    assert alive.metadata == {"order": 7}
    assert executor.metrics().failed_count == 5


def test_admission_is_that_of_all_executors(make, tmp_path):
    """Capacity, reasons, the four numbers, drop_oldest."""
    executor, discards = make(queue_capacity=1, overflow="drop_oldest")
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    task_id, _ = started(executor, tmp_path)
    assert executor.submit(process_work.pid).accepted
    assert executor.submit(process_work.pid).accepted
    assert discards == [(2, "task dropped to make room")]
    assert executor.submit(None).reason == "task work must not be empty"
    assert sink.snapshot()[0].attributes["active_count"] == "1"
    assert executor.cancel(task_id)
    assert executor.wait_for_idle(PATIENCE)
    assert [done.task_id for done in executor.run_ready()] == [3]


def test_callbacks_run_in_this_process_before_the_record(make):
    """On a worker's thread, while the task still counts as active."""
    executor, _ = make()
    seen = []
    executor.submit(
        process_work.pid,
        lambda done: seen.append(
            (done, os.getpid(), threading.current_thread(), executor.metrics().active_count)
        ),
    )
    assert executor.wait_for_idle(PATIENCE)
    ((done, pid, thread, active),) = seen
    assert executor.run_ready() == [done]
    assert (pid, active) == (os.getpid(), 1)
    assert thread is not threading.current_thread()


def test_a_running_task_can_be_cancelled_and_the_others_never_notice(make, tmp_path):
    """Its process is killed; its neighbour's work and the next task are untouched."""
    executor, discards = make(max_workers=2, max_inflight=2, queue_capacity=4)
    doomed, doomed_pid = started(executor, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    neighbour = executor.submit(partial(process_work.wait_for_end_of, pipe)).task_id
    successor = executor.submit(process_work.pid).task_id
    called = []
    assert executor.cancel(doomed)
    eventually(lambda: not is_running(doomed_pid))
    with pipe.open("w") as writer:
        writer.write("unharmed")
    assert executor.wait_for_idle(PATIENCE)
    records = {done.task_id: done for done in executor.run_ready()}
    assert records.keys() == {neighbour, successor}
    assert records[neighbour].payload == "unharmed"
    assert records[successor].payload != doomed_pid
    assert discards == [(doomed, "task cancelled")]
    assert called == []
    assert not executor.cancel(doomed)
    assert executor.metrics().cancelled_count == 1
    assert_identities(executor.metrics())


class AnsweringWhileKilled:
    """A child whose answer is on its way when the kill comes."""

    def __init__(self, runner):
        self.runner = runner
        self.calls = []

    def run(self, _work, _timeout):
        assert self.runner.kill(1, "task cancelled")
        return True, "too late", ""

    def kill(self):
        self.calls.append("kill")

    def close(self):
        self.calls.append("close")


def test_a_kill_that_comes_with_the_answer_still_counts_and_the_child_is_not_used_again():
    """cancel said True, so there is no completion; and the child is dying."""
    runner = _ProcessTaskRunner("spawn", 0.0)
    child = AnsweringWhileKilled(runner)
    runner._child = child  # pyright: ignore[reportAttributeAccessIssue]
    task = PlainTask(process_work.pid, None, None)
    task.task_id = 1
    runner.task = task
    assert runner.run(task) == Discard(1, "task cancelled")
    assert child.calls == ["kill", "kill", "close"]
    assert runner._child is None
    assert not runner.kill(1, "task cancelled")


def test_a_task_that_takes_too_long_is_killed_and_fails(make, tmp_path):
    """It gets a record and a callback, since it ran; the next task has another process."""
    executor, discards = make(task_timeout=0.2)
    executor.submit(partial(process_work.loop_for_ever, tmp_path / "started"))
    assert executor.wait_for_idle(PATIENCE)
    (late,) = executor.run_ready()
    assert (late.ok, late.error) == (False, "task killed after 0.2 s")
    assert multiprocessing.active_children() == []
    for runner in executor._runners:
        runner._task_timeout = None  # a slow machine may need longer even for nothing
    executor.submit(process_work.pid)
    assert executor.wait_for_idle(PATIENCE)
    (fine,) = executor.run_ready()
    assert fine.ok
    assert discards == []


def test_a_process_killed_from_outside_is_replaced(make, tmp_path):
    """The out-of-memory killer does this."""
    executor, _ = make(queue_capacity=1)
    _, pid = started(executor, tmp_path)
    os.kill(pid, signal.SIGKILL)
    executor.submit(process_work.pid)
    assert executor.wait_for_idle(PATIENCE)
    killed, fine = executor.run_ready()
    assert killed.error == (
        "worker process was ended by SIGKILL, as the system does when memory runs out"
    )
    assert fine.ok


def test_shutdown_out_of_time_kills_what_runs(make, tmp_path):
    """No orphan is left, and the discards say what happened."""
    executor, discards = make(queue_capacity=1)
    _, pid = started(executor, tmp_path)
    executor.submit(process_work.pid)
    assert not executor.shutdown(timeout=0.01)
    assert not is_running(pid)
    assert sorted(discards) == [
        (1, "task cancelled by shutdown"),
        (2, "task cancelled by shutdown"),
    ]
    assert executor.metrics().active_count == 0
    assert executor.shutdown()


def test_shutdown_leaves_no_process(make):
    """Idle children go too."""
    executor, _ = make()
    executor.submit(process_work.pid)
    assert executor.wait_for_idle(PATIENCE)
    (done,) = executor.run_ready()
    assert is_running(done.payload)
    assert executor.shutdown(PATIENCE)
    assert not is_running(done.payload)


PARENT = """
import sys
from functools import partial
from layby.executors import ProcessTaskExecutor
from layby.executors.process import _ProcessTaskRunner
from layby.executors.task_records import Discard, PlainTask
from tests.helpers import process_work

if __name__ == "__main__":
    executor = ProcessTaskExecutor()
    executor.submit(partial(process_work.{work}))
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for orphans in /proc")
@pytest.mark.parametrize("manner", ["busy", "idle"])
def test_children_die_with_a_parent_that_was_killed(manner, tmp_path):
    """SIGKILL gives the parent no chance to say goodbye, even in the middle of a task."""
    path = tmp_path / "pid"
    script = tmp_path / "parent.py"
    work = (
        f"loop_for_ever, {str(path)!r}"
        if manner == "busy"
        else f"say_pid_and_wait, {str(path)!r}, '/dev/null'"
    )
    script.write_text(PARENT.format(work=work))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, env=environment
    ) as parent:
        eventually(lambda: path.exists() and path.read_text())
        child = int(path.read_text())
        assert is_running(child)
        parent.kill()
    eventually(lambda: not is_running(child))


def test_a_forkserver_can_start_the_children(make, tmp_path):
    """Faster where many are started; killed as well."""
    executor, discards = make(start_method="forkserver", queue_capacity=1)
    task_id, _ = started(executor, tmp_path)
    assert executor.cancel(task_id)
    executor.submit(process_work.pid)
    assert executor.wait_for_idle(PATIENCE)
    assert executor.run_ready()[0].ok
    assert discards == [(task_id, "task cancelled")]
