"""Cron rules: 5 fields, 6 with seconds first, 7 with a year last; Unix meaning, in a time zone.

A rule follows the wall clock of its zone. Where that clock is put forward, an occurrence in the
skipped hour comes right after it; where it is put back, a fixed hour comes once. Rules that begin
with `*` run through both changes, as time itself does.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from layby.core.model import Millis
from layby.core.settings import NoInstant
from layby.errors import nearest_name

_YEARS = range(1970, 2200)
_SECOND = timedelta(seconds=1)
_RANGE_OF_ONE = re.compile(r"\b(\w+)-\1/0*[1-9]\d*\b", re.IGNORECASE)
_EXAMPLE = "write five fields, minute hour day month weekday, such as '0 9 * * mon-fri'"


class _Rule(Struct, frozen=True):
    """Five fields, and how many seconds later; six if the seconds field is not one number."""

    text: str
    second: int
    years: frozenset[int] | None
    """None: any."""


def next_after(cron: str, after: Millis, timezone: str = "UTC") -> Millis | NoInstant:
    """The first occurrence strictly after `after` (floored to the second)."""
    zone = _zone(timezone)
    if zone is None:
        return NoInstant(_unknown(timezone))
    try:
        rule = _rule(cron)
    except (CronSimError, ValueError) as error:
        return NoInstant(f"cron '{cron}' is not a valid rule ({error}): {_EXAMPLE}")
    try:
        at = _first(rule, datetime.fromtimestamp(after // 1000 - rule.second, zone))
    except (ValueError, OverflowError, OSError):  # past the year 9999
        at = None
    if at is None:
        return NoInstant(f"cron '{cron}' has no more occurrences: give another one")
    return (int(at.timestamp()) + rule.second) * 1000


def _first(rule: _Rule, start: datetime) -> datetime | None:
    at = _next(rule.text, start)
    while at is not None and rule.years is not None and at.year not in rule.years:
        year = min((each for each in rule.years if each > at.year), default=None)
        if year is None:
            return None
        at = _next(rule.text, datetime(year, 1, 1, tzinfo=start.tzinfo) - _SECOND)
    return at


def _next(rule: str, start: datetime) -> datetime | None:
    """Of an hour that the clock shows twice, the first counts, even if `start` lies in between."""
    since = start.timestamp()
    return next((at for at in CronSim(rule, start) if at.timestamp() > since), None)


@lru_cache(maxsize=256)
def _rule(cron: str) -> _Rule:
    fields = cron.split()
    if len(fields) > 7:
        raise CronSimError("Wrong number of fields")
    years = _years(fields[6]) if len(fields) == 7 else None
    text = _RANGE_OF_ONE.sub(r"\1", " ".join(fields[:6]))  # the library reads 9-9/4 as 9/4
    CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))  # raises if it is not a rule
    if len(fields) == 5 or not fields[0].isdecimal():
        return _Rule(text, 0, years)
    return _Rule(" ".join(fields[1:6]), int(fields[0]), years)


def _years(field: str) -> frozenset[int]:
    """A year field: `*`, numbers, lists, ranges and steps."""
    spans = [_span(part) for part in field.split(",")]
    return frozenset(year for year in _YEARS if any(year in span for span in spans))


def _span(part: str) -> range:
    span, _, step = part.partition("/")
    first, _, last = span.partition("-")
    if first == "*":
        return _YEARS[:: int(step or 1)]
    end = int(last or first) + 1 if last or not step else _YEARS.stop
    return range(int(first), end, int(step or 1))


def _zone(name: str) -> tzinfo | None:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _unknown(timezone: str) -> str:
    near = nearest_name(timezone, _known_zones())
    hint = f"did you mean '{near}'?" if near else "give one such as 'Europe/Berlin' or 'UTC'"
    return f"time zone '{timezone}' is not known: {hint}"


@cache
def _known_zones() -> list[str]:
    return sorted(available_timezones())
