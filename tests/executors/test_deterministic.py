import threading

import pytest

from layby.executors import (
    CancellationSource,
    CancellationToken,
    DeterministicTaskExecutor,
    HealthEventSink,
    TaskCompletion,
    TaskExecutorConfig,
    TaskSubmission,
)
from tests.helpers.waiting import ManualClock, assert_identities


def fail(text):
    raise RuntimeError(text)


def make(**config):
    discards = []
    executor = DeterministicTaskExecutor(
        TaskExecutorConfig(**config), on_discard=lambda *args: discards.append(args)
    )
    return executor, discards


def test_tasks_run_in_order_on_the_caller_s_thread():
    """FIFO, synchronous, and the counters say so."""
    executor, _ = make(max_inflight=2)
    assert executor.submit(lambda: ("a", threading.get_ident())) == TaskSubmission(
        accepted=True, task_id=1, reason=""
    )
    assert executor.submit(lambda: "b").task_id == 2
    first, second = executor.run_ready()
    assert first.payload == ("a", threading.get_ident())
    assert second == TaskCompletion(task_id=2, ok=True, payload="b", error="")
    metrics = executor.metrics()
    assert metrics.submitted_count == metrics.completed_count == metrics.max_inflight_count == 2
    assert metrics.max_outstanding_count == 2
    assert metrics.completed_backlog_depth == 0


def test_a_bounded_backlog_rejects_and_cancels():
    """The second task of one is refused with a reason, an event, and no id burnt."""
    executor, discards = make(max_inflight=1)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    executor.submit(lambda: 1)
    refused = executor.submit(lambda: 2)
    assert refused == TaskSubmission(False, 0, "task executor queue full")
    assert not refused
    assert executor.cancel_pending() == 1
    assert discards == [(1, "pending tasks cancelled")]
    metrics = executor.metrics()
    assert (metrics.rejected_count, metrics.cancelled_count, metrics.submitted_count) == (1, 1, 1)
    (event,) = sink.snapshot()
    assert (event.kind, event.source, event.policy) == ("task_reject", "task_executor", "reject")
    assert (event.reason, event.depth, event.capacity) == ("task executor queue full", 1, 1)
    assert event.attributes == {}
    assert executor.submit(lambda: 3).task_id == 2
    assert executor.run_ready() == [TaskCompletion(2, True, 3)]


@pytest.mark.parametrize("policy", ["reject", "drop_newest", "block"])
def test_three_names_refuse_new_work(policy):
    """`block` would block, so the non-blocking submit refuses."""
    executor, _ = make(overflow=policy)
    executor.submit(lambda: 1)
    assert executor.submit(lambda: 2).reason == "task executor queue full"
    assert [done.payload for done in executor.run_ready()] == [1]


def test_fail_fast_refuses_with_its_own_reason_and_raises_nothing():
    """Nor does it stop the executor."""
    executor, _ = make(overflow="fail_fast")
    executor.submit(lambda: 1)
    assert executor.submit(lambda: 2).reason == "task executor capacity exceeded"
    assert [done.payload for done in executor.run_ready()] == [1]
    assert executor.submit(lambda: 3).accepted


@pytest.mark.parametrize("policy", ["drop_oldest", "overwrite"])
def test_dropping_makes_room_and_tells_the_loser(policy):
    """The oldest pending task goes, without a completion, with a discard and no health event."""
    executor, discards = make(max_inflight=1, queue_capacity=1, overflow=policy)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    called = []
    for name in "abc":
        submission = executor.submit(lambda name=name: name, called.append)
        assert submission.accepted
        assert submission.reason == ""
    assert discards == [(1, "task dropped to make room")]
    assert [done.payload for done in executor.run_ready()] == ["b", "c"]
    assert [done.task_id for done in called] == [2, 3]
    metrics = executor.metrics()
    assert (metrics.cancelled_count, metrics.rejected_count, metrics.submitted_count) == (1, 0, 3)
    assert metrics.max_inflight_count == 2
    assert sink.snapshot() == []


def test_empty_work_is_refused_first_of_all():
    """Even when there is no room either."""
    executor, _ = make()
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    executor.submit(lambda: 1)
    assert executor.submit(None) == TaskSubmission(False, 0, "task work must not be empty")
    assert executor.metrics().rejected_count == 1
    assert sink.snapshot()[0].reason == "task work must not be empty"


def test_a_requested_token_cancels_everything_pending():
    """Both counters move once per call that saw it."""
    executor, discards = make(max_inflight=2)
    source = CancellationSource()
    source.request_cancel()
    executor.submit(lambda: 1)
    executor.submit(lambda: 2)
    assert executor.run_ready(cancel_token=source.token()) == []
    metrics = executor.metrics()
    assert metrics.cancelled_count == 2
    assert (metrics.cancellation_requested_count, metrics.cancellation_observed_count) == (1, 1)
    assert discards == [
        (1, "pending tasks cancelled by token"),
        (2, "pending tasks cancelled by token"),
    ]


def test_the_token_is_looked_at_before_each_task():
    """What was done before the request is still returned."""
    executor, _ = make(max_inflight=3)
    source = CancellationSource()
    executor.submit(lambda: "done")
    executor.submit(source.request_cancel)
    executor.submit(lambda: "never")
    done = executor.run_ready(cancel_token=source.token())
    assert [completion.payload for completion in done] == ["done", None]
    assert executor.metrics().cancelled_count == 1


def test_with_nothing_pending_the_token_is_not_looked_at():
    """Unlike the threaded executor."""
    executor, _ = make()
    looks = []
    token = CancellationToken.from_callback(lambda: bool(looks.append(1)) or True)
    executor.run_ready(cancel_token=token)
    assert looks == []
    assert executor.metrics().cancellation_observed_count == 0


def test_a_failure_becomes_a_record():
    """Nothing raised by work comes out of run_ready, not even SystemExit."""
    executor, _ = make(max_inflight=3)
    executor.submit(lambda: fail("boom"))
    executor.submit(lambda: (_ for _ in ()).throw(SystemExit(3)))
    executor.submit(lambda: (_ for _ in ()).throw(KeyError))
    boom, left, nameless = executor.run_ready()
    assert boom == TaskCompletion(1, False, None, "boom")
    assert left.error == "3"
    assert nameless.error == "KeyError"
    assert executor.metrics().failed_count == 3
    assert executor.metrics().completed_count == 0


def test_ctrl_c_is_not_a_task_s_failure():
    """It reaches the program, and the books are still right."""
    executor, _ = make(max_inflight=2)
    executor.submit(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    executor.submit(lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        executor.run_ready()
    assert_identities(executor.metrics())
    assert executor.metrics().active_count == 0
    assert [done.payload for done in executor.run_ready()] == [2]


def test_the_callback_comes_after_the_counters_and_before_the_record():
    """Inside it the task is counted, nothing is active, and the list is not yet returned."""
    executor, _ = make()
    seen = []
    executor.submit(lambda: 1, lambda done: seen.append((done, executor.metrics())))
    assert executor.metrics().active_count == 0
    (record,) = executor.run_ready()
    ((completion, metrics),) = seen
    assert completion is record
    assert (metrics.completed_count, metrics.active_count) == (1, 0)


def test_one_is_active_while_work_runs():
    """And it no longer counts against admission: work may submit its successor."""
    executor, _ = make()
    seen = []

    def work():
        seen.append(executor.metrics().active_count)
        seen.append(executor.submit(lambda: "child").accepted)

    executor.submit(work)
    assert [done.payload for done in executor.run_ready()] == [None, "child"]
    assert seen == [1, True]


def test_run_ready_also_runs_what_callbacks_submit_and_max_tasks_bounds_it():
    """An endless chain is cut where the caller says."""
    executor, _ = make()

    def again(_completion):
        executor.submit(lambda: "again", again)

    executor.submit(lambda: "first", again)
    assert len(executor.run_ready(max_tasks=5)) == 5
    assert executor.metrics().queue_depth == 1


def test_max_tasks_takes_that_many_in_order():
    """0 means all."""
    executor, _ = make(max_inflight=3)
    for name in "abc":
        executor.submit(lambda name=name: name)
    assert [done.payload for done in executor.run_ready(2)] == ["a", "b"]
    assert [done.payload for done in executor.run_ready(0)] == ["c"]


def test_a_raising_callback_is_contained_counted_and_reported(caplog):
    """The record is returned all the same, and the next task runs."""
    executor, _ = make(max_inflight=2)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    executor.submit(lambda: 1, lambda _done: fail("callback broke"))
    executor.submit(lambda: 2)
    assert [done.payload for done in executor.run_ready()] == [1, 2]
    assert executor.metrics().callback_error_count == 1
    (event,) = sink.snapshot()
    assert (event.kind, event.reason) == ("task_callback_error", "completion callback raised")
    assert event.attributes["task_id"] == "1"
    assert "callback broke" in event.attributes["error"]
    assert "callback broke" in caplog.text


def test_a_raising_discard_callback_is_contained_too(caplog):
    """Cancelling goes on to the end."""
    executor = DeterministicTaskExecutor(
        TaskExecutorConfig(max_inflight=2), on_discard=lambda *_args: fail("discard broke")
    )
    executor.submit(lambda: 1)
    executor.submit(lambda: 2)
    assert executor.cancel_pending() == 2
    assert executor.metrics().callback_error_count == 2


@pytest.mark.parametrize(("took", "exceeded"), [(0.5, 0), (1.0, 0), (1.001, 1)])
def test_only_more_than_the_budget_exceeds_it(took, exceeded):
    """Strictly greater, counted after the fact; the completion still says ok."""
    clock = ManualClock()
    executor = DeterministicTaskExecutor(TaskExecutorConfig(task_budget=1.0), clock=clock)
    executor.submit(lambda: clock.advance(took))
    (done,) = executor.run_ready()
    assert done.ok
    assert executor.metrics().timeout_budget_exceeded_count == exceeded


def test_the_budget_counts_failures_too_and_no_callbacks():
    """Only the time of the work is measured."""
    clock = ManualClock()
    executor = DeterministicTaskExecutor(
        TaskExecutorConfig(task_budget=1.0, max_inflight=2), clock=clock
    )

    def slow_failure():
        clock.advance(2)
        fail("late")

    executor.submit(slow_failure)
    executor.submit(lambda: None, lambda _done: clock.advance(2))
    executor.run_ready()
    assert executor.metrics().timeout_budget_exceeded_count == 1


def test_one_task_can_be_cancelled():
    """By its id, while it is pending, once."""
    executor, discards = make(max_inflight=3)
    for name in "abc":
        executor.submit(lambda name=name: name)
    assert executor.cancel(2)
    assert not executor.cancel(2)
    assert not executor.cancel(99)
    assert discards == [(2, "task cancelled")]
    assert [done.payload for done in executor.run_ready()] == ["a", "c"]


def test_metadata_travels_to_the_completion():
    """On success and on failure."""
    executor, _ = make(max_inflight=2)
    executor.submit(lambda: 1, metadata={"order": 7})
    executor.submit(lambda: fail("x"), metadata={"order": 8})
    assert [done.metadata for done in executor.run_ready()] == [{"order": 7}, {"order": 8}]


def test_shutdown_has_nothing_to_do():
    """It has no thread to stop; work can still be submitted and run."""
    executor, _ = make()
    assert executor.shutdown()
    assert executor.wait_for_idle()
    assert executor.submit(lambda: 1).accepted
    assert not executor.wait_for_idle(timeout=0)
    assert executor.run_ready()[0].payload == 1
