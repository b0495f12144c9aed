"""Owns cooperative cancellation: a flag that one side raises and the other side checks."""

import threading
from collections.abc import Callable
from typing import Self


class _Flag:
    __slots__ = ("lock", "observed", "predicate", "raised")

    def __init__(self, predicate: Callable[[], bool] | None = None) -> None:
        self.raised = False
        self.observed = 0
        self.predicate = predicate
        self.lock = threading.Lock()


class CancellationToken:
    """Says whether to stop. A token without a source is never cancelled."""

    __slots__ = ("_flag",)

    def __init__(self, flag: _Flag | None = None) -> None:
        self._flag = flag or _Flag()

    @classmethod
    def from_callback(cls, predicate: Callable[[], bool]) -> Self:
        return cls(_Flag(predicate))

    def requested(self) -> bool:
        """As `cancel_requested`, but not counted in `observed_count`."""
        flag = self._flag
        return flag.raised or (flag.predicate is not None and bool(flag.predicate()))

    def cancel_requested(self) -> bool:
        if not self.requested():
            return False
        with self._flag.lock:
            self._flag.observed += 1
        return True

    def observed_count(self) -> int:
        return self._flag.observed


class CancellationSource:
    """Raises the flag that all its tokens see, from any thread."""

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = _Flag()

    def token(self) -> CancellationToken:
        return CancellationToken(self._flag)

    def request_cancel(self) -> None:
        self._flag.raised = True

    def cancel_requested(self) -> bool:
        return self._flag.raised
