"""Owns the trace of a runtime: what happened last, in order, within a bound."""

from collections import deque
from itertools import count
from typing import NamedTuple


class TraceEvent(NamedTuple):
    number: int
    """From 1, without gaps; a first number above 1 says how much was let go."""
    epoch: int
    kind: str
    subject: str
    """The component, `component.port` or channel it is about."""
    detail: str = ""


class Trace:
    """Holds no time of day, so that equal runs have equal traces. May be added to on any thread."""

    def __init__(self, capacity: int) -> None:
        self._events: deque[TraceEvent] = deque(maxlen=capacity)
        self._numbers = count(1)
        self.epoch = 0

    def add(self, kind: str, subject: str, detail: str = "") -> None:
        self._events.append(TraceEvent(next(self._numbers), self.epoch, kind, subject, detail))

    def events(self) -> list[TraceEvent]:
        return list(self._events)
