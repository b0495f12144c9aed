"""Owns what executors with worker threads share: one book, one lock, and the threads that empty it.

How a worker performs a task is given by its `Hands`; nothing here knows what they do.
"""

import atexit
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from layby.executors.bells import Bell, BellQueue, ThreadBell
from layby.executors.book import TaskBook
from layby.executors.cancellation import CancellationToken
from layby.executors.config import ThreadedTaskExecutorConfig
from layby.executors.deadline import Deadline
from layby.executors.health import HealthEventSink
from layby.executors.herald import Herald
from layby.executors.metrics import TaskExecutorMetrics
from layby.executors.reasons import (
    PENDING_CANCELLED,
    SHUTDOWN_CANCELLED,
    TASK_CANCELLED,
    TOKEN_CANCELLED,
)
from layby.executors.records import (
    CompletionCallback,
    DiscardCallback,
    Ending,
    Metadata,
    Task,
    TaskCompletion,
    TaskSubmission,
    Work,
)
from layby.executors.room import submit_when_room, submit_when_room_async


class Hands(Protocol):
    """What one worker thread performs tasks with."""

    task: Task | None
    """The task it was given, set while the executor's lock is held."""

    def perform(self, task: Task) -> Ending: ...

    def close(self) -> None: ...


class WorkerBackedExecutor:
    """Admission, records and life of a bounded crew of worker threads.

    Every method that changes the book ends in `_unlock`, the one place that decides who has to
    be woken and told, so that no change can forget somebody.
    """

    def __init__(
        self,
        config: ThreadedTaskExecutorConfig,
        crew: Sequence[Hands],
        *,
        on_discard: DiscardCallback | None,
        keep_completions: bool,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._clock = clock
        self._herald = Herald(on_discard)
        self._book = TaskBook[Task](config, keeps_completions=keep_completions)
        self._lock = threading.Lock()
        self._resting: list[ThreadBell] = []
        self._waiting_for_room = BellQueue()
        self._waiting_for_idle = BellQueue()
        self._threads = [
            threading.Thread(
                target=self._work, args=(hands,), name=f"layby-worker-{number}", daemon=True
            )
            for number, hands in enumerate(crew)
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
        task = Task(work, completion, metadata)
        self._lock.acquire()
        try:
            return self._book.admit(task)
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
        """Submit, waiting for room unless the policy is `fail_fast`. Too late, it is refused."""
        task = Task(work, completion, metadata)
        return submit_when_room(
            partial(self._submit_or_queue, task), partial(self._submit_at_last, task), timeout
        )

    async def submit_async(
        self,
        work: Work | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
    ) -> TaskSubmission:
        """Wait for room like `submit_wait`, without blocking the loop of the caller."""
        task = Task(work, completion, metadata)
        return await submit_when_room_async(partial(self._submit_or_queue, task), self._leave_queue)

    def _submit_or_queue(self, task: Task, bell: Bell, *, first: bool) -> TaskSubmission | None:
        self._lock.acquire()
        try:
            if not self._book.must_wait(task):
                return self._book.admit(task)
            self._waiting_for_room.join(bell, first=first)
            return None
        finally:
            self._unlock()

    def _submit_at_last(self, task: Task, bell: Bell) -> TaskSubmission:
        self._lock.acquire()
        try:
            self._waiting_for_room.leave(bell)
            return self._book.admit(task)
        finally:
            self._unlock()

    def _leave_queue(self, bell: Bell) -> None:
        self._lock.acquire()
        self._waiting_for_room.leave(bell)
        self._unlock()  # calls the next one, in case it was this bell that was rung

    # -- draining, cancelling, looking

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Drain records that workers produced. Runs nothing."""
        if cancel_token is None and not self._book.undrained:
            return []
        requested = cancel_token is not None and cancel_token.cancel_requested()
        self._lock.acquire()
        try:
            if requested:
                self._book.cancellations_seen += 1
                self._book.cancel_pending(TOKEN_CANCELLED)
            return self._book.drain(max_tasks)
        finally:
            self._unlock()

    def cancel(self, task_id: int) -> bool:
        """Cancel a task that has not started. A running thread cannot be stopped: False."""
        self._lock.acquire()
        try:
            return self._book.cancel(task_id, TASK_CANCELLED)
        finally:
            self._unlock()

    def cancel_pending(self) -> int:
        self._lock.acquire()
        try:
            return self._book.cancel_pending(PENDING_CANCELLED)
        finally:
            self._unlock()

    def metrics(self) -> TaskExecutorMetrics:
        with self._lock:
            return self._book.snapshot(callback_errors=self._herald.callback_errors)

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._herald.sink = sink
        self._book.wants_events = sink is not None

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending and nothing runs; undrained records do not matter."""
        bell = ThreadBell()
        with self._lock:
            if self._book.is_idle():
                return True
            self._waiting_for_idle.join(bell)
        if bell.wait(timeout):
            return True
        with self._lock:
            self._waiting_for_idle.leave(bell)
            return self._book.is_idle()

    # -- ending

    def shutdown(self, timeout: float | None = None) -> bool:
        """Refuse new work, finish or cancel what is pending by the policy, and end the workers.

        False when that took too long: what is still pending then is cancelled, and what runs is
        left to end by itself. Records can be drained afterwards.
        """
        atexit.unregister(self.shutdown)
        deadline = Deadline(timeout)
        self._lock.acquire()
        self._book.closing = True
        if self._config.shutdown_policy != "drain":
            self._book.cancel_pending(SHUTDOWN_CANCELLED)
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
        self._book.cancel_pending(SHUTDOWN_CANCELLED)
        self._unlock()

    def _join(self, deadline: Deadline) -> bool:
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(deadline.remaining())
        return not any(thread.is_alive() for thread in others)

    # -- working

    def _work(self, hands: Hands) -> None:
        bell = ThreadBell()
        budget = self._book.budget
        task = self._next_task(hands, bell)
        while task is not None:
            started = self._clock() if budget else 0.0
            ending = hands.perform(task)
            elapsed = self._clock() - started if budget else 0.0
            if task.completion is not None and isinstance(ending, TaskCompletion):
                self._herald.complete(task, ending)
            task = self._next_task(hands, bell, ending, elapsed)
        hands.close()

    def _next_task(
        self, hands: Hands, bell: ThreadBell, ending: Ending | None = None, elapsed: float = 0.0
    ) -> Task | None:
        """Record the last task and take the next in one step, since each locking has its price."""
        book = self._book
        self._lock.acquire()
        if ending is not None:
            self._record(ending, elapsed)
        while not book.pending and not book.closing:
            self._resting.append(bell)
            self._unlock()
            bell.wait()
            self._lock.acquire()
        hands.task = task = book.start() if book.pending else None
        self._unlock()
        return task

    def _record(self, ending: Ending, elapsed: float) -> None:
        book = self._book
        book.active -= 1
        if book.budget:
            book.note_elapsed(elapsed)
        if isinstance(ending, TaskCompletion):
            book.tally(ending)
            book.keep(ending)
        else:
            book.discard(ending)

    def _unlock(self) -> None:
        """Wake whom the change concerns, let go, and tell what there is to tell."""
        book = self._book
        if book.closing:
            self._wake_for_closing()
        elif self._resting and book.pending:
            self._resting.pop().ring()
        if self._waiting_for_room:
            self._waiting_for_room.ring(book.room())
        if self._waiting_for_idle and book.is_idle():
            self._waiting_for_idle.ring_all()
        notices = book.take_notices() if book.notices else None
        self._lock.release()
        if notices:
            self._herald.tell(notices)

    def _wake_for_closing(self) -> None:
        self._waiting_for_room.ring_all()
        while self._resting:
            self._resting.pop().ring()
