"""Hides parked tasks from the garbage collector (`gc.freeze`), so that full collections stay short.

A full collection visits every object: with ten thousand parked tasks it stops the process for a
third of a second. Frozen objects are still freed when nothing refers to them any more; only cycles
among them are kept until the worker stops.
"""

import gc

EVERY = 2_500
"""How many more tasks must be parked before the next freeze."""


class GcFreezer:
    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._has_frozen = False
        self._next_at = EVERY

    def update(self, parked: int) -> None:
        """Freeze when many more are parked than at the last freeze."""
        if self._is_on and parked >= self._next_at:
            gc.freeze()
            self._has_frozen = True
            self._next_at = parked + EVERY
        self._next_at = min(self._next_at, parked + EVERY)

    def close(self) -> None:
        if self._has_frozen:
            gc.unfreeze()
