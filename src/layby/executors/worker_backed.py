"""Owns what executors with worker threads share: one state, one lock, and those threads.

How a worker runs a task is up to its `TaskRunner`.
"""

import atexit
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from layby.executors.cancellation import CancellationToken
from layby.executors.deadline import Deadline
from layby.executors.executor_config import ThreadedTaskExecutorConfig
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.executor_reasons import (
    PENDING_CANCELLED,
    SHUTDOWN_CANCELLED,
    TASK_CANCELLED,
    TOKEN_CANCELLED,
)
from layby.executors.executor_state import ExecutorState
from layby.executors.health import HealthEventSink
from layby.executors.notifier import Notifier
from layby.executors.submit_wait import submit_when_room, submit_when_room_async
from layby.executors.task_records import (
    CompletionCallback,
    DiscardCallback,
    Ending,
    Metadata,
    PlainTask,
    TaskCompletion,
    TaskSubmission,
    Work,
)
from layby.executors.wakers import ThreadWaker, Waker, WakerQueue


class TaskRunner(Protocol):
    """Runs the tasks of one worker thread."""

    task: PlainTask | None
    """The task it was given, set while the executor's lock is held."""

    def run(self, task: PlainTask) -> Ending: ...

    def close(self) -> None: ...


class WorkerBackedExecutor:
    """Admission, records and lifetime of a fixed number of worker threads.

    Every method that changes the state ends in `_unlock`, the one place that decides who has to
    be woken and notified, so that no change can forget anybody.
    """

    def __init__(
        self,
        config: ThreadedTaskExecutorConfig,
        runners: Sequence[TaskRunner],
        *,
        on_discard: DiscardCallback | None,
        keep_completions: bool,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._clock = clock
        self._notifier = Notifier(on_discard)
        self._state = ExecutorState[PlainTask](config, keeps_completions=keep_completions)
        self._lock = threading.Lock()
        self._idle_workers: list[ThreadWaker] = []
        self._waiting_for_room = WakerQueue()
        self._waiting_for_idle = WakerQueue()
        self._threads = [
            threading.Thread(
                target=self._work, args=(runner,), name=f"layby-worker-{number}", daemon=True
            )
            for number, runner in enumerate(runners)
        ]
        for thread in self._threads:
            thread.start()
        # Daemon threads die with the interpreter; accepted work must not.
        atexit.register(self.shutdown)

    # -- submitting

    def submit(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission:
        task = PlainTask(work, completion, metadata)
        self._lock.acquire()
        try:
            return self._state.admit(task)
        finally:
            self._unlock()

    def submit_wait(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
        *,
        timeout: float | None = None,
    ) -> TaskSubmission:
        """Submit, waiting for room unless the policy is `fail_fast`; refused after `timeout`."""
        task = PlainTask(work, completion, metadata)
        return submit_when_room(
            partial(self._submit_or_queue, task),
            partial(self._submit_without_waiting, task),
            timeout,
        )

    async def submit_async(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission:
        """Wait for room like `submit_wait`, without blocking the loop of the caller."""
        task = PlainTask(work, completion, metadata)
        return await submit_when_room_async(partial(self._submit_or_queue, task), self._leave_queue)

    def _submit_or_queue(
        self, task: PlainTask, waker: Waker, *, first: bool
    ) -> TaskSubmission | None:
        self._lock.acquire()
        try:
            if not self._state.should_wait(task):
                return self._state.admit(task)
            self._waiting_for_room.join(waker, first=first)
            return None
        finally:
            self._unlock()

    def _submit_without_waiting(self, task: PlainTask, waker: Waker) -> TaskSubmission:
        self._lock.acquire()
        try:
            self._waiting_for_room.leave(waker)
            return self._state.admit(task)
        finally:
            self._unlock()

    def _leave_queue(self, waker: Waker) -> None:
        self._lock.acquire()
        self._waiting_for_room.leave(waker)
        self._unlock()  # wakes the next one, in case this one had been woken

    # -- draining, cancelling, inspecting

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Drain records that workers produced. Runs nothing."""
        if cancel_token is None and not self._state.undrained:
            return []
        requested = cancel_token is not None and cancel_token.cancel_requested()
        self._lock.acquire()
        try:
            if requested:
                self._state.cancellations_seen += 1
                self._state.cancel_pending(TOKEN_CANCELLED)
            return self._state.drain(max_tasks)
        finally:
            self._unlock()

    def cancel(self, task_id: int) -> bool:
        """Cancel a task that has not started. A running thread cannot be stopped: False."""
        self._lock.acquire()
        try:
            return self._state.cancel(task_id, TASK_CANCELLED)
        finally:
            self._unlock()

    def cancel_pending(self) -> int:
        self._lock.acquire()
        try:
            return self._state.cancel_pending(PENDING_CANCELLED)
        finally:
            self._unlock()

    def metrics(self) -> TaskExecutorMetrics:
        with self._lock:
            return self._state.snapshot(callback_errors=self._notifier.callback_errors)

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._notifier.sink = sink
        self._state.wants_events = sink is not None

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending and nothing runs; undrained records do not matter."""
        deadline = Deadline(timeout)
        waker = ThreadWaker()
        with self._lock:
            if self._state.is_idle():
                return True
            self._waiting_for_idle.join(waker)
        if waker.wait(deadline.remaining()):
            return True
        with self._lock:
            self._waiting_for_idle.leave(waker)
            return self._state.is_idle()

    # -- ending

    def shutdown(self, timeout: float | None = None) -> bool:
        """Refuse new work, finish or cancel what is pending by the policy, and end the workers.

        False when that took too long: what is still pending then is cancelled, and what runs is
        left to end by itself. Records can be drained afterwards.
        """
        atexit.unregister(self.shutdown)
        deadline = Deadline(timeout)
        self._lock.acquire()
        self._state.closing = True
        if self._config.shutdown_policy != "drain":
            self._state.cancel_pending(SHUTDOWN_CANCELLED)
        self._unlock()
        if self._join(deadline):
            return True
        self._give_up()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _give_up(self) -> None:
        self._lock.acquire()
        self._state.cancel_pending(SHUTDOWN_CANCELLED)
        self._unlock()

    def _join(self, deadline: Deadline) -> bool:
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(deadline.remaining())
        return not any(thread.is_alive() for thread in others)

    # -- working

    def _work(self, runner: TaskRunner) -> None:
        waker = ThreadWaker()
        budget = self._state.budget
        task = self._next_task(runner, waker)
        while task is not None:
            started = self._clock() if budget else 0.0
            ending = runner.run(task)
            elapsed = self._clock() - started if budget else 0.0
            if task.completion is not None and isinstance(ending, TaskCompletion):
                self._notifier.notify_completion(task, ending)
            task = self._next_task(runner, waker, ending, elapsed)
        runner.close()

    def _next_task(
        self,
        runner: TaskRunner,
        waker: ThreadWaker,
        ending: Ending | None = None,
        elapsed: float = 0.0,
    ) -> PlainTask | None:
        """Record the last task and take the next under one lock, since each locking takes time."""
        state = self._state
        self._lock.acquire()
        if ending is not None:
            self._record(ending, elapsed)
        while not state.pending and not state.closing:
            self._idle_workers.append(waker)
            self._unlock()
            waker.wait()
            self._lock.acquire()
        runner.task = task = state.start() if state.pending else None
        self._unlock()
        return task

    def _record(self, ending: Ending, elapsed: float) -> None:
        state = self._state
        state.active -= 1
        if state.budget:
            state.check_budget(elapsed)
        if isinstance(ending, TaskCompletion):
            state.count_completion(ending)
            state.keep(ending)
        else:
            state.discard(ending)

    def _unlock(self) -> None:
        """Wake everyone the change affects, release the lock, and send the notices."""
        state = self._state
        if state.closing:
            self._wake_for_closing()
        elif self._idle_workers and state.pending:
            self._idle_workers.pop().wake()
        if self._waiting_for_room:
            self._waiting_for_room.wake(state.openings())
        if self._waiting_for_idle and state.is_idle():
            self._waiting_for_idle.wake_all()
        notices = state.take_notices() if state.notices else None
        self._lock.release()
        if notices:
            self._notifier.notify(notices)

    def _wake_for_closing(self) -> None:
        self._waiting_for_room.wake_all()
        while self._idle_workers:
            self._idle_workers.pop().wake()
