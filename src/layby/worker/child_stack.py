"""Where a body stood in its process when its time was up, told like any other failure."""

import asyncio
import re
from itertools import takewhile
from traceback import FrameSummary
from typing import Final

from layby.wire.stack_text import place_text
from layby.worker import child_body

UNKNOWN: Final = "(its process did not tell where it stood)"
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


class EndedInChild(asyncio.CancelledError):
    """The body was ended in its process."""

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.stack = stack
        """As `faulthandler` wrote it; empty if it was not asked for, or did not answer."""


def traceback_text(stack: str, error: BaseException) -> str:
    """As if `error` had been raised there; the stack begins with the latest call."""
    frames = takewhile(lambda frame: frame[0] != child_body.__file__, _FRAME.findall(stack))
    called = [FrameSummary(file, int(number), name) for file, number, name in frames]
    return place_text(called[::-1], error) or UNKNOWN
