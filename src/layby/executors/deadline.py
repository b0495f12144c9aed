"""Owns how much time is left until a deadline, if there is one."""

import math
import threading
import time


class Deadline:
    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        """None, and infinity, are no deadline."""
        if timeout is not None and math.isnan(timeout):
            raise ValueError("a timeout must be a number of seconds, got nan")
        is_endless = timeout is None or timeout >= threading.TIMEOUT_MAX
        self._at = None if timeout is None or is_endless else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None when there is no deadline."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())
