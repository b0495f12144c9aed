"""The clock of a database that several processes share, carried by elapsed time in between."""

import threading
from collections.abc import Callable

from layby.core.model import Millis

Elapsed = Callable[[], Millis]


class DatabaseClock:
    """What the database's clock shows, as far as it is known here. May be read in any thread."""

    def __init__(self, elapsed: Elapsed, there: Millis) -> None:
        self.elapsed = elapsed
        self._lock = threading.Lock()
        self._offset = there - elapsed()

    def now(self) -> Millis:
        with self._lock:
            return self.elapsed() + self._offset

    def heard(self, there: Millis) -> None:
        """It showed this a moment ago."""
        with self._lock:
            self._offset = there - self.elapsed()
