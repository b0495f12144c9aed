"""Durations and counts as people give them.

Durations: on the command line and in configuration as texts (`1m30s`), in Python as seconds or a
`timedelta`.
"""

import math
import re
from datetime import timedelta
from typing import Final

from layby.core.model import FAR, NEVER, Millis
from layby.errors import UsageError

UNITS: Final[dict[str, Millis]] = {
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
EXAMPLE: Final = "a duration such as 500ms, 30s, 1m30s or 2d"
_PART: Final = re.compile(r"([0-9]+)(ms|[smhd])")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse(text: str, least: Millis = 1, most: Millis = FAR) -> Millis:
    """Whole numbers, each with its unit: a number alone could mean anything."""
    if len(text) > 100 or not _WHOLE.fullmatch(text):
        raise UsageError(f"{text[:100]!r} is not a duration: write {EXAMPLE}")
    total = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))
    if not least <= total <= most:
        bounds = f"at least {shown(least)}" if total < least else f"at most {shown(most)}"
        raise UsageError(f"{text!r} is not a duration that makes sense here: give {bounds}")
    return total


def shown(duration_ms: Millis) -> str:
    """The shortest text that `parse` reads as this duration."""
    parts: list[str] = []
    rest = duration_ms
    for unit, size in UNITS.items():
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def seconds_of(
    duration: object,
    what: str,
    refusal: type[UsageError] = UsageError,
    *,
    finite: bool = False,
    positive: bool = False,
) -> float:
    """Of a value given in code; `what` and `refusal` make the error if it is something else."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise refusal(f"{what} must be seconds or a timedelta, got {duration!r}")
    if isinstance(seconds, float) and math.isnan(seconds):
        raise refusal(f"{what} must be a number of seconds, got nan")
    if seconds < 0 or (positive and seconds == 0):
        wanted = "be above 0 seconds" if positive else "not be negative"
        raise refusal(f"{what} must {wanted}, got {duration!r}")
    if finite and is_never(seconds):
        raise refusal(f"{what} must be a finite number of seconds, got {duration!r}")
    return seconds


def limit_of(
    limit: object,
    what: str,
    refusal: type[UsageError] = UsageError,
    *,
    positive: bool = False,
) -> float | None:
    """Seconds after which something ends by itself; None, and infinity, mean that it does not."""
    if limit is None:
        return None
    seconds = seconds_of(limit, what, refusal, positive=positive)
    return None if is_never(seconds) else seconds


def seconds_of_millis(milliseconds: object, what: str) -> float:
    """Of a parameter that is in milliseconds by its name: a timedelta there would be a riddle."""
    if isinstance(milliseconds, timedelta):
        raise UsageError(f"{what} must be milliseconds, got {milliseconds!r}")
    try:
        return seconds_of(milliseconds, what) / 1000
    except UsageError:
        text = f"{what} must be a number of milliseconds that is not negative"
        raise UsageError(f"{text}, got {milliseconds!r}") from None


def is_never(seconds: float) -> bool:
    """So far away that no store could tell it from never."""
    return millis_of(seconds) == NEVER


def whole_number(
    value: object, what: str, least: int, refusal: type[UsageError] = UsageError
) -> int:
    """A count given in code; True is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refusal(f"{what} must be a whole number of at least {least}, got {value!r}")
    return value


def true_or_false(value: object, what: str) -> bool:
    """A choice given in code: a word such as "no" would count as a yes."""
    if not isinstance(value, bool):
        raise UsageError(f"{what} must be True or False, got {value!r}")
    return value


def millis_of(seconds: float | None) -> Millis:
    """Anything beyond NEVER is NEVER."""
    return NEVER if seconds is None else round(min(seconds * 1000, NEVER))
