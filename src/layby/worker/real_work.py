"""Counts work outside the event loop, for virtual time, which must not overtake it.

A worker counts its thread and process bodies here. Under virtual time the clock stands still while
the count is above zero; otherwise nobody reads it.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar


class RealWork:
    """How many bodies run in threads and processes now. Thread-safe.

    The side that hands over does the counting: `begin()` on the loop before a body starts, `end()`
    when its result is on its way to the loop. A body that waits for the loop (a blocking handle)
    calls `end()` after its request, and the loop calls `begin()` just before it answers; if the
    thread called it, time could jump before the thread was scheduled.
    """

    def __init__(self, on_idle: Callable[[], None] = lambda: None) -> None:
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def begin(self) -> None:
        with self._lock:
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            is_idle = self._count == 0
        if is_idle:
            self._on_idle()

    @contextmanager
    def busy(self) -> Generator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()


current_work: ContextVar[RealWork | None] = ContextVar("layby_real_work", default=None)
"""Set by virtual time for the tasks under it."""

_unread = RealWork()


def real_work() -> RealWork:
    """The count of this context. Call it once, on the loop, and keep it: threads have another."""
    return current_work.get() or _unread
