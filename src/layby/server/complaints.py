"""What goes wrong for every request alike stands in the log once a minute, not once a request."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

logger = logging.getLogger(__name__)

AGAIN_S: Final = 60.0
_MAX_KNOWN: Final = 100


class Complaints:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._again_at: dict[str, float] = {}

    def tell(self, why: str) -> None:
        now = self._clock()
        if now < self._again_at.get(why, now):
            return
        if len(self._again_at) >= _MAX_KNOWN:
            self._again_at.clear()
        self._again_at[why] = now + AGAIN_S
        logger.error("requests are refused: %s", why)
