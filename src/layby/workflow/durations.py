"""Durations as users give them, checked where they are given."""

import math
from datetime import timedelta

from layby.errors import WorkflowError

Duration = float | timedelta
"""Seconds, or a `timedelta`."""


def positive_seconds(duration: Duration, what: str) -> float:
    seconds = _seconds(duration, what)
    if seconds <= 0:
        raise WorkflowError(f"{what} must be above 0 seconds, got {duration!r}")
    return seconds


def nonnegative_seconds(duration: Duration, what: str) -> float:
    seconds = _seconds(duration, what)
    if seconds < 0:
        raise WorkflowError(f"{what} must not be negative, got {duration!r}")
    return seconds


def _seconds(duration: object, what: str) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise WorkflowError(f"{what} must be seconds or a timedelta, got {duration!r}")
    if not math.isfinite(duration):
        raise WorkflowError(f"{what} must be a finite number of seconds, got {duration!r}")
    return float(duration)
