"""How much there is, for gauges and overviews. Only what a store can count quickly."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from layby.core.kinds import Sender, declare
from layby.core.model import Millis, Promise, Task, TaskState
from layby.core.queries import Query, Reader
from layby.core.replies import Reply, ok
from layby.core.search import projected
from layby.core.waits import waiting_of

COUNTED: Final = 250_000
"""Counting stops here, so that a huge store does not hold up the writer: it means 'or more'."""
LONGEST: Final = 200
"""How many of the longest waits are looked at for the oldest of each kind."""
LIVING: Final[tuple[TaskState, ...]] = ("pending", "acquired", "suspended", "halted")


class StatsData(Struct, frozen=True, rename="camel"):
    now: Millis
    tasks: dict[str, int]
    """By stored state, without the fulfilled: those only grow. At most `COUNTED` each."""
    oldest_waits: dict[str, Millis]
    """By kind of wait: when the oldest began; only among the `LONGEST`."""
    outbox: int
    holders: int
    """Living worker processes."""
    held: int
    """Tasks they hold."""
    schedules: int
    triggers_untaken: int = 0
    """Triggers that nobody runs: for want of room, of their class, or of leave to poll."""
    permits_held: int = 0
    """Permits of all limits that are out."""
    permits_awaited: int = 0
    """Tasks that wait for one; at most `COUNTED`."""
    store_time_ahead: Millis = 0
    """How far store time is ahead of the clock of its machine."""


@declare("layby.stats", sender=Sender.ADMIN, answer=StatsData)
class GetStats(Query, frozen=True):
    """How much there is."""

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.stats(now))


def oldest_waits(longest: Iterable[tuple[Promise, Task | None]], now: Millis) -> dict[str, Millis]:
    oldest: dict[str, Millis] = {}
    for row in longest:
        waiting = waiting_of(*projected(*row, now), now)
        if waiting is not None and waiting.is_listed:
            oldest[waiting.kind] = min(waiting.since, oldest.get(waiting.kind, waiting.since))
    return oldest
