import layby.executors
from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    ITaskExecutor,
    ProcessTaskExecutor,
    TaskExecutor,
    ThreadedTaskExecutor,
)


def test_the_public_names_are_these():
    """A name is added or taken away on purpose, never by accident."""
    assert sorted(layby.executors.__all__) == [
        "AsyncTaskExecutor",
        "AsyncTaskExecutorConfig",
        "CancellationSource",
        "CancellationToken",
        "DeterministicTaskExecutor",
        "HealthEvent",
        "HealthEventSink",
        "ITaskExecutor",
        "PoolClosed",
        "ProcessTaskExecutor",
        "ProcessTaskExecutorConfig",
        "SlotPool",
        "SlotToken",
        "TaskCompletion",
        "TaskExecutor",
        "TaskExecutorConfig",
        "TaskExecutorMetrics",
        "TaskSubmission",
        "ThreadSlotPool",
        "ThreadSlotToken",
        "ThreadedTaskExecutor",
        "ThreadedTaskExecutorConfig",
    ]
    assert all(hasattr(layby.executors, name) for name in layby.executors.__all__)


def test_the_interface_has_two_names():
    """Seed 002 calls it ITaskExecutor."""
    assert ITaskExecutor is TaskExecutor


def test_every_executor_offers_the_whole_protocol():
    """An embedder that asks for a TaskExecutor can be given any of them."""
    assert isinstance(DeterministicTaskExecutor(), TaskExecutor)
    assert isinstance(AsyncTaskExecutor(), TaskExecutor)
    with ThreadedTaskExecutor() as threaded:
        assert isinstance(threaded, TaskExecutor)
    with ProcessTaskExecutor() as process:
        assert isinstance(process, TaskExecutor)
