"""Cron rules: which instants they name. All times are UTC."""

from datetime import UTC, datetime

import pytest

from layby.engine.calendar import next_after


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-11-15 10:00:00", "2026-11-15 10:01:00"),
        ("*/5 * * * *", "2026-11-15 10:01:00", "2026-11-15 10:05:00"),
        ("0 9-17/4 * * *", "2026-11-15 10:00:00", "2026-11-15 13:00:00"),
        ("0,30 8 * * *", "2026-11-15 08:00:00", "2026-11-15 08:30:00"),
        ("0 0 1 jan *", "2026-11-15 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 * * mon", "2026-11-15 00:00:00", "2026-11-16 00:00:00"),
        ("0 0 * * 0", "2026-11-14 00:00:00", "2026-11-15 00:00:00"),
        ("0 0 * * 7", "2026-11-14 00:00:00", "2026-11-15 00:00:00"),
        ("0 0 13 * 5", "2026-11-14 00:00:00", "2026-11-20 00:00:00"),
        ("0 0 29 2 *", "2026-11-15 00:00:00", "2028-02-29 00:00:00"),
        ("30 * * * * *", "2026-11-15 10:00:00", "2026-11-15 10:00:30"),
        ("*/10 0 0 * * *", "2026-11-15 00:00:50", "2026-11-16 00:00:00"),
        ("0 0 0 1 1 * 2030", "2026-11-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1 1 * 2020-2030/5", "2026-11-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1 1 * */100", "2026-11-15 00:00:00", "2070-01-01 00:00:00"),
        ("0 0 0 1 1 * 2028,2030", "2026-11-15 00:00:00", "2028-01-01 00:00:00"),
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
    "cron",
    [
        "",
        "x",
        "* * * *",
        "* * * * * * * *",
        "61 * * * *",
        "* 25 * * *",
        "* * * * 8",
        "0 0 30 2 *",
        "0 0 0 1 1 * 2020",
        "0 0 0 1 1 * x",
        "0 0 0 1 1 * 2020-x",
        "0 0 0 1 1 * */0",
        "\0 * * * *",
    ],
)
def test_what_is_no_rule_or_never_comes(cron: str) -> None:
    """There is no next occurrence."""
    assert next_after(cron, at("2026-11-15 00:00:00")) is None


@pytest.mark.parametrize("after", [2**63 - 1, 253402300799_000])
def test_the_end_of_the_calendar(after: int) -> None:
    """Past the year 9999 nothing can be told, and nothing breaks."""
    assert next_after("* * * * *", after) is None
