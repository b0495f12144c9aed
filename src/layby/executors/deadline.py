"""Owns the arithmetic of waiting until a moment that may never come."""

import time


class Deadline:
    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Say how many seconds are left, none below zero; None when there is no end."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())
