"""Durations as people give them.

On the command line and in configuration as texts: `1m30s`. In Python as seconds or a `timedelta`.
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


def parse(text: str, least: Millis = 1) -> Millis:
    """Whole numbers, each with its unit: a number alone could mean anything."""
    if len(text) > 100 or not _WHOLE.fullmatch(text):
        raise UsageError(f"{text[:100]!r} is not a duration: write {EXAMPLE}")
    total = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))
    if not least <= total <= FAR:
        bounds = f"at least {shown(least)}" if total < least else f"at most {shown(FAR)}"
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
    if math.isnan(seconds) or (finite and math.isinf(seconds)):
        raise refusal(f"{what} must be a finite number of seconds, got {duration!r}")
    if seconds < 0 or (positive and seconds == 0):
        wanted = "be above 0 seconds" if positive else "not be negative"
        raise refusal(f"{what} must {wanted}, got {duration!r}")
    return seconds


def millis_of(seconds: float | None) -> Millis:
    """Anything beyond NEVER is NEVER."""
    return NEVER if seconds is None else round(min(seconds * 1000, NEVER))
