"""Takes parked tasks out of the garbage collector's sight, so that its full rounds stay short.

A full round visits every object: with ten thousand parked tasks that stops the process for a
third of a second. Objects frozen here are still freed when nobody refers to them any more; only
cycles among them wait until the worker stops.
"""

import gc

EVERY = 2_500
"""How many more tasks are parked before those that are get frozen."""


class GcFreezer:
    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._has_frozen = False
        self._next_at = EVERY

    def update(self, parked: int) -> None:
        """Freeze when many more are parked than when it last looked closely."""
        if self._is_on and parked >= self._next_at:
            gc.freeze()
            self._has_frozen = True
            self._next_at = parked + EVERY
        self._next_at = min(self._next_at, parked + EVERY)

    def close(self) -> None:
        if self._has_frozen:
            gc.unfreeze()
