"""Durations of tasks and policies, checked where they are given; what they mean is the wire's."""

from datetime import timedelta

from layby.errors import WorkflowError
from layby.wire.durations import limit_of, seconds_of

Duration = float | timedelta
"""Seconds, or a `timedelta`."""


def positive_limit(duration: Duration | None, what: str) -> float | None:
    """None, like infinity, is no limit."""
    limit = limit_of(duration, what, WorkflowError, positive=True)
    return None if limit is None else float(limit)


def nonnegative_seconds(duration: Duration, what: str) -> float:
    return float(seconds_of(duration, what, WorkflowError, finite=True))
