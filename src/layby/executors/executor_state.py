"""Owns an executor's queue, records and counters, and moves them together.

It takes no lock and calls no callback. The executor locks it, and sends the notices it collects.
"""

from collections import deque
from typing import Generic, TypeVar

from layby.executors.admission import Load, decide, may_wait_for_room
from layby.executors.executor_config import OverflowPolicy, TaskExecutorConfig, seconds
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.executor_reasons import DROPPED, EMPTY_WORK, SHUTTING_DOWN
from layby.executors.health import HealthEvent
from layby.executors.notifier import Notice
from layby.executors.task_records import (
    AdmittedTask,
    Discard,
    TaskCompletion,
    TaskSubmission,
    build,
)

T = TypeVar("T", bound=AdmittedTask)


class ExecutorState(Generic[T]):
    __slots__ = (
        "active",
        "budget",
        "budget_exceeded",
        "cancellations_seen",
        "cancelled",
        "capacity",
        "closing",
        "completed",
        "failed",
        "keeps_completions",
        "max_inflight",
        "max_outstanding",
        "notices",
        "overflow",
        "parked",
        "pending",
        "rejected",
        "reports_load",
        "submitted",
        "undrained",
        "wants_events",
    )

    def __init__(
        self,
        config: TaskExecutorConfig,
        *,
        keeps_completions: bool = True,
        reports_load: bool = True,
    ) -> None:
        self.overflow: OverflowPolicy = config.overflow
        self.capacity = config.admission_capacity
        self.budget = seconds(config.task_budget)
        self.keeps_completions = keeps_completions
        self.reports_load = reports_load
        self.closing = False
        self.wants_events = False
        self.pending: deque[T] = deque()
        self.undrained: deque[TaskCompletion] = deque()
        self.notices: list[Notice] = []
        self.submitted = self.completed = self.failed = self.cancelled = self.rejected = 0
        self.active = self.parked = 0
        self.cancellations_seen = self.budget_exceeded = 0
        self.max_inflight = self.max_outstanding = 0

    # -- admission

    def admit(self, task: T) -> TaskSubmission:
        """Accept the task into `pending`, or refuse it for the first reason that applies."""
        if task.work is None:
            return self.refuse(EMPTY_WORK)
        if self.closing:
            return self.refuse(SHUTTING_DOWN)
        pending = self.pending
        inflight = len(pending) + self.active
        outstanding = inflight + len(self.undrained)
        if outstanding >= self.capacity:
            decision = decide(self.overflow, self.capacity, self.load())
            if decision.reason:
                return self.refuse(decision.reason)
            self.discard(Discard(pending.popleft().task_id, DROPPED))
        else:
            if inflight >= self.max_inflight:
                self.max_inflight = inflight + 1
            if outstanding >= self.max_outstanding:
                self.max_outstanding = outstanding + 1
        number = self.submitted + 1
        self.submitted = task.task_id = number
        pending.append(task)
        return build(TaskSubmission, (True, number, ""))

    def should_wait(self, task: T) -> bool:
        """Whether a submitter that can wait should wait for room instead of being refused."""
        return (
            task.work is not None
            and not self.closing
            and may_wait_for_room(self.overflow, self.capacity, self.load())
        )

    def load(self) -> Load:
        return Load(len(self.pending), self.active, len(self.undrained))

    def openings(self) -> int:
        """How many who wait for room may try again; where the oldest gives way, the next one."""
        return max(self.capacity - self.load().outstanding, 1 if self.is_giving_way() else 0)

    def is_giving_way(self) -> bool:
        """Whether it is full, and the oldest is dropped for whoever comes next."""
        return decide(self.overflow, self.capacity, self.load()).drops_oldest

    def refuse(self, reason: str) -> TaskSubmission:
        self.rejected += 1
        if self.wants_events:
            self.notices.append(self._rejection(reason))
        return TaskSubmission(accepted=False, reason=reason)

    def _rejection(self, reason: str) -> HealthEvent:
        load = self.load()
        return HealthEvent(
            "task_reject",
            source="task_executor",
            policy=self.overflow,
            reason=reason,
            depth=load.outstanding,
            capacity=self.capacity,
            attributes=self._load_attributes(load) if self.reports_load else {},
        )

    def _load_attributes(self, load: Load) -> dict[str, str]:
        return {
            "pending_depth": str(load.pending),
            "active_count": str(load.active),
            "completed_backlog_depth": str(load.undrained),
            "admission_capacity": str(self.capacity),
        }

    # -- running

    def start(self) -> T:
        """Take the oldest pending task and count it as running."""
        self.active += 1
        return self.pending.popleft()

    def count_completion(self, completion: TaskCompletion) -> None:
        """Count the end of a task that ran; the caller lowers `active` or `parked`."""
        if completion.ok:
            self.completed += 1
        else:
            self.failed += 1

    def keep(self, completion: TaskCompletion) -> None:
        """Make the record visible to `drain`."""
        if self.keeps_completions:
            self.undrained.append(completion)
            self.update_high_water()

    def check_budget(self, elapsed: float) -> None:
        if elapsed > self.budget:
            self.budget_exceeded += 1

    def drain(self, max_tasks: int) -> list[TaskCompletion]:
        if 0 < max_tasks < len(self.undrained):
            return [self.undrained.popleft() for _ in range(max_tasks)]
        drained = list(self.undrained)
        self.undrained.clear()
        return drained

    def is_idle(self) -> bool:
        return not (self.pending or self.active or self.parked)

    def take_notices(self) -> list[Notice]:
        """Take the notices that this caller has to send; call it before the lock is released."""
        notices, self.notices = self.notices, []
        return notices

    # -- cancellation

    def cancel_pending(self, reason: str) -> int:
        count = len(self.pending)
        while self.pending:
            self.discard(Discard(self.pending.popleft().task_id, reason))
        return count

    def cancel(self, task_id: int, reason: str) -> bool:
        for task in self.pending:
            if task.task_id == task_id:
                self.pending.remove(task)
                self.discard(Discard(task_id, reason))
                return True
        return False

    def discard(self, discard: Discard) -> None:
        """Count the end of a task that will have no completion."""
        self.cancelled += 1
        self.notices.append(discard)

    # -- metrics

    def update_high_water(self) -> None:
        inflight = len(self.pending) + self.active
        self.max_inflight = max(self.max_inflight, inflight)
        outstanding = inflight + len(self.undrained)
        self.max_outstanding = max(self.max_outstanding, outstanding)

    def snapshot(self, *, running: int = 0, callback_errors: int = 0) -> TaskExecutorMetrics:
        return TaskExecutorMetrics(
            submitted_count=self.submitted,
            queued_count=self.submitted,
            active_count=self.active + running,
            completed_count=self.completed,
            cancelled_count=self.cancelled,
            rejected_count=self.rejected,
            failed_count=self.failed,
            cancellation_requested_count=self.cancellations_seen,
            cancellation_observed_count=self.cancellations_seen,
            timeout_budget_exceeded_count=self.budget_exceeded,
            max_inflight_count=self.max_inflight,
            max_outstanding_count=self.max_outstanding,
            queue_depth=len(self.pending),
            completed_backlog_depth=len(self.undrained),
            parked_count=self.parked,
            callback_error_count=callback_errors,
        )
