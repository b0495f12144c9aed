"""Triggers that are promises: time, or whoever settles them, makes them fire. Nobody runs them."""

from datetime import datetime, timedelta
from typing import Any

from layby.core.validate import identifier
from layby.errors import UsageError
from layby.triggers.base_trigger import Trigger
from layby.wire.durations import millis_of, seconds_of


class Delay(Trigger, frozen=True):
    """Fires when so many seconds, or a `timedelta`, have passed since the task deferred."""

    length: float | timedelta

    def __post_init__(self) -> None:
        seconds_of(self.length, "the length of a Delay", finite=True)

    def arguments(self) -> dict[str, Any]:
        return {"ms": millis_of(seconds_of(self.length, "the length of a Delay"))}


class At(Trigger, frozen=True):
    """Fires at a moment, which must have a time zone; at once if it is past."""

    moment: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.moment, datetime) or self.moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise UsageError(
                f"At needs a datetime with a time zone, got {self.moment!r}: "
                "write datetime(..., tzinfo=UTC)"
            )

    def arguments(self) -> dict[str, Any]:
        return {"at": max(0, round(self.moment.timestamp() * 1000))}


class Event(Trigger, frozen=True):
    """Fires when somebody resolves or rejects this name, before or after the task has deferred."""

    name: str

    def __post_init__(self) -> None:
        _check_id(self.name, "the name of an Event")


class PromiseSettled(Trigger, frozen=True):
    """Fires when the promise with this id settles: a run, a call, or any other."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id, "the id of PromiseSettled")


def _check_id(given: object, what: str) -> None:
    wrong = identifier(given, what) if isinstance(given, str) else ["it is not a text"]
    for problem in wrong:
        raise UsageError(f"{what} must be the id of a promise, got {given!r:.100}: {problem}")
