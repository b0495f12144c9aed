"""Which code may take a task: its row names the codes that have refused it.

A code is named by whoever deploys it, or by a digest of its sources; core only compares names.
"""

from functools import lru_cache
from typing import Final

from msgspec import Struct, json

from layby.core.model import Codes, Task

MAX_REFUSALS: Final = 8
"""How many codes a task remembers; of more, the first is forgotten."""


class Refusals(Struct, frozen=True, array_like=True):
    """Tasks with equal refusals are for the same workers: a store groups them by this text."""

    name: str
    """Of the task, so that it is known which of a worker's codes counts."""
    codes: tuple[str, ...]
    """Those that refused it, the latest last."""
    pin: str | None = None
    """The only code that may take it, if its run is pinned."""

    def to_text(self) -> str:
        return json.encode(self).decode()

    def allow(self, codes: Codes) -> bool:
        """Whether a worker with these codes may be handed the task."""
        code = code_for(self.name, codes)
        return code not in self.codes and self.pin in (None, code)


@lru_cache(maxsize=1024)
def read_refusals(text: str) -> Refusals:
    return _decoder.decode(text)


def refused_by(task: Task, code: str, pin: str | None) -> str:
    """The refusals of this task and one more."""
    before = () if task.refused is None else read_refusals(task.refused).codes
    codes = (*(each for each in before if each != code), code)
    return Refusals(task.name or "", codes[-MAX_REFUSALS:], pin).to_text()


def refusing_codes(task: Task) -> tuple[str, ...]:
    return () if task.refused is None else read_refusals(task.refused).codes


def fits(refused: str | None, codes: Codes) -> bool:
    """Whether a worker with these codes may be handed a task with these refusals."""
    return refused is None or read_refusals(refused).allow(codes)


def code_for(name: str, codes: Codes) -> str:
    """The code that a worker has for a task; empty if it has not named any."""
    flow = name.partition("/")[0]
    for each, code in codes:
        if each == flow:
            return code
    return ""


_decoder = json.Decoder(Refusals)
