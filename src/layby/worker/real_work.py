"""Counts what goes on outside the event loop, for whoever must not overtake it.

A worker brackets its thread and process bodies with it. Under virtual time the count holds the
clock still until real work has answered; in ordinary life nobody looks at it.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar


class RealWork:
    """How many bodies run in threads and processes now. Every method may be called anywhere.

    Whoever hands over counts: `begin()` on the loop before a body starts, `end()` when its result
    is already on the way to the loop. A body that waits for the loop (a blocking handle) calls
    `end()` once it has asked, and the loop calls `begin()` just before it lets it go on; were
    the thread to call it, time could jump before the thread had its turn.
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

_nobody_looks = RealWork()


def real_work() -> RealWork:
    """Return the count of this context. Ask once, on the loop, and keep it: threads have others."""
    return current_work.get() or _nobody_looks
