"""Triggers that are polled: how often, and what a poll may say."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from layby.core.pauses import spread
from layby.errors import LaybyError, UsageError
from layby.triggers.base_trigger import Trigger

LONGEST_RETRY_AFTER_S: Final = 86_400.0
"""A service that asks for more patience than a day is asked again after a day."""

_NO_TEXT: Final = (bytes, bytearray, memoryview)
"""They would be stored as base64, where nobody expects it."""


class RetryAfter(LaybyError):
    """Raise it in a poll: not yet, and do not ask again for this many seconds. Not an error."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"asked to wait for {seconds:g} s")
        self.seconds = min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)


class PolledTrigger(
    Trigger, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Asked every `every` seconds until `poll` returns something: that is the payload.

    `poll` may be `async def`, or a plain `def`, which then runs in a thread. None means not yet.
    Each pause is `backoff` times the last, up to `max_interval`, give or take `jitter` (a fraction
    of it). What it raises is shown and tolerated `max_errors` times in a row; then it has failed.
    Identical ones, by all their arguments, are asked once for all who wait.
    """

    every: float = 10.0
    backoff: float = 1.0
    max_interval: float | None = None
    jitter: float = 0.1
    max_errors: int = 10

    def __post_init__(self) -> None:
        check_types(self, PolledTrigger)
        check_pace(self)

    def poll(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} is asked by a trigger manager only")


def check_types(given: PolledTrigger, declared: type[PolledTrigger]) -> None:
    """Of the fields that a class declares: what is wrong here could not be read where it runs."""
    for name, kind in _types_of(declared).items():
        try:
            plain = msgspec.to_builtins(getattr(given, name), builtin_types=_NO_TEXT)
            msgspec.convert(plain, kind)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            what = f"{name} of {type(given).__name__}"
            raise UsageError(f"{what}: {error}, in {getattr(given, name)!r:.100}") from None


@cache
def _types_of(declared: type[PolledTrigger]) -> dict[str, Any]:
    return {each.name: each.type for each in msgspec.structs.fields(declared)}


def check_pace(given: PolledTrigger) -> None:
    """As for `handle.defer_until`, in the words of these arguments."""
    require(0 < given.every < math.inf, given, "every", "a positive number of seconds")
    require(1 <= given.backoff < math.inf, given, "backoff", "at least 1.0")
    longest = given.max_interval
    at_least = f"None or at least every, {given.every:g}"
    require(longest is None or longest >= given.every, given, "max_interval", at_least)
    require(0 <= given.jitter <= 1, given, "jitter", "a fraction between 0.0 and 1.0")
    require(given.max_errors >= 0, given, "max_errors", "at least 0")


def pause_after(seconds: float, jitter: float, random: Callable[[], float]) -> float:
    """After a RetryAfter: spread, but never before the time that was asked for."""
    return spread(seconds * (1 + jitter), jitter / (1 + jitter), random)


def require(is_good: bool, given: PolledTrigger, name: str, wanted: str) -> None:  # noqa: FBT001
    """`given` has a field of this name that is not as wanted, unless it is good."""
    if not is_good:
        what = f"{name} of {type(given).__name__}"
        raise UsageError(f"{what} must be {wanted}, got {getattr(given, name)!r}")
