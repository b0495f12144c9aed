"""A server that has answered before and does not now: whoever waits for it is told in the log."""

import asyncio
import logging
from math import inf
from typing import Final

logger = logging.getLogger(__name__)

OUTAGE_TOLD_AFTER_S: Final = 1.0
OUTAGE_TOLD_EVERY_S: Final = 30.0


class Outage:
    """Of one client, however many of its requests wait."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._told_at = -inf

    def lasts(self, failure: Exception, seconds: float) -> None:
        """A request has not been answered for so long, and is about to be sent again."""
        now = asyncio.get_running_loop().time()
        if seconds < OUTAGE_TOLD_AFTER_S or now - self._told_at < OUTAGE_TOLD_EVERY_S:
            return
        self._told_at = now
        logger.warning("%s; trying again", failure)

    def over(self) -> None:
        if self._told_at > -inf:
            self._told_at = -inf
            logger.warning("the server at %s answers again", self._url)
