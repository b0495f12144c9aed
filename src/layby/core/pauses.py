"""How long to wait before something is tried again: ever longer, up to a longest."""

from collections.abc import Callable, Iterator
from itertools import count

from msgspec import Struct

_MOST_DOUBLINGS = 1_000
"""Beyond that no float can hold it."""


class Pauses(Struct, frozen=True):
    """In seconds; each is twice the one before."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, from 1."""
        return min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest)

    def __iter__(self) -> Iterator[float]:
        """Without an end."""
        return map(self.after, count(1))


def spread(pause: float, jitter: float, random: Callable[[], float]) -> float:
    """Longer or shorter by up to that part of it, so that a crowd spreads out."""
    return pause * (1 + jitter * (2 * random() - 1)) if jitter else pause
