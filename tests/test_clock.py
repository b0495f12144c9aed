"""Store time: never back, never early, and one with the wall again after a while."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.clock import StoreClock, SystemClock
from tests.helpers.clocks import ManualClock

HOUR = 3_600_000
START = 1_700_000_000_000

moves = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, HOUR)),
        st.tuples(st.just("pass"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(-HOUR, HOUR)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=30,
)


def moved(clock: ManualClock, move: tuple[str, int]) -> None:
    kind, by = move
    if kind == "pass":
        clock.advance(by)
    elif kind == "step":
        clock.set(clock.now() + by)


@given(moves)
def test_it_never_goes_back_and_is_never_behind_the_wall(script):
    clock = ManualClock(START)
    store = StoreClock(clock)
    last = store.now()
    for move in script:
        moved(clock, move)
        now = store.now()
        assert now >= last
        assert now >= clock.now()
        assert store.ahead() in (now - clock.now(), 0)
        last = now


@given(moves)
def test_while_nobody_puts_the_wall_forward_nothing_comes_early(script):
    """A length of store time takes at least so much elapsed time, however often one looks."""
    clock = ManualClock(START)
    store = StoreClock(clock)
    begun, at = clock.elapsed(), store.now()
    for kind, by in script:
        moved(clock, (kind, -abs(by) if kind == "step" else by))
        assert store.now() - at <= clock.elapsed() - begun


@given(moves, st.integers(1, 5 * HOUR))
def test_it_meets_the_wall_again(script, ahead):
    """Sixteen times as long as it was ahead, and they agree; from then on it is the wall."""
    clock = ManualClock(START)
    store = StoreClock(clock)
    clock.set(START - ahead)
    for move in script:
        store.now()
        moved(clock, move)
    left = store.ahead()
    clock.advance(16 * left + 16)
    assert store.ahead() == 0
    clock.advance(20)
    assert store.now() == clock.now()


@given(moves)
def test_it_goes_on_at_fifteen_sixteenths_at_least(script):
    """A deadline is late by a fifteenth at most, whatever is done to the wall."""
    clock = ManualClock(START)
    store = StoreClock(clock)
    begun, at = clock.elapsed(), store.now()
    for move in script:
        moved(clock, move)
        store.now()
    assert store.now() - at >= (clock.elapsed() - begun) * 15 // 16 - 1


def test_how_often_one_looks_makes_no_difference():
    """A millisecond at a time or all at once: slow time adds up exactly."""
    clocks = [ManualClock(START) for _ in range(2)]
    often, seldom = map(StoreClock, clocks)
    for clock in clocks:
        clock.set(START - HOUR)
    for _ in range(1_600):
        clocks[0].advance(1)
        often.now()
    clocks[1].advance(1_600)
    assert often.now() == seldom.now() == START + 1_500


@pytest.mark.parametrize("stored", [START - HOUR, START, START + HOUR])
def test_it_begins_no_earlier_than_what_is_stored(stored):
    clock = ManualClock(START)
    store = StoreClock(clock)
    store.begin_at(stored)
    assert store.now() == max(START, stored)


def test_clocks_that_are_read_one_after_the_other_agree():
    """A millisecond more on one of them is no difference."""
    store = StoreClock(SystemClock())
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        before = time.time_ns() // 1_000_000
        now = store.now()
        assert before <= now <= time.time_ns() // 1_000_000 + 1
