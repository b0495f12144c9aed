"""Counterparts of the tests in section 14 of our study of TopoExec; the names are in README.md."""

import pytest

from layby.executors import (
    DeterministicTaskExecutor,
    HealthEventSink,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.graph import ChannelBus, Graph
from tests.helpers.graphs import Notebook, pair, worker
from tests.helpers.waiting import PATIENCE, Gate


def burst(*, overflow: str, max_inflight: int) -> tuple[Notebook, dict[str, int]]:
    """Three publications in each of two epochs, onto one async edge."""
    notebook = Notebook()
    edge = {"mode": "queue", "capacity": 4, "overflow": overflow, "max_inflight": max_inflight}
    runtime = pair(notebook, trigger="task_ready", kind="async", **edge).runtime()
    for epoch in (1, 2):
        runtime.fire("source", [f"burst-{epoch}-{number}" for number in (1, 2, 3)])
        runtime.run_epoch()
    return notebook, runtime.metrics()


def counters(metrics: dict[str, int]) -> dict[str, int]:
    names = ("accepted", "overwrite", "dropped", "rejected", "completed", "max_inflight")
    return {name: metrics[f"runtime.async.{name}_count"] for name in names}


def test_async_max_inflight_drops_oldest_before_channel_capacity():
    """Of three in flight with room for two the oldest goes, and all three were accepted."""
    notebook, metrics = burst(overflow="drop_oldest", max_inflight=2)
    assert notebook.by_epoch == [(2, "burst-1-2"), (2, "burst-1-3")]
    assert counters(metrics) == {
        "accepted": 6, "overwrite": 2, "dropped": 0, "rejected": 0, "completed": 2,
        "max_inflight": 2,
    }  # fmt: skip


def test_async_max_inflight_accepts_within_limit_before_channel_capacity():
    """Nothing is lost while there is room."""
    notebook, metrics = burst(overflow="drop_oldest", max_inflight=3)
    assert notebook.payloads == ["burst-1-1", "burst-1-2", "burst-1-3"]
    assert counters(metrics) == {
        "accepted": 6, "overwrite": 0, "dropped": 0, "rejected": 0, "completed": 3,
        "max_inflight": 3,
    }  # fmt: skip


@pytest.mark.parametrize("overflow", ["drop_newest", "reject", "fail_fast", "block"])
def test_async_max_inflight_reject_policies_do_not_commit_rejected_completions(overflow):
    """What was refused never becomes visible; only drop_newest counts it as dropped too."""
    notebook, metrics = burst(overflow=overflow, max_inflight=2)
    assert notebook.by_epoch == [(2, "burst-1-1"), (2, "burst-1-2")]
    assert counters(metrics) == {
        "accepted": 4, "overwrite": 0, "dropped": 2 if overflow == "drop_newest" else 0,
        "rejected": 2, "completed": 2, "max_inflight": 2,
    }  # fmt: skip


def test_async_task_ready_triggers_downstream_on_later_epoch():
    """Published in epoch 1, seen in epoch 2, with the kinds task_ready and task_ready."""
    notebook = Notebook()
    runtime = pair(notebook, trigger="task_ready", kind="async").runtime()
    runtime.fire("source", ["tick-1"])
    runtime.run_epoch()
    assert notebook.seen == []
    runtime.run_epoch()
    [seen] = notebook.seen
    assert (seen.epoch, seen.payload) == (2, "tick-1")
    assert (seen.event_kind, seen.trigger_kind) == ("task_ready", "task_ready")


def test_async_edges_commit_after_current_epoch():
    """Two readers of one output: the immediate one sees it now, the async one an epoch later."""
    now, later = Notebook(), Notebook()
    graph = pair(now)
    graph.add_component("second", later, inputs=["into"])
    graph.connect("source.out", "second.into", kind="async")
    runtime = graph.runtime()
    runtime.fire("source", ["x"])
    runtime.run_epoch()
    assert (now.by_epoch, later.by_epoch) == ([(1, "x")], [])
    runtime.run_epoch()
    assert (now.by_epoch, later.by_epoch) == ([(1, "x")], [(2, "x")])


def test_async_completion_maintains_original_correlation():
    """The submitter's correlation is kept, the causation is the completion's own message."""
    notebook = Notebook()
    executor = DeterministicTaskExecutor()
    runtime = worker(notebook, lambda n: n + 1).runtime(task_executor=executor)
    runtime.fire("start", 1, correlation_id="request-7")
    runtime.run_until_idle()
    [seen] = notebook.seen
    assert seen.payload == 2
    assert seen.metadata.correlation_id == "request-7"
    assert seen.metadata.transaction_id == "request-7"
    assert seen.metadata.causation_id == "worker_join_async#1"
    assert (seen.metadata.source_component, seen.metadata.source_port) == ("worker", "out")
    assert seen.metadata.trigger_kind == "task_ready"


def test_the_first_message_of_a_chain_gives_its_correlation():
    """Nobody named one: the root's own id is kept by all that follows."""
    notebook = Notebook()
    runtime = worker(notebook, str).runtime(task_executor=DeterministicTaskExecutor())
    runtime.fire("start", 1)
    runtime.run_until_idle()
    assert notebook.seen[0].metadata.correlation_id == "start_worker#1"


@pytest.mark.parametrize("trigger", ["future_ready"])
def test_future_ready_event_source_uses_future_ready_event_kind(trigger):
    """Event future_ready, trigger any_input: it labels an input-driven trigger, no more."""
    notebook = Notebook()
    runtime = pair(notebook, trigger=trigger, kind="async").runtime()
    runtime.fire("source", ["x"])
    runtime.run_until_idle()
    [seen] = notebook.seen
    assert (seen.event_kind, seen.trigger_kind) == ("future_ready", "any_input")


def test_threaded_executor_graph_context_publishes_completion_exactly_once():
    """One message on the edge; a second look finds nothing."""
    bus = ChannelBus(worker(Notebook(), str))
    with ThreadedTaskExecutor() as executor:
        context = bus.context("worker", task_executor=executor)
        assert context.submit_task("out", lambda: "complete").accepted
        assert executor.wait_for_idle(PATIENCE)
        assert [each.payload for each in bus.take("join")] == ["complete"]
        assert bus.take("join") == []


def test_deterministic_executor_reports_failure_and_graph_context_publishes_completion():
    """The failure is a record, and a later submission is published all the same."""
    bus = ChannelBus(worker(Notebook(), str))
    executor = DeterministicTaskExecutor()
    context = bus.context("worker", task_executor=executor)
    context.submit_task("out", lambda: 1 // 0)
    [failed] = executor.run_ready()
    assert not failed.ok
    assert bus.take("join") == []
    context.submit_task("out", lambda: "complete")
    assert [each.ok for each in executor.run_ready()] == [True]
    assert [each.payload for each in bus.take("join")] == ["complete"]


def test_publish_stages_without_recursive_downstream_execute():
    """The reader runs after the publisher has returned, never inside `publish`."""
    events: list[str] = []
    graph = Graph("staged")

    @graph.component(outputs=["out"], trigger="manual")
    def publisher(context):
        events.append("begin")
        assert context.publish("out", 1).accepted
        events.append("published")

    @graph.component(inputs=["into"])
    def reader(context):
        events.append("reader")

    graph.connect("publisher.out", "reader.into")
    runtime = graph.runtime()
    runtime.fire("publisher")
    runtime.run_epoch()
    assert events == ["begin", "published", "reader"]


def overflowing(sink: HealthEventSink, **edge) -> None:
    runtime = pair(Notebook(), mode="queue", overflow="drop_oldest", **edge).runtime(
        health_event_sink=sink
    )
    runtime.fire("source", [1, 2, 3])
    runtime.run_epoch()


def test_health_events_are_coalesced():
    """Three onto a queue of one: two of a kind are one event that has occurred twice."""
    sink = HealthEventSink()
    overflowing(sink, capacity=1)
    [event] = sink.snapshot()
    assert (event.kind, event.channel_id, event.occurrence_count) == ("channel_overflow", "wire", 2)
    assert (event.policy, event.capacity) == ("drop_oldest", 1)


def test_health_events_can_be_turned_off():
    """By the sink, or for one edge."""
    off, on = HealthEventSink(enabled=False), HealthEventSink()
    overflowing(off, capacity=1)
    overflowing(on, capacity=1, health_events=False)
    assert (off.snapshot(), on.snapshot()) == ([], [])


def test_health_events_are_bounded():
    """A sink of one keeps the newest, and counts what it let go."""
    sink = HealthEventSink(capacity=1)
    overflowing(sink, capacity=1)
    overflowing(sink, capacity=2)
    graph = pair(Notebook(), mode="queue", capacity=1, overflow="reject", kind="async")
    runtime = graph.runtime(health_event_sink=sink)
    runtime.fire("source", [1, 2])
    runtime.run_epoch()
    [event] = sink.snapshot()
    assert event.reason == "channel wire is full at capacity 1"
    assert sink.dropped_count() == 1


def test_thread_pool_graph_overload_rejects_excess_without_deadlock():
    """64 work items for a threaded executor with room for 5: 5 come back, 59 are refused."""
    notebook = Notebook()
    gate = Gate(payload="done")
    config = ThreadedTaskExecutorConfig(max_workers=2, max_inflight=2, queue_capacity=3)
    with ThreadedTaskExecutor(config) as executor:
        graph = worker(notebook, lambda _: gate())
        runtime = graph.runtime(task_executor=executor)
        for number in range(64):
            runtime.fire("start", number)
        runtime.run_epoch()
        gate.open()
        runtime.run_until_idle(timeout=PATIENCE)
    metrics = runtime.metrics()
    assert metrics["runtime.task.submitted_count"] == 5
    assert metrics["runtime.task.rejected_count"] == 59
    assert notebook.payloads == ["done"] * 5


def test_a_graph_context_without_executor_refuses_work():
    """With the seed's reason, and the executor's counters untouched."""
    runtime = worker(Notebook(), str).runtime()
    submission = runtime.context("worker").submit_task("out", lambda: 1)
    assert submission == (False, 0, "graph context has no task executor")
    executor = DeterministicTaskExecutor(TaskExecutorConfig())
    context = runtime.context("worker")
    context.task_executor = executor
    assert context.submit_task("out", lambda: 1).accepted
    assert executor.metrics().rejected_count == 0
