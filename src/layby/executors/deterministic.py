"""Owns the executor that runs tasks one by one on the caller's thread; starts no thread."""

import time
from collections.abc import Callable

from layby.executors.book import TaskBook
from layby.executors.cancellation import CancellationToken
from layby.executors.config import TaskExecutorConfig
from layby.executors.health import HealthEventSink
from layby.executors.herald import Herald
from layby.executors.metrics import TaskExecutorMetrics
from layby.executors.reasons import PENDING_CANCELLED, TASK_CANCELLED, TOKEN_CANCELLED
from layby.executors.records import (
    CompletionCallback,
    DiscardCallback,
    Metadata,
    Task,
    TaskCompletion,
    TaskSubmission,
    Work,
    build,
)


class DeterministicTaskExecutor:
    """FIFO, synchronous, for one thread: the same calls give the same order every time."""

    def __init__(
        self,
        config: TaskExecutorConfig | None = None,
        *,
        on_discard: DiscardCallback | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = TaskBook[Task](config or TaskExecutorConfig(), itemises_load=False)
        self._herald = Herald(on_discard)
        self._clock = clock

    def submit(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission:
        book = self._book
        submission = book.admit(Task(work, completion, metadata))
        if book.notices:
            self._tell()
        return submission

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Run pending work in order, and what it submits; `max_tasks` bounds an endless chain."""
        book, pending, budget = self._book, self._book.pending, self._book.budget
        completions: list[TaskCompletion] = []
        while pending and not 0 < max_tasks <= len(completions):
            if cancel_token is not None and cancel_token.cancel_requested():
                book.cancellations_seen += 1
                self._cancel_pending(TOKEN_CANCELLED)
                break
            task = pending.popleft()
            started = self._clock() if budget else 0.0
            try:
                # As `task.completed` does; a call less counts where nothing else is done.
                outcome = (task.task_id, True, task.work(), "", task.metadata)
                completion = build(TaskCompletion, outcome)
                book.completed += 1
            except BaseException as error:
                completion = task.failed(error)
                book.failed += 1
                if isinstance(error, KeyboardInterrupt):
                    raise  # meant for the program, not for this task
            if budget:
                book.note_elapsed(self._clock() - started)
            if task.completion is not None:
                self._herald.complete(task, completion)
            completions.append(completion)
        return completions

    def cancel(self, task_id: int) -> bool:
        found = self._book.cancel(task_id, TASK_CANCELLED)
        self._tell()
        return found

    def cancel_pending(self) -> int:
        return self._cancel_pending(PENDING_CANCELLED)

    def metrics(self) -> TaskExecutorMetrics:
        return self._book.snapshot(
            running=self._running(), callback_errors=self._herald.callback_errors
        )

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._herald.sink = sink
        self._book.wants_events = sink is not None

    def shutdown(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - protocol
        """There is nothing to stop: no thread, and no work but what `run_ready` is asked for."""
        return True

    def wait_for_idle(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - protocol
        """Say whether nothing is pending. Nobody else could run it, so there is no waiting."""
        return self._book.is_idle() and not self._running()

    def _running(self) -> int:
        """Count what has left the queue and not yet ended: it counts against nothing."""
        book = self._book
        ended = book.completed + book.failed + book.cancelled
        return book.submitted - ended - len(book.pending)

    def _cancel_pending(self, reason: str) -> int:
        count = self._book.cancel_pending(reason)
        self._tell()
        return count

    def _tell(self) -> None:
        self._herald.tell(self._book.take_notices())
