"""Owns the snapshot of an executor's counters and gauges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskExecutorMetrics:
    """At every snapshot `submitted_count` is the sum of `completed_count`, `failed_count`,
    `cancelled_count`, `queue_depth`, `active_count` and `parked_count`.
    """

    submitted_count: int = 0
    queued_count: int = 0
    active_count: int = 0
    completed_count: int = 0
    cancelled_count: int = 0
    rejected_count: int = 0
    failed_count: int = 0
    cancellation_requested_count: int = 0
    cancellation_observed_count: int = 0
    timeout_budget_exceeded_count: int = 0
    max_inflight_count: int = 0
    """High-water mark of pending plus active work."""
    max_outstanding_count: int = 0
    """High-water mark of pending, active and undrained work."""
    queue_depth: int = 0
    completed_backlog_depth: int = 0
    parked_count: int = 0
    """Tasks that have released their slot while they wait; asynchronous executors only."""
    callback_error_count: int = 0
    """Completion and discard callbacks that raised."""
