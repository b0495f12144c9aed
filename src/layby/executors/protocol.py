"""Owns the interface that all executors share; embedders should depend on nothing else."""

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from layby.executors.cancellation import CancellationToken
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.health import HealthEventSink
from layby.executors.task_records import (
    CompletionCallback,
    Metadata,
    TaskCompletion,
    TaskSubmission,
    Work,
)


@runtime_checkable
class TaskExecutor(Protocol):
    """Bounded task execution. On an event loop, `shutdown` and `wait_for_idle` are awaited."""

    def submit(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission: ...

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]: ...

    def cancel(self, task_id: int) -> bool: ...

    def cancel_pending(self) -> int: ...

    def metrics(self) -> TaskExecutorMetrics: ...

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None: ...

    def shutdown(self, timeout: float | None = None) -> bool | Awaitable[bool]: ...

    def wait_for_idle(self, timeout: float | None = None) -> bool | Awaitable[bool]: ...
