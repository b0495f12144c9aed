"""A batch that met another process on the same rows is replayed: steps are pure."""

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

from msgspec import Struct

from layby.errors import StoreBusy
from layby.store.api import RowLocked, StoreConflict

T = TypeVar("T")

MOST_REPLAYS: Final = 8
PAUSE_S: Final = 0.002
"""Before the second replay; before each later one it is twice as long."""


class Needed(Struct, frozen=True):
    """What was found to be locked as well, when it was done before."""

    ids: frozenset[str] = frozenset()
    pids: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()

    def with_more(self, conflict: StoreConflict) -> "Needed":
        return Needed(
            self.ids | conflict.ids, self.pids | conflict.pids, self.limits | conflict.limits
        )


NOTHING_MORE: Final = Needed()


def replayed(once: Callable[[Needed], T], pause: Callable[[float], object]) -> tuple[T, int]:
    """What it brings in the end, and how often it was replayed."""
    needed, last = NOTHING_MORE, StoreConflict()
    for number in range(MOST_REPLAYS):
        try:
            return once(needed), number
        except RowLocked as locked:
            why = "somebody keeps a row of this locked: try again, or look for an open transaction"
            raise HeldUp(why) from locked
        except StoreConflict as conflict:
            needed = needed.with_more(conflict)
            last = conflict
        if number:
            pause(PAUSE_S * 2 ** (number - 1) * random.uniform(0.5, 1.5))  # noqa: S311
    raise Contended(f"other processes kept changing the same rows ({last}): try again") from last


@contextmanager
def told_at_once() -> Generator[None]:
    """Around what nobody replays, such as the opening of a store."""
    try:
        yield
    except StoreConflict as conflict:
        raise Contended(f"{conflict}: try again, or look for an open transaction") from conflict


class Contended(StoreBusy):
    """Replaying the batch as a whole did not help; its halves may be luckier."""


class HeldUp(Contended):
    """Somebody keeps a row locked. Whoever does not need it should not wait for that."""
