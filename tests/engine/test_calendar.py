"""Cron rules: which instants they name. Times without an offset are UTC."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from layby.core.settings import NoInstant
from layby.engine.calendar import next_after

BERLIN = "Europe/Berlin"


def at(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * 1000


def local(millis: int | NoInstant, timezone: str) -> str:
    assert isinstance(millis, int)
    return datetime.fromtimestamp(millis / 1000, ZoneInfo(timezone)).isoformat(" ")


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-11-15 10:00:00", "2026-11-15 10:01:00"),
        ("*/5 * * * *", "2026-11-15 10:01:00", "2026-11-15 10:05:00"),
        ("0 9-17/4 * * *", "2026-11-15 10:00:00", "2026-11-15 13:00:00"),
        ("0 9/4 * * *", "2026-11-15 10:00:00", "2026-11-15 13:00:00"),
        ("0 9-9/4 * * *", "2026-11-15 10:00:00", "2026-11-16 09:00:00"),
        ("0 0 * * 1,Sun-SUN/3", "2026-11-16 00:00:00", "2026-11-22 00:00:00"),
        ("0,30 8 * * *", "2026-11-15 08:00:00", "2026-11-15 08:30:00"),
        ("0 0 1 jan *", "2026-11-15 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 * * mon", "2026-11-15 00:00:00", "2026-11-16 00:00:00"),
        ("0 0 * * 0", "2026-11-14 00:00:00", "2026-11-15 00:00:00"),
        ("0 0 * * 7", "2026-11-14 00:00:00", "2026-11-15 00:00:00"),
        ("0 0 13 * 5", "2026-11-14 00:00:00", "2026-11-20 00:00:00"),
        ("0 0 29 2 *", "2026-11-15 00:00:00", "2028-02-29 00:00:00"),
        ("30 * * * * *", "2026-11-15 10:00:00", "2026-11-15 10:00:30"),
        ("30 * * * * *", "2026-11-15 10:00:29", "2026-11-15 10:00:30"),
        ("30 * * * * *", "2026-11-15 10:00:30", "2026-11-15 10:01:30"),
        ("15,45 * * * * *", "2026-11-15 10:00:20", "2026-11-15 10:00:45"),
        ("*/10 0 0 * * *", "2026-11-15 00:00:50", "2026-11-16 00:00:00"),
        ("0 0 0 1 1 * 2030", "2026-11-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1 1 * 2020-2030/5", "2026-11-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1 1 * 2020/5", "2026-11-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1 1 * */100", "2026-11-15 00:00:00", "2070-01-01 00:00:00"),
        ("0 0 0 1 1 * 2028,2030", "2026-11-15 00:00:00", "2028-01-01 00:00:00"),
        ("* * * * * * 2199", "2026-11-15 00:00:00", "2199-01-01 00:00:00"),
        ("0 0 0 1 1 * 1-99999999999999", "2026-11-15 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 0 29 2 * 2027-2029", "2026-11-15 00:00:00", "2028-02-29 00:00:00"),
        ("  0   0  *  *  * ", "2026-11-15 00:00:00", "2026-11-16 00:00:00"),
    ],
)
def test_the_next_occurrence(cron: str, after: str, expected: str) -> None:
    """Unix meaning: Sunday is 0 and 7, day of month or day of week when both are given."""
    assert next_after(cron, at(after)) == at(expected)


def test_an_occurrence_is_strictly_after_the_second() -> None:
    """Milliseconds are cut off first."""
    minute = at("2026-11-15 10:01:00")
    assert next_after("* * * * *", minute - 1) == minute
    assert next_after("* * * * *", minute) == minute + 60_000
    assert next_after("* * * * *", minute + 999) == minute + 60_000


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("", "cron '' is not a valid rule"),
        ("x", "cron 'x' is not a valid rule (Wrong number of fields)"),
        ("* * * *", "write five fields, minute hour day month weekday, such as '0 9 * * mon-fri'"),
        ("* * * * * * * *", "Wrong number of fields"),
        ("61 * * * *", "Bad minute"),
        ("61 * * * * *", "Bad second"),
        ("* 25 * * *", "Bad hour"),
        ("* 9-9/0 * * *", "Bad hour"),
        ("* * * * 8", "Bad day-of-week"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("0 0 0 1 1 * 2020", "has no more occurrences"),
        ("0 0 0 29 2 * 2027", "has no more occurrences"),
        ("0 0 0 1 1 * x", "is not a valid rule"),
        ("0 0 0 1 1 * 2020-x", "is not a valid rule"),
        ("0 0 0 1 1 * */0", "is not a valid rule"),
        ("\0 * * * *", "Bad minute"),
    ],
)
def test_what_is_no_rule_or_never_comes(cron: str, why: str) -> None:
    """There is no next occurrence, and the calendar says why."""
    found = next_after(cron, at("2026-11-15 00:00:00"))
    assert isinstance(found, NoInstant)
    assert why in found.why


@pytest.mark.parametrize("after", [2**63 - 1, 253402300799_000])
@pytest.mark.parametrize("timezone", ["UTC", BERLIN])
def test_the_end_of_the_calendar(after: int, timezone: str) -> None:
    """Past the year 9999 nothing can be told, and nothing breaks."""
    assert isinstance(next_after("* * * * *", after, timezone), NoInstant)


# --- time zones --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "expected"),
    [
        ("0 9 * * *", BERLIN, "2026-03-28 09:00+01:00", "2026-03-29 09:00:00+02:00"),
        ("0 9 * * *", BERLIN, "2026-10-24 09:00+02:00", "2026-10-25 09:00:00+01:00"),
        ("30 2 * * *", BERLIN, "2026-03-28 12:00+01:00", "2026-03-29 03:00:00+02:00"),
        ("30 2 * * *", BERLIN, "2026-03-29 03:00+02:00", "2026-03-30 02:30:00+02:00"),
        ("15,45 2 * * *", BERLIN, "2026-03-29 03:00+02:00", "2026-03-30 02:15:00+02:00"),
        ("0 30 2 * * *", BERLIN, "2026-03-28 12:00+01:00", "2026-03-29 03:00:00+02:00"),
        ("15 30 2 * * *", BERLIN, "2026-03-28 12:00+01:00", "2026-03-29 03:00:15+02:00"),
        ("15 30 2 * * *", BERLIN, "2026-10-25 02:30:15+02:00", "2026-10-26 02:30:15+01:00"),
        ("15 30 2 * * *", BERLIN, "2026-10-25 02:30:00+02:00", "2026-10-25 02:30:15+02:00"),
        ("0 30 2 * * * *", BERLIN, "2026-03-28 12:00+01:00", "2026-03-29 03:00:00+02:00"),
        ("30 2 * * *", BERLIN, "2026-10-25 00:00+02:00", "2026-10-25 02:30:00+02:00"),
        ("30 2 * * *", BERLIN, "2026-10-25 02:30+02:00", "2026-10-26 02:30:00+01:00"),
        ("30 2 * * *", BERLIN, "2026-10-25 02:15+01:00", "2026-10-26 02:30:00+01:00"),
        ("*/30 * * * *", BERLIN, "2026-03-29 01:30+01:00", "2026-03-29 03:00:00+02:00"),
        ("*/30 * * * *", BERLIN, "2026-10-25 02:30+02:00", "2026-10-25 02:00:00+01:00"),
        ("0 0 1 1 *", "Asia/Kolkata", "2026-12-31 12:00+05:30", "2027-01-01 00:00:00+05:30"),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23 12:00+02:00", "2026-04-24 01:00:00+03:00"),
        ("0 0 0 1 1 * 2030", BERLIN, "2026-01-01 00:00+01:00", "2030-01-01 00:00:00+01:00"),
        ("0 12 * * *", "Pacific/Auckland", "2026-09-26 12:00+12:00", "2026-09-27 12:00:00+13:00"),
    ],
)
def test_a_rule_follows_the_clock_of_its_zone(
    cron: str, timezone: str, after: str, expected: str
) -> None:
    """An hour left out comes when the clock goes on, an hour shown twice comes once."""
    assert local(next_after(cron, at(after), timezone), timezone) == expected


@pytest.mark.parametrize("timezone", [BERLIN, "Australia/Lord_Howe", "America/Santiago", "UTC"])
@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "*/20 * * 3,4,9,10 sun", "0 0 * * *", "59 15 1-3 * * *"]
)
def test_occurrences_are_one_line_through_both_changes_of_the_clock(
    cron: str, timezone: str
) -> None:
    """From wherever one asks, the next is the first of those that follow."""
    start, end = at("2026-01-01 00:00:00"), at("2027-01-01 00:00:00")
    instants = [start]
    while instants[-1] < end:
        instants.append(_found(cron, instants[-1], timezone))
    assert sorted(set(instants)) == instants
    for before, after in pairwise(instants[1:]):
        for asked in (before, (before + after) // 2, after - 1000):
            assert _found(cron, asked, timezone) == after


def _found(cron: str, after: int, timezone: str) -> int:
    found = next_after(cron, after, timezone)
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(
    ("timezone", "why"),
    [
        ("Europe/Berln", "time zone 'Europe/Berln' is not known: did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("§", "time zone '§' is not known: give one such as 'Europe/Berlin' or 'UTC'"),
        ("", "is not known"),
        ("Europe", "is not known"),
        ("../../etc/passwd", "is not known"),
        ("/etc/localtime", "is not known"),
        ("x" * 1000, "is not known"),
        ("\ud800", "is not known"),
        ("tzdata.zi", "is not known"),
    ],
)
def test_an_unknown_zone_is_named_with_its_nearest(timezone: str, why: str) -> None:
    """Whatever it is, it is refused and nothing outside the zones is opened."""
    found = next_after("* * * * *", 0, timezone)
    assert isinstance(found, NoInstant)
    assert why in found.why


def test_zones_are_known_where_the_system_has_none() -> None:
    """Slim containers have no database of time zones: ours comes with the package."""
    script = (
        "from layby.engine.calendar import next_after; "
        "print(next_after('0 9 * * *', 0, 'Asia/Tokyo'))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{24 * 3_600_000}\n"
