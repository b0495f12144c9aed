"""Until a server has answered for the first time: how long it is tried, and who is told.

A server that has answered once may be away for a while: it restarts. One that never has is more
likely a wrong address, and somebody sits before it and wonders.
"""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Final

logger = logging.getLogger(__name__)

TELL_AFTER_S: Final = 1.0
LEAST_S: Final = 0.05
"""How long the last try may take, at least."""
TELL_AGAIN_S: Final = 30.0
"""How often it is told again by somebody who does not give up."""


class FirstAnswer:
    """`within`: seconds for everything until the first answer; None: as long as it takes.

    `retry_for`: how long a request that did not arrive is sent again; None: the whole time.
    """

    def __init__(self, url: str, within: float | None, retry_for: float | None = None) -> None:
        self._url = url
        self._within = within
        self._why = "no answer yet"
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.retry_for = retry_for if retry_for is not None else inf if within is None else within
        self.is_heard = False

    def begin(self) -> None:
        """A request is about to be sent."""
        if self._until is None and not self.is_heard:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + (inf if self._within is None else self._within)
            self._timer = loop.call_later(TELL_AFTER_S, self._tell)

    def bounded(self, seconds: float) -> float:
        """No longer than what is left, until the server has been heard."""
        if self.is_heard or self._until is None:
            return seconds
        return min(seconds, max(LEAST_S, self._until - asyncio.get_running_loop().time()))

    def failed(self, why: str) -> None:
        self._why = why

    def heard(self) -> None:
        self.is_heard = True
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        ends = "" if self._within is None else f"; gives up after {self._within:g} s"
        logger.warning("waiting for %s: %s%s", self._url, self._why, ends)
        if self._within is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_AGAIN_S, self._tell)


@contextmanager
def told_if_silent(url: str) -> Generator[None]:
    """In an event loop: around one request to a database, however long that takes."""
    first = FirstAnswer(url, None)
    first.begin()
    try:
        yield
    finally:
        first.close()


def already_heard(url: str) -> FirstAnswer:
    """For a client of a server that somebody else has reached."""
    first = FirstAnswer(url, None)
    first.is_heard = True
    return first
