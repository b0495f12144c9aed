"""Cron rules: 5 fields, 6 with seconds first, 7 with a year last; Unix meaning, UTC."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

from layby.core.model import Millis

_YEARS = range(1970, 2200)


def next_after(cron: str, after: Millis) -> Millis | None:
    """The first occurrence strictly after `after` (floored to the second), or None."""
    fields = cron.split()
    if len(fields) > 7:
        return None
    try:
        years = _years(fields[6]) if len(fields) == 7 else None
        start = datetime.fromtimestamp(after // 1000, UTC)
        return _first(CronSim(" ".join(fields[:6]), start), years)
    except (CronSimError, ValueError, OverflowError, OSError):
        return None


def _first(occurrences: Iterator[datetime], years: frozenset[int] | None) -> Millis | None:
    for at in occurrences:
        if years is None or at.year in years:
            return int(at.timestamp()) * 1000
        if at.year > max(years):
            return None
    return None


@lru_cache(maxsize=64)
def _years(field: str) -> frozenset[int]:
    """A year field: `*`, numbers, lists, ranges and steps."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        years = _YEARS if first == "*" else range(int(first), int(last or first) + 1)
        found.update(years[:: int(step or 1)])
    return frozenset(found)
