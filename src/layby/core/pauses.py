"""How long to wait before trying again: longer each time, up to a maximum."""

from collections.abc import Callable, Iterator
from itertools import count

from msgspec import Struct

_MOST_DOUBLINGS = 1_000
"""Beyond that it does not fit into a float."""


class Pauses(Struct, frozen=True):
    """In seconds; each is twice the one before."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after this many failures in a row, counted from 1."""
        return min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest)

    def __iter__(self) -> Iterator[float]:
        """All pauses in order, endlessly."""
        return map(self.after, count(1))


def spread(pause: float, jitter: float, random: Callable[[], float]) -> float:
    """Longer or shorter by up to this fraction, so that a crowd spreads out."""
    return pause * (1 + jitter * (2 * random() - 1)) if jitter else pause
