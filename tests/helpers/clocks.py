"""A clock for engines under test."""

from layby.core.model import Millis


class ManualClock:
    """Time that passes only when told to."""

    def __init__(self, now: Millis = 0) -> None:
        self._now = now
        self._elapsed: Millis = 0

    def now(self) -> Millis:
        return self._now

    def elapsed(self) -> Millis:
        return self._elapsed

    def advance(self, by_ms: Millis) -> Millis:
        """Let time pass."""
        self._now += by_ms
        self._elapsed += by_ms
        return self._now

    def set(self, now: Millis) -> None:
        """Put the wall forward or back; no time passes."""
        self._now = now
