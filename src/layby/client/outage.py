"""A server that has answered before and does not now: whoever waits for it is told in the log."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Final

logger = logging.getLogger(__name__)

OUTAGE_TOLD_AFTER_S: Final = 1.0
OUTAGE_TOLD_EVERY_S: Final = 30.0


def trying_again(failure: Exception) -> str:
    """A message that ends with a question is followed by a sentence."""
    text = str(failure)
    return f"{text} Trying again" if text.endswith("?") else f"{text}; trying again"


def rounded(seconds: float) -> str:
    """Nobody needs to know it to a microsecond."""
    return f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.2g}"


class Outage:
    """Of one client, however many of its requests wait."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._told_at = -inf

    def lasts(self, failure: Exception, seconds: float) -> None:
        """A request has not been answered for so long, and is about to be sent again."""
        if seconds >= OUTAGE_TOLD_AFTER_S:
            self._tell(trying_again(failure))

    @contextmanager
    def watch(self, silent_for: float) -> Generator[None]:
        """Around a try: a server that accepts requests and then hangs is told of as soon."""
        after = max(0.0, OUTAGE_TOLD_AFTER_S - silent_for)
        timer = asyncio.get_running_loop().call_later(after, self._hangs, silent_for + after)
        try:
            yield
        finally:
            timer.cancel()

    def _hangs(self, seconds: float) -> None:
        self._tell(f"the server at {self._url} has not answered for {rounded(seconds)} s; waiting")

    def _tell(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= OUTAGE_TOLD_EVERY_S:
            self._told_at = now
            logger.warning("%s", what)

    def over(self) -> None:
        if self._told_at > -inf:
            self._told_at = -inf
            logger.warning("the server at %s answers again", self._url)
