"""Spans of time as people say them: two units at most, and no finer than is useful."""

from typing import Final

from layby.core.model import Millis

FOREVER: Final[Millis] = 253_402_300_800_000
"""The year 10000: an instant beyond it means never."""
_UNITS: Final[tuple[tuple[str, Millis], ...]] = (
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
)


def span(length_ms: Millis) -> str:
    """`3 min`, `2 h 5 min`, `4 d`; below a second in milliseconds."""
    length_ms = max(0, length_ms)
    if length_ms < 1_000:
        return f"{length_ms} ms"
    for number, (unit, size) in enumerate(_UNITS):
        if length_ms >= size:
            return _two_units(length_ms, number, unit, size)
    raise AssertionError


def ago(at: Millis, now: Millis) -> str:
    """How long ago that was; `in 5 s` when it is still to come."""
    if at > now:
        return ahead(at, now)
    return "just now" if now - at < 1_000 else f"{span(now - at)} ago"


def ahead(at: Millis, now: Millis) -> str:
    """When that will be."""
    if at >= FOREVER:
        return "never"
    left = at - now
    whole = -(-left // 1_000) * 1_000 if left > 1_000 else left  # an hour is not shown as 59 min
    return f"in {span(whole)}" if at > now else "now"


def _two_units(length_ms: Millis, number: int, unit: str, size: Millis) -> str:
    """The second unit only where the first one alone would be coarse."""
    count, rest = divmod(length_ms, size)
    if count >= 10 or number + 1 == len(_UNITS):
        return f"{count} {unit}"
    smaller, its_size = _UNITS[number + 1]
    more = rest // its_size
    return f"{count} {unit} {more} {smaller}" if more else f"{count} {unit}"
