import threading

import pytest

from layby.executors import (
    CancellationSource,
    CancellationToken,
    HealthEventSink,
    TaskCompletion,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from tests.helpers.waiting import PATIENCE, Gate, ManualClock, assert_identities, eventually


def fail(text):
    raise RuntimeError(text)


@pytest.fixture
def make():
    """Executors that are shut down at the end, with the discards they told."""
    made = []

    def build(**config):
        discards = []
        executor = ThreadedTaskExecutor(
            ThreadedTaskExecutorConfig(**config), on_discard=lambda *args: discards.append(args)
        )
        made.append(executor)
        return executor, discards

    yield build
    for executor in made:
        assert executor.shutdown(timeout=PATIENCE), "a worker did not end"


def start(executor, **gate):
    """Submit a task and wait until it runs."""
    task = Gate(**gate)
    assert executor.submit(task).accepted
    task.wait_until_started()
    return task


def test_work_runs_in_workers_and_is_drained_by_run_ready(make):
    """run_ready runs nothing itself."""
    executor, _ = make(max_workers=2, max_inflight=2)
    idents = []
    for name in "ab":
        executor.submit(lambda name=name: idents.append(threading.get_ident()) or name)
    assert executor.wait_for_idle(PATIENCE)
    assert threading.get_ident() not in idents
    assert {done.payload for done in executor.run_ready()} == {"a", "b"}
    metrics = executor.metrics()
    assert metrics.submitted_count == metrics.queued_count == metrics.completed_count == 2
    assert (metrics.failed_count, metrics.queue_depth) == (0, 0)


@pytest.mark.parametrize(("workers", "inflight", "bound"), [(4, 2, 2), (2, 4, 2), (0, 0, 1)])
def test_no_more_run_at_once_than_workers_and_inflight_allow(make, workers, inflight, bound):
    """min(max_workers, max_inflight), both at least one."""
    executor, _ = make(max_workers=workers, max_inflight=inflight, queue_capacity=8)
    gates = [Gate() for _ in range(5)]
    for gate in gates:
        executor.submit(gate)
    for gate in gates[:bound]:
        gate.wait_until_started()
    assert executor.metrics().active_count == bound
    assert not any(gate.started.is_set() for gate in gates[bound:])
    for gate in gates:
        gate.open()
    assert executor.wait_for_idle(PATIENCE)


def test_undrained_records_count_against_admission(make):
    """Whoever never drains stalls after `capacity` tasks; the reason and the event say why."""
    executor, _ = make(max_inflight=1, queue_capacity=1)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    for _ in range(2):
        executor.submit(lambda: 1)
        assert executor.wait_for_idle(PATIENCE)
    metrics = executor.metrics()
    assert (metrics.max_inflight_count, metrics.max_outstanding_count) == (1, 2)
    assert metrics.completed_backlog_depth == 2
    assert executor.submit(lambda: 1).reason == "task executor completed backlog full"
    (event,) = sink.snapshot()
    assert (event.depth, event.capacity, event.policy) == (2, 2, "reject")
    assert event.attributes == {
        "pending_depth": "0",
        "active_count": "0",
        "completed_backlog_depth": "2",
        "admission_capacity": "2",
    }
    assert len(executor.run_ready()) == 2
    assert executor.submit(lambda: 1).accepted


@pytest.mark.parametrize("policy", ["fail_fast", "drop_oldest", "reject"])
def test_a_full_backlog_outranks_every_policy(make, policy):
    """fail_fast too says that draining is what helps."""
    executor, _ = make(overflow=policy)
    executor.submit(lambda: 1)
    assert executor.wait_for_idle(PATIENCE)
    assert executor.submit(lambda: 2).reason == "task executor completed backlog full"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("reject", "task executor queue full"),
        ("drop_newest", "task executor queue full"),
        ("block", "task executor queue full"),
        ("fail_fast", "task executor capacity exceeded"),
        ("drop_oldest", "task executor queue full"),
        ("overwrite", "task executor queue full"),
    ],
)
def test_a_mix_of_active_and_undrained_gives_the_policy_s_reason(make, policy, reason):
    """With nothing pending even the dropping policies have to refuse."""
    executor, _ = make(max_inflight=1, queue_capacity=1, overflow=policy)
    executor.submit(lambda: 1)
    assert executor.wait_for_idle(PATIENCE)
    gate = start(executor)
    refused = executor.submit(lambda: 2)
    assert (refused.accepted, refused.task_id, refused.reason) == (False, 0, reason)
    gate.open()


@pytest.mark.parametrize("policy", ["drop_oldest", "overwrite"])
def test_dropping_takes_the_oldest_pending_and_tells(make, policy):
    """The active task is untouched; the victim gets a discard, no callback, no event."""
    executor, discards = make(max_inflight=1, queue_capacity=1, overflow=policy)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    called = []
    gate = start(executor)
    assert executor.submit(lambda: "old", called.append).task_id == 2
    assert executor.submit(lambda: "new", called.append).task_id == 3
    assert discards == [(2, "task dropped to make room")]
    gate.open()
    assert executor.wait_for_idle(PATIENCE)
    assert [done.payload for done in executor.run_ready()] == [None, "new"]
    assert [done.task_id for done in called] == [3]
    assert executor.metrics().cancelled_count == 1
    assert sink.snapshot() == []


def test_reject_events_tell_the_four_numbers_and_come_after_the_lock(make):
    """A sink that looks at the executor while it is told must not deadlock."""
    executor, _ = make(max_inflight=1, queue_capacity=1)
    seen = []

    class Curious(HealthEventSink):
        def emit(self, event):
            seen.append((event, executor.metrics()))

    executor.set_health_event_sink(Curious())
    gate = start(executor)
    executor.submit(lambda: 1)
    executor.submit(lambda: 2)
    executor.submit(None)
    gate.open()
    (full, metrics), (empty, _) = seen
    assert full.attributes == {
        "pending_depth": "1",
        "active_count": "1",
        "completed_backlog_depth": "0",
        "admission_capacity": "2",
    }
    assert (full.depth, full.capacity) == (2, 2)
    assert metrics.rejected_count == 1
    assert empty.reason == "task work must not be empty"


def test_failures_become_records(make):
    """Nothing ends a worker: not SystemExit, not KeyboardInterrupt raised by work."""
    executor, _ = make(queue_capacity=8)
    for error in (RuntimeError("boom"), SystemExit("gone"), KeyboardInterrupt("no")):
        executor.submit(lambda error=error: (_ for _ in ()).throw(error))
    executor.submit(lambda: "alive")
    assert executor.wait_for_idle(PATIENCE)
    records = executor.run_ready()
    assert [done.error for done in records] == ["boom", "gone", "no", ""]
    assert records[0] == TaskCompletion(1, False, None, "boom")
    assert executor.metrics().failed_count == 3


def test_the_callback_runs_on_the_worker_before_counters_and_record(make):
    """Inside it: active 1, completed 0, nothing to drain."""
    executor, _ = make()
    seen = []

    def callback(done):
        seen.append((done, threading.get_ident(), executor.metrics(), executor.run_ready()))

    executor.submit(threading.get_ident, callback)
    assert executor.wait_for_idle(PATIENCE)
    ((done, ident, metrics, drained),) = seen
    assert ident == done.payload != threading.get_ident()
    assert (metrics.active_count, metrics.completed_count, drained) == (1, 0, [])
    assert executor.run_ready() == [done]
    assert executor.metrics().completed_count == 1


def test_a_callback_may_submit(make):
    """It sees itself as active, so it needs room beside itself."""
    executor, _ = make(max_inflight=1, queue_capacity=1)
    accepted = []
    executor.submit(lambda: 1, lambda _done: accepted.append(executor.submit(lambda: 2)))
    assert executor.wait_for_idle(PATIENCE)
    assert [done.payload for done in executor.run_ready()] == [1, 2]
    assert accepted[0].accepted


def test_a_raising_callback_is_contained_counted_and_reported(make, caplog):
    """The record survives, the worker too."""
    executor, _ = make(max_inflight=1, queue_capacity=2)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    for error in (RuntimeError("cb"), SystemExit(1), KeyboardInterrupt()):
        executor.submit(lambda: 1, lambda _done, error=error: (_ for _ in ()).throw(error))
    assert executor.wait_for_idle(PATIENCE)
    assert [done.ok for done in executor.run_ready()] == [True, True, True]
    assert executor.metrics().callback_error_count == 3
    assert sink.snapshot()[0].kind == "task_callback_error"


def test_run_ready_takes_at_most_max_tasks(make):
    """In the order the records were made; 0 takes all."""
    executor, _ = make(queue_capacity=3)
    for number in range(3):
        executor.submit(lambda number=number: number)
    assert executor.wait_for_idle(PATIENCE)
    assert [done.payload for done in executor.run_ready(max_tasks=2)] == [0, 1]
    assert executor.metrics().completed_backlog_depth == 1
    assert [done.payload for done in executor.run_ready()] == [2]


def test_cancel_pending_leaves_active_work_alone(make):
    """Only what has not started is cancelled, without callbacks."""
    executor, discards = make(queue_capacity=2)
    called = []
    gate = start(executor)
    executor.submit(lambda: 1, called.append)
    executor.submit(lambda: 2, called.append)
    assert executor.cancel_pending() == 2
    gate.open()
    assert executor.wait_for_idle(PATIENCE)
    assert [done.task_id for done in executor.run_ready()] == [1]
    assert called == []
    assert discards == [(2, "pending tasks cancelled"), (3, "pending tasks cancelled")]


def test_the_token_cancels_pending_and_records_are_still_drained(make):
    """It is looked at once, at entry, even with nothing pending."""
    executor, discards = make(queue_capacity=2)
    executor.submit(lambda: "done")
    assert executor.wait_for_idle(PATIENCE)
    gate = start(executor)
    executor.submit(lambda: "never")
    source = CancellationSource()
    source.request_cancel()
    assert [done.payload for done in executor.run_ready(0, source.token())] == ["done"]
    assert discards == [(3, "pending tasks cancelled by token")]
    assert executor.run_ready(cancel_token=source.token()) == []
    metrics = executor.metrics()
    assert (metrics.cancellation_requested_count, metrics.cancellation_observed_count) == (2, 2)
    assert metrics.cancelled_count == 1
    gate.open()


def test_a_token_not_requested_changes_nothing(make):
    """It is asked exactly once per call."""
    executor, _ = make(queue_capacity=1)
    gate = start(executor)
    executor.submit(lambda: 1)
    looks = []
    token = CancellationToken.from_callback(lambda: bool(looks.append(1)))
    executor.run_ready(cancel_token=token)
    assert len(looks) == 1
    assert executor.metrics().queue_depth == 1
    assert executor.metrics().cancellation_observed_count == 0
    gate.open()


def test_one_task_can_be_cancelled_while_it_is_pending(make):
    """A running thread cannot be stopped, and cancel does not pretend otherwise."""
    executor, discards = make(queue_capacity=2)
    gate = start(executor)
    executor.submit(lambda: "b")
    executor.submit(lambda: "c")
    assert executor.cancel(2)
    assert not executor.cancel(2)
    assert not executor.cancel(1)
    gate.open()
    assert executor.wait_for_idle(PATIENCE)
    assert [done.task_id for done in executor.run_ready()] == [1, 3]
    assert discards == [(2, "task cancelled")]


def test_shutdown_drains_by_default(make):
    """Everything accepted is finished and stays drainable; a second shutdown is harmless."""
    executor, _ = make(queue_capacity=2)
    gate = start(executor)
    executor.submit(lambda: 2)
    gate.open()
    assert executor.shutdown(PATIENCE)
    assert executor.shutdown()
    assert [done.ok for done in executor.run_ready()] == [True, True]


@pytest.mark.parametrize("policy", ["cancel_pending", "cancel", "discard_pending"])
def test_shutdown_can_cancel_what_is_pending(make, policy):
    """Three names of one policy; what is active finishes."""
    executor, discards = make(queue_capacity=2, shutdown_policy=policy)
    gate = start(executor)
    executor.submit(lambda: 2)
    executor.submit(lambda: 3)
    closer = threading.Thread(target=executor.shutdown)
    closer.start()
    eventually(lambda: len(discards) == 2)
    assert executor.metrics().active_count == 1
    gate.open()
    closer.join(PATIENCE)
    assert [done.task_id for done in executor.run_ready()] == [1]
    assert discards == [(2, "task cancelled by shutdown"), (3, "task cancelled by shutdown")]
    assert executor.metrics().cancelled_count == 2


def test_submits_during_and_after_shutdown_are_refused(make):
    """With a reason, a count and an event; empty work is still told first."""
    executor, _ = make(queue_capacity=2)
    sink = HealthEventSink()
    executor.set_health_event_sink(sink)
    gate = start(executor)
    assert not executor.shutdown(timeout=0)
    assert executor.submit(lambda: 1).reason == "task executor is shutting down"
    assert executor.submit(None).reason == "task work must not be empty"
    gate.open()
    assert executor.shutdown(PATIENCE)
    assert executor.submit(lambda: 1).reason == "task executor is shutting down"
    assert executor.metrics().rejected_count == 3
    reasons = {event.reason: event.occurrence_count for event in sink.snapshot()}
    assert reasons == {"task executor is shutting down": 2, "task work must not be empty": 1}


def test_a_shutdown_out_of_time_cancels_pending_and_says_so(make):
    """A stuck task cannot hold shutdown for ever."""
    executor, discards = make(queue_capacity=1)
    gate = start(executor)
    executor.submit(lambda: 2)
    assert not executor.shutdown(timeout=0)
    assert discards == [(2, "task cancelled by shutdown")]
    gate.open()
    assert executor.shutdown(PATIENCE)
    assert_identities(executor.metrics())


def test_shutdown_from_a_callback_does_not_wait_for_itself(make):
    """A worker that joined itself would never end."""
    executor, _ = make()
    answers = []
    executor.submit(lambda: 1, lambda _done: answers.append(executor.shutdown(PATIENCE)))
    eventually(lambda: answers)
    assert answers == [True]


def test_overload_from_many_threads_accepts_exactly_the_capacity(make):
    """64 submits against 5 places: 5 accepted, 59 refused, and everything agrees."""
    executor, _ = make(max_workers=2, max_inflight=2, queue_capacity=3)
    gates = [start(executor), start(executor)]
    barrier = threading.Barrier(8)
    answers = []

    def storm():
        barrier.wait()
        answers.extend([executor.submit(lambda: None) for _ in range(8)])

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sum(answer.accepted for answer in answers) == 3
    assert sorted(answer.task_id for answer in answers if answer.accepted) == [3, 4, 5]
    for gate in gates:
        gate.open()
    assert executor.wait_for_idle(PATIENCE)
    metrics = executor.metrics()
    assert (metrics.completed_count, metrics.rejected_count) == (5, 61)
    assert (metrics.max_inflight_count, metrics.max_outstanding_count) == (5, 5)


def test_the_budget_is_measured_around_the_work_alone():
    """Strictly more than the budget, failures included, callbacks excluded."""
    clock = ManualClock()
    with ThreadedTaskExecutor(
        ThreadedTaskExecutorConfig(task_budget=1.0, queue_capacity=3), clock=clock
    ) as executor:
        executor.submit(lambda: clock.advance(1.0), lambda _done: clock.advance(5))
        executor.submit(lambda: clock.advance(1.5))
        executor.submit(lambda: (clock.advance(2), fail("late")))
        assert executor.wait_for_idle(PATIENCE)
        assert executor.metrics().timeout_budget_exceeded_count == 2


def test_without_kept_completions_only_callbacks_tell():
    """No record is kept, so nothing has to be drained and admission is free again."""
    told = []
    with ThreadedTaskExecutor(keep_completions=False) as executor:
        for number in range(3):
            assert executor.submit(lambda number=number: number, told.append).accepted
            assert executor.wait_for_idle(PATIENCE)
        assert executor.run_ready() == []
        assert executor.metrics().completed_backlog_depth == 0
    assert [done.payload for done in told] == [0, 1, 2]


def test_metadata_travels_to_the_completion(make):
    """Whatever the embedder attached comes back."""
    executor, _ = make()
    executor.submit(lambda: 1, metadata={"order": 7})
    assert executor.wait_for_idle(PATIENCE)
    assert executor.run_ready()[0].metadata == {"order": 7}
