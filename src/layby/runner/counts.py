"""Checks counts that users pass in."""

from typing import Any

from layby.errors import UsageError


def at_least_one(count: Any, what: str) -> int:
    return _at_least(1, count, what)


def at_least_zero(count: Any, what: str) -> int:
    return _at_least(0, count, what)


def _at_least(least: int, count: Any, what: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise UsageError(f"{what} must be a whole number of at least {least}, got {count!r}")
    return count
