"""What time it is for the writer, and since when leases could be renewed.

Time never runs backwards inside the store. Whoever holds a lease is not to lose it because nobody
could hear them: the writer was late, or had no store to write to.
"""

import logging
from typing import Final

from layby.clock import StoreClock
from layby.core.model import Millis

logger = logging.getLogger(__name__)

GAP_MS: Final[Millis] = 1_000
"""A writer that wakes up this much later than planned could not serve anyone in the meantime."""
APART_MS: Final[Millis] = 1_000
"""When store time is this far ahead of the wall clock, it is logged."""


class WriterTime:
    """Changed by the writer alone; `now` may be read on any thread."""

    def __init__(self, clock: StoreClock) -> None:
        self.clock = clock
        self.now: Millis = 0
        """As it was read last, or as what was written last says."""
        self.heard_since: Millis = 0
        """Leases could not be renewed before this: no lease ends because of a gap in service."""
        self.is_store_away = False
        """Nothing could be written when it was last tried, so nobody could renew a lease."""
        self._looked_at: Millis = 0
        self._planned_rest_ms: Millis = 0
        """How long the writer planned to rest after it last read the clock."""
        self._known_ahead: Millis = 0
        """How far store time is ahead of the wall, once that was logged."""

    def begin(self) -> None:
        """The writer is there from now on."""
        self.heard_since = self._looked_at = self.advance()

    def advance(self) -> Millis:
        """Now; time never runs backwards inside the store."""
        self.now = max(self.clock.now(), self.now)
        return self.now

    def reach(self, at: Millis) -> None:
        """On a shared store it may be later than the clock here says."""
        self.now = max(self.now, at)

    def rest_for(self, seconds: float) -> float:
        """Seconds the writer plans to rest now."""
        self._planned_rest_ms = round(seconds * 1000)
        return seconds

    def look(self) -> Millis:
        """Now. A writer that is late (stopped, suspended, clock put forward) was out of reach.

        So was one whose store is away: as far as this turn knows, it is back now.
        """
        read, ahead = self.clock.now_and_ahead()
        now = self.now = max(read, self.now)
        late = now - self._looked_at - self._planned_rest_ms
        if late > GAP_MS or self.is_store_away:
            self.heard_since = now
        if late > GAP_MS:
            told = "no lease ends before its holder has had a chance to renew it"
            logger.info("the writer woke up %.1f s late: %s", late / 1000, told)
        self._looked_at, self._planned_rest_ms = now, 0
        if ahead or self._known_ahead:
            self._compare_with_wall_clock(ahead)
        return now

    def _compare_with_wall_clock(self, ahead: Millis) -> None:
        if ahead > self._known_ahead + APART_MS:
            then = "it runs slower until they meet, and schedules wait for the clock"
            told = "the clock was put back: store time is %.1f s ahead of it; %s"
            logger.warning(told, ahead / 1000, then)
            self._known_ahead = ahead
        elif ahead == 0 and self._known_ahead:
            self._known_ahead = 0
            logger.info("the clock has caught up with store time")
        elif self._known_ahead:
            self._known_ahead = min(ahead, self._known_ahead)  # a further step counts from here
