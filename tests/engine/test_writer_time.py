"""What time it is for the writer; what it means for leases and runs is in `test_time`."""

import pytest

from layby.clock import StoreClock
from layby.core.model import Millis
from layby.engine.writer_time import GAP_MS, WriterTime
from tests.helpers.clocks import ManualClock

START = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def time(clock: ManualClock) -> WriterTime:
    """Of a writer that has just begun."""
    time = WriterTime(StoreClock(clock))
    time.begin()
    return time


def test_leases_could_be_renewed_since_the_writer_began(time: WriterTime) -> None:
    assert (time.now, time.heard_since) == (START, START)


@pytest.mark.parametrize(
    ("late", "since"),
    [
        pytest.param(GAP_MS, START, id="slow"),
        pytest.param(GAP_MS + 1, START + 5_000 + GAP_MS + 1, id="late"),
    ],
)
def test_only_what_comes_on_top_of_a_planned_rest_is_a_gap(
    time: WriterTime, clock: ManualClock, late: Millis, since: Millis
) -> None:
    assert time.rest_for(5.0) == 5.0
    clock.advance(5_000 + late)
    assert time.look() == START + 5_000 + late
    assert time.heard_since == since


def test_a_rest_is_planned_for_one_look(time: WriterTime, clock: ManualClock) -> None:
    """The next one is late all the same if nobody has said how long the writer rests."""
    time.rest_for(5.0)
    time.look()
    clock.advance(5_000)
    assert time.look() == time.heard_since == START + 5_000


def test_while_the_store_is_away_nobody_is_heard(time: WriterTime, clock: ManualClock) -> None:
    time.is_store_away = True
    clock.advance(10)
    assert time.look() == time.heard_since == START + 10
    time.is_store_away = False
    clock.advance(10)
    time.look()
    assert time.heard_since == START + 10


def test_time_does_not_run_backwards(time: WriterTime, clock: ManualClock) -> None:
    """Neither when the wall is put back, nor when another process was ahead of this clock."""
    clock.set(START - 10_000)
    assert time.advance() == START
    time.reach(START + 700)
    time.reach(START + 300)
    assert time.advance() == time.look() == time.now == START + 700
