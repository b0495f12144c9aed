"""Tasks run one by one, in order, when you say so: python examples/executors/deterministic.py"""

from functools import partial

from layby.executors import (
    DeterministicTaskExecutor,
    HealthEventSink,
    TaskExecutorConfig,
)


def divide_ten_by(number: int) -> int:
    return 10 // number


def main() -> None:
    sink = HealthEventSink()
    executor = DeterministicTaskExecutor(
        TaskExecutorConfig(max_inflight=2, queue_capacity=1, overflow="reject"),
        on_discard=lambda task_id, reason: print(f"task {task_id} will not run: {reason}"),
    )
    executor.set_health_event_sink(sink)

    for number in range(4):  # there is room for three
        submission = executor.submit(partial(divide_ten_by, number))
        print(f"submit {number}: {submission.accepted=}, {submission.reason=}")
    executor.cancel(3)

    for done in executor.run_ready():  # a failure is a record, never an exception
        print(f"task {done.task_id}: {done.payload if done.ok else done.error}")
    print(f"refusals seen by the sink: {[event.reason for event in sink.snapshot()]}")
    print(executor.metrics())


if __name__ == "__main__":
    main()
