"""Owns the executor that runs tasks one by one on the caller's thread; starts no thread."""

import time
from collections.abc import Callable

from layby.executors.cancellation import CancellationToken
from layby.executors.executor_config import TaskExecutorConfig, config_of
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.executor_reasons import PENDING_CANCELLED, TASK_CANCELLED, TOKEN_CANCELLED
from layby.executors.executor_state import ExecutorState
from layby.executors.health import HealthEventSink
from layby.executors.notifier import Notifier
from layby.executors.task_records import (
    CompletionCallback,
    DiscardCallback,
    Metadata,
    PlainTask,
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
        self._state = ExecutorState[PlainTask](
            config_of(config, TaskExecutorConfig), reports_load=False
        )
        self._notifier = Notifier(on_discard)
        self._clock = clock

    def submit(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission:
        state = self._state
        submission = state.admit(PlainTask(work, completion, metadata))
        if state.notices:
            self._notify()
        return submission

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Run pending work in order, and what it submits; `max_tasks` bounds an endless chain."""
        state, pending, budget = self._state, self._state.pending, self._state.budget
        completions: list[TaskCompletion] = []
        while pending and not 0 < max_tasks <= len(completions):
            if cancel_token is not None and cancel_token.cancel_requested():
                state.cancellations_seen += 1
                self._cancel_pending(TOKEN_CANCELLED)
                break
            task = pending.popleft()
            started = self._clock() if budget else 0.0
            try:
                # What `task.completed` does, inlined: here one call less is noticeable.
                outcome = (task.task_id, True, task.work(), "", task.metadata)
                completion = build(TaskCompletion, outcome)
                state.completed += 1
            except BaseException as error:
                completion = task.failed(error)
                state.failed += 1
                if isinstance(error, KeyboardInterrupt):
                    raise  # meant for the program, not for this task
            if budget:
                state.check_budget(self._clock() - started)
            if task.completion is not None:
                self._notifier.notify_completion(task, completion)
            completions.append(completion)
        return completions

    def cancel(self, task_id: int) -> bool:
        found = self._state.cancel(task_id, TASK_CANCELLED)
        self._notify()
        return found

    def cancel_pending(self) -> int:
        return self._cancel_pending(PENDING_CANCELLED)

    def metrics(self) -> TaskExecutorMetrics:
        return self._state.snapshot(
            running=self._running(), callback_errors=self._notifier.callback_errors
        )

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._notifier.sink = sink
        self._state.wants_events = sink is not None

    def shutdown(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - protocol
        """There is nothing to stop: no thread, and work runs only in `run_ready`."""
        return True

    def wait_for_idle(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - protocol
        """Whether nothing is pending. It does not wait: only the caller could run what is."""
        return self._state.is_idle() and not self._running()

    def _running(self) -> int:
        """Tasks that have left the queue and not ended; they do not count against the capacity."""
        state = self._state
        ended = state.completed + state.failed + state.cancelled
        return state.submitted - ended - len(state.pending)

    def _cancel_pending(self, reason: str) -> int:
        count = self._state.cancel_pending(reason)
        self._notify()
        return count

    def _notify(self) -> None:
        self._notifier.notify(self._state.take_notices())
