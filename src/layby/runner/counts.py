"""Checks counts that users pass in."""

from typing import Any

from layby.errors import UsageError


def at_least_one(count: Any, what: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{what} must be a whole number of at least 1, got {count!r}")
    return count
