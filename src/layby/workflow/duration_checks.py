"""Durations as users give them, checked where they are given."""

from datetime import timedelta

from layby.errors import WorkflowError
from layby.wire.durations import seconds_of

Duration = float | timedelta
"""Seconds, or a `timedelta`."""


def positive_seconds(duration: Duration, what: str) -> float:
    return float(seconds_of(duration, what, WorkflowError, finite=True, positive=True))


def nonnegative_seconds(duration: Duration, what: str) -> float:
    return float(seconds_of(duration, what, WorkflowError, finite=True))
