from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    ITaskExecutor,
    ProcessTaskExecutor,
    TaskExecutor,
    ThreadedTaskExecutor,
)


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
