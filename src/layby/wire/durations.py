"""Durations as people write them: `1m30s`. The command line and configuration share this."""

import re
from typing import Final

from layby.core.model import FAR, Millis
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
        raise UsageError(f"{text[:100]!r} is no duration: write {EXAMPLE}")
    total = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))
    if not least <= total <= FAR:
        bounds = f"at least {shown(least)}" if total < least else f"at most {shown(FAR)}"
        raise UsageError(f"{text!r} is no duration that makes sense here: give {bounds}")
    return total


def shown(duration_ms: Millis) -> str:
    """The shortest text that `parse` reads as this duration."""
    parts: list[str] = []
    rest = duration_ms
    for unit, size in UNITS.items():
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"
