"""Owns how much time is left until a deadline, if there is one."""

import time


class Deadline:
    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None when there is no deadline."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())
