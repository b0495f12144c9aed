"""How many requests of a large batch are carried out at once: few, unless nobody else is there.

Each slice is a commit, so small ones cost their caller time; large ones cost it everybody who waits
meanwhile. A caller that has been alone for some slices gets large ones, until somebody else asks.
"""

from collections.abc import Hashable
from typing import Final

SLICE: Final = 64
"""Requests at most: others wait for the writer only as long as these take."""
ALONE: Final = 4 * SLICE
"""For a caller that is alone."""
LONELY: Final = 8
"""After so many slices in a row nobody else seems to be there."""


class SliceSizes:
    def __init__(self) -> None:
        self._last: Hashable = None
        self._in_a_row = 0

    def note(self, caller: Hashable) -> None:
        """It asks for something."""
        if caller != self._last:
            self._last, self._in_a_row = caller, 0

    def next(self, caller: Hashable) -> int:
        """The size of the next slice of this caller."""
        self.note(caller)
        self._in_a_row += 1
        return ALONE if self._in_a_row > LONELY else SLICE
