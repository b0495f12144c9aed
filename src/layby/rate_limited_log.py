"""Logs a failure that lasts, or affects every request, once a minute, not each time."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

AGAIN_S: Final = 60.0
_MAX_KNOWN: Final = 100


class RateLimitedLog:
    """Every line begins with `about`."""

    def __init__(
        self,
        about: str,
        logger: logging.Logger,
        level: int = logging.ERROR,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._about = about
        self._logger = logger
        self._level = level
        self._clock = clock
        self._again_at: dict[str, float] = {}

    def tell(self, why: str) -> None:
        now = self._clock()
        if now < self._again_at.get(why, now):
            return
        if len(self._again_at) >= _MAX_KNOWN:
            self._again_at.clear()
        self._again_at[why] = now + AGAIN_S
        self._logger.log(self._level, "%s: %s", self._about, why)
