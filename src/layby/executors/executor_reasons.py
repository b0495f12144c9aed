"""Owns every reason an executor gives for work it refused or did not finish."""

EMPTY_WORK = "task work must not be empty"
SHUTTING_DOWN = "task executor is shutting down"
QUEUE_FULL = "task executor queue full"
CAPACITY_EXCEEDED = "task executor capacity exceeded"
COMPLETED_BACKLOG_FULL = "task executor completed backlog full"

DROPPED = "task dropped to make room"
PENDING_CANCELLED = "pending tasks cancelled"
TOKEN_CANCELLED = "pending tasks cancelled by token"  # noqa: S105 - not a password
TASK_CANCELLED = "task cancelled"
SHUTDOWN_CANCELLED = "task cancelled by shutdown"
POOL_CLOSED = "slot pool closed"

COMPLETION_RAISED = "completion callback raised"
DISCARD_RAISED = "discard callback raised"
