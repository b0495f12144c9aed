"""Work from a component: admitted by an executor, back as a message, whatever happens between."""

import threading
from collections import deque
from typing import Any

import pytest

from layby.executors import (
    DeterministicTaskExecutor,
    TaskExecutorConfig,
    TaskExecutorMetrics,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.graph import ChannelBus, PublicationRefused, TaskFailed
from tests.helpers.graphs import Notebook, worker
from tests.helpers.waiting import PATIENCE, Gate


class ForeignAnswer:
    def __init__(self, accepted, task_id=0, reason=""):
        self.accepted, self.task_id, self.reason = accepted, task_id, reason


class ForeignRecord:
    def __init__(self, task_id, ok, payload=None, error=""):
        self.task_id, self.ok, self.payload, self.error = task_id, ok, payload, error


class ForeignExecutor:
    """Has the methods of ITaskExecutor, and nothing of ours: the newest work runs first."""

    def __init__(self, room=8):
        self._room = room
        self._stack = []
        self._submitted = 0

    def submit(self, work, completion=None, metadata=None):
        if len(self._stack) >= self._room:
            return ForeignAnswer(False, reason="no room here")
        self._submitted += 1
        self._stack.append((self._submitted, work, completion))
        return ForeignAnswer(True, self._submitted)

    def run_ready(self, max_tasks=0, cancel_token=None):
        done = []
        while self._stack:
            task_id, work, completion = self._stack.pop()
            try:
                record = ForeignRecord(task_id, True, work())
            except Exception as error:  # noqa: BLE001
                record = ForeignRecord(task_id, False, error=str(error))
            if completion:
                completion(record)
            done.append(record)
        return done

    def cancel(self, task_id):
        return False

    def cancel_pending(self):
        self._stack.clear()
        return 0

    def metrics(self):
        return TaskExecutorMetrics(queue_depth=len(self._stack))

    def set_health_event_sink(self, sink): ...

    def shutdown(self, timeout=None):
        return True

    def wait_for_idle(self, timeout=None):
        return not self._stack


def test_a_foreign_executor_works():
    """Any object with the methods of ITaskExecutor: its admission, its order, its records."""
    notebook, errors = Notebook(), Notebook()
    graph = worker(notebook, lambda n: 10 // n, errors=errors)
    foreign: Any = ForeignExecutor(room=3)
    runtime = graph.runtime(task_executor=foreign)
    for number in (1, 0, 5, 7):
        runtime.fire("start", number)
    runtime.run_until_idle()
    assert notebook.payloads == [2, 10]
    assert [seen.payload.error for seen in errors.seen] == ["integer division or modulo by zero"]
    assert runtime.metrics()["runtime.task.rejected_count"] == 1


def test_the_answer_of_the_executor_is_handed_on():
    """Accepted with its id, or refused with its reason."""
    executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=1))
    runtime = worker(Notebook(), str).runtime(task_executor=executor)
    context = runtime.context("worker")
    assert context.submit_task("out", lambda: 1) == (True, 1, "")
    assert context.submit_task("out", lambda: 2) == (False, 0, "task executor queue full")
    assert context.submit_task("out", None) == (False, 0, "task work must not be empty")


def test_a_completion_is_published_and_never_calls_downstream():
    """On the executor's turn nothing but the publication happens."""
    notebook = Notebook()
    executor = DeterministicTaskExecutor()
    runtime = worker(notebook, str).runtime(task_executor=executor)
    runtime.fire("start", 1)
    runtime.run_epoch()
    assert [record.ok for record in executor.run_ready()] == [True]
    assert notebook.seen == []
    assert runtime.metrics()["runtime.async.inflight"] == 1
    runtime.run_epoch()
    runtime.run_epoch()
    assert notebook.by_epoch == [(3, "1")]


def test_on_a_bare_bus_a_completion_is_visible_at_once():
    """There is no runtime's publisher, so there are no epochs."""
    bus = ChannelBus(worker(Notebook(), str))
    executor = DeterministicTaskExecutor()
    context = bus.context("worker", task_executor=executor, correlation_id="c")
    context.submit_task("out", lambda: 5)
    assert bus.take("join") == []
    executor.run_ready()
    [message] = bus.take("join")
    assert (message.payload, message.metadata.correlation_id) == (5, "c")
    assert message.metadata.causation_id == "worker_join_async#1"


def test_a_bus_has_bounds_too():
    """Capacity counts; max_inflight does not, since nothing is in flight."""
    graph = worker(Notebook(), str, capacity=2, max_inflight=1)
    bus = ChannelBus(graph)
    assert [bus.publish("worker.out", n).accepted for n in range(3)] == [True, True, False]
    assert [each.payload for each in bus.take("join")] == [0, 1]
    assert bus.publish("worker.out", 3)


def test_none_is_a_result():
    """Work that returns nothing has completed, and that is what is told."""
    notebook = Notebook()
    runtime = worker(notebook, lambda _: None).runtime(task_executor=DeterministicTaskExecutor())
    runtime.fire("start", 1)
    runtime.run_until_idle()
    assert notebook.payloads == [None]


def test_a_failed_task_comes_to_the_error_port():
    """With its error, and the correlation of whoever submitted it."""
    notebook, errors = Notebook(), Notebook()
    graph = worker(notebook, lambda n: 1 // n, errors=errors)
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor())
    runtime.fire("start", 0, correlation_id="c-9")
    runtime.run_until_idle()
    assert notebook.seen == []
    [seen] = errors.seen
    assert seen.payload == TaskFailed("worker", "out", 1, "integer division or modulo by zero")
    assert seen.metadata.correlation_id == "c-9"
    assert runtime.metrics()["runtime.task.failed_count"] == 1


def test_a_completion_that_is_refused_comes_to_the_error_port():
    """The work was done, so its payload is there to be saved."""
    notebook, errors = Notebook(), Notebook()
    graph = worker(notebook, str, errors=errors, max_inflight=1, capacity=4)
    executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=4))
    runtime = graph.runtime(task_executor=executor)
    for number in (1, 2):
        runtime.fire("start", number)
    runtime.run_until_idle()
    assert notebook.payloads == ["1"]
    reason = "async admission max_inflight exceeded for channel worker_join_async"
    assert [seen.payload for seen in errors.seen] == [
        PublicationRefused("worker", "out", reason, "2")
    ]


def test_work_that_outlives_the_runtime_does_no_harm():
    """It completes after the close: counted as late, seen by nobody, and nothing raises."""
    notebook = Notebook()
    gate = Gate(payload="too late")
    with ThreadedTaskExecutor() as executor:
        runtime = worker(notebook, lambda _: gate()).runtime(task_executor=executor)
        runtime.fire("start", 1)
        runtime.run_epoch()
        gate.wait_until_started()
        runtime.close()
        gate.open()
        assert executor.wait_for_idle(PATIENCE)
        assert executor.metrics().callback_error_count == 0
        [record] = executor.run_ready()
        assert record.ok
    metrics = runtime.metrics()
    assert metrics["runtime.task.late_count"] == 1
    assert metrics["runtime.async.accepted_count"] == 0
    assert notebook.seen == []


def test_work_that_outlives_a_runtime_that_is_gone():
    """Nobody holds the runtime any more; its completion still has somewhere to go."""
    gate = Gate(payload="too late")
    with ThreadedTaskExecutor() as executor:
        runtime = worker(Notebook(), lambda _: gate()).runtime(task_executor=executor)
        runtime.fire("start", 1)
        runtime.run_epoch()
        gate.wait_until_started()
        del runtime
        gate.open()
        assert executor.wait_for_idle(PATIENCE)
        assert executor.metrics().callback_error_count == 0


def test_a_closed_runtime_submits_nothing():
    """A component that kept its context is refused."""
    executor = DeterministicTaskExecutor()
    runtime = worker(Notebook(), str).runtime(task_executor=executor)
    context = runtime.context("worker")
    runtime.close()
    assert context.submit_task("out", lambda: 1).reason == "graph runtime is closed"
    assert executor.metrics().submitted_count == 0


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest"])
def test_completions_from_many_threads_lose_nothing_and_keep_the_bounds(overflow):
    """Every completion is seen, overwritten or refused, and the edge never holds too many."""
    notebook = Notebook()
    config = ThreadedTaskExecutorConfig(max_workers=8, max_inflight=8, queue_capacity=1_000)
    count = 400
    with ThreadedTaskExecutor(config, keep_completions=False) as executor:
        edge = {"max_inflight": 16, "capacity": 16, "overflow": overflow}
        runtime = worker(notebook, lambda n: n, **edge).runtime(task_executor=executor)
        context = runtime.context("worker")
        begun = threading.Barrier(5)

        def submit(part):
            begun.wait(PATIENCE)
            for number in range(part * 100, part * 100 + 100):
                assert context.submit_task("out", lambda number=number: number)

        threads = [threading.Thread(target=submit, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(PATIENCE)
        while any(thread.is_alive() for thread in threads):
            runtime.run_epoch()
        for thread in threads:
            thread.join()
        runtime.run_until_idle(timeout=PATIENCE)
    metrics = runtime.metrics()
    lost = metrics["runtime.async.overwrite_count"] + metrics["runtime.channel.overwrite_count"]
    refused = metrics["runtime.publication.refused_count"]
    assert len(notebook.seen) + lost + refused == count
    assert len(set(notebook.payloads)) == len(notebook.seen)
    assert metrics["runtime.async.max_inflight_count"] <= 16
    assert metrics["runtime.channel.max_depth_count"] <= 16


def test_run_until_idle_waits_for_threads():
    """The work is running when the graph has nothing to do."""
    notebook = Notebook()
    gate = Gate(payload="done")
    with ThreadedTaskExecutor() as executor:
        runtime = worker(notebook, lambda _: gate()).runtime(task_executor=executor)
        runtime.fire("start", 1)
        opener = threading.Thread(target=lambda: (gate.wait_until_started(), gate.open()))
        opener.start()
        runtime.run_until_idle(timeout=PATIENCE)
        opener.join()
    assert notebook.payloads == ["done"]


def test_run_until_idle_gives_up_in_time():
    """It says what may be the matter."""
    gate = Gate()
    with ThreadedTaskExecutor() as executor:
        runtime = worker(Notebook(), lambda _: gate()).runtime(task_executor=executor)
        runtime.fire("start", 1)
        with pytest.raises(TimeoutError, match=r"graph 'worker' is not idle after 0\.1 s"):
            runtime.run_until_idle(timeout=0.1)
        gate.open()


def test_work_that_was_dropped_does_not_keep_a_graph_waiting():
    """The executor says that it has nothing more, and that is believed."""
    executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=1, overflow="drop_oldest"))
    notebook = Notebook()
    runtime = worker(notebook, str).runtime(task_executor=executor)
    for number in (1, 2, 3):
        runtime.fire("start", number)
    runtime.run_until_idle(timeout=PATIENCE)
    assert notebook.payloads == ["3"]


def test_a_component_may_keep_its_context():
    """Each invocation has its own, so what was kept still says what it said."""
    kept = deque()
    graph = worker(Notebook(), str)
    graph.add_component("keep", kept.append, inputs=["into"])
    graph.connect("start.go", "keep.into", capacity=4)
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor())
    for number in (1, 2):
        runtime.fire("start", number)
    runtime.run_until_idle()
    assert [context.input("into") for context in kept] == [1, 2]
    assert [context.message("into").sequence for context in kept] == [1, 2]


def test_overwritten_reports_are_unheard():
    """Five failures on an edge that keeps the newest: one is heard."""
    errors = Notebook()
    graph = worker(Notebook(), lambda n: 1 // 0)
    graph.add_component("alarm", errors, inputs=["failure"])
    graph.connect("worker.failed", "alarm.failure", kind="async")
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor(TaskExecutorConfig(8)))
    for number in range(5):
        runtime.fire("start", number)
    runtime.run_until_idle()
    metrics = runtime.metrics()
    assert len(errors.seen) == 1
    assert metrics["runtime.error.published_count"] == 5
    assert metrics["runtime.error.unheard_count"] == 4


@pytest.mark.parametrize("ok", [True, False])
def test_a_completion_that_meets_the_end_is_late_and_nothing_else(ok):
    """Closed while it was on its way: not completed, failed, refused or unheard as well."""
    executor = DeterministicTaskExecutor()
    runtime = worker(Notebook(), lambda n: 1 // n).runtime(task_executor=executor)
    runtime.fire("start", int(ok))
    runtime.run_epoch()
    runtime._publisher.close()  # as if between the two halves of runtime.close()
    executor.run_ready()
    counted = {name: value for name, value in runtime.metrics().items() if value}
    assert counted["runtime.task.late_count"] == 1
    for name in ("task.completed", "task.failed", "publication.refused", "error.unheard"):
        assert f"runtime.{name}_count" not in counted


def test_a_completion_called_twice_is_published_once():
    """Whatever a foreign executor does."""

    class Twice(ForeignExecutor):
        def submit(self, work, completion=None, metadata=None):
            assert completion is not None
            return super().submit(work, lambda record: (completion(record), completion(record)))

    notebook = Notebook()
    runtime = worker(notebook, lambda n: n).runtime(task_executor=Twice())  # pyright: ignore[reportArgumentType]
    runtime.fire("start", 7)
    runtime.run_until_idle()
    assert notebook.payloads == [7]
    assert runtime.metrics()["runtime.task.completed_count"] == 1


def test_an_executor_that_says_nothing_of_itself_is_waited_for():
    """By what was submitted and has not come back."""

    class Silent:
        def __init__(self):
            self.gate = threading.Event()

        def submit(self, work, completion, metadata=None):
            def later():
                self.gate.wait(PATIENCE)
                completion(ForeignRecord(1, True, work()))

            self.thread = threading.Thread(target=later)
            self.thread.start()
            threading.Timer(0.1, self.gate.set).start()
            return ForeignAnswer(True, 1)

        def run_ready(self, max_tasks=0, cancel_token=None):
            return []

    notebook, executor = Notebook(), Silent()
    runtime = worker(notebook, lambda n: n).runtime(task_executor=executor)  # pyright: ignore[reportArgumentType]
    runtime.fire("start", 7)
    runtime.run_until_idle(timeout=PATIENCE)
    executor.thread.join()
    assert notebook.payloads == [7]
