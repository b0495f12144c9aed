"""Durations as people write them."""

import math
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core.model import FAR, NEVER
from layby.errors import UsageError, WorkflowError
from layby.wire import durations


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1ms", 1),
        ("10s", 10_000),
        ("1m30s", 90_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("90m", 5_400_000),
        ("30s1m", 90_000),
        ("0m1s", 1_000),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text, milliseconds):
    """Every unit counts, in any order."""
    assert durations.parse(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "10", "s", "1.5s", "-1s", "+1s", "1 s", " 1s", "1s ", "1S", "1w", "1sm", "1s2"),
        *("10s\n", "١s", "1e3s", "1m 30s", "9" * 200 + "s"),  # noqa: RUF001 - digits, not ours
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    """The message shows what was given and what to write."""
    with pytest.raises(UsageError, match=r"is not a duration: write .*1m30s"):
        durations.parse(text)


def test_nothing_is_too_short_unless_it_makes_sense():
    """Zero is refused by default, and taken where a caller asks for no more."""
    with pytest.raises(UsageError, match=r"'0s' .* at least 1ms"):
        durations.parse("0s")
    assert durations.parse("0s", least=0) == 0
    with pytest.raises(UsageError, match="at least 1s"):
        durations.parse("999ms", least=1_000)


def test_what_no_database_can_store_is_refused():
    """A number beyond 64 bits would fail far from here."""
    with pytest.raises(UsageError, match="at most"):
        durations.parse(f"{FAR}s")


@given(st.integers(0, FAR))
def test_a_shown_duration_reads_as_itself(milliseconds):
    """What we print can be given back to us."""
    assert durations.parse(durations.shown(milliseconds), least=0) == milliseconds


# --- as they are given in code -------------------------------------------------------------------


@pytest.mark.parametrize("endless", [None, math.inf, 1e300, timedelta.max, 10**400])
def test_no_end_is_no_limit(endless):
    """However it is said: nothing, infinity, or longer than any store can tell from never."""
    assert durations.limit_of(endless, "timeout") is None
    assert durations.millis_of(durations.limit_of(endless, "timeout")) == NEVER


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (math.nan, "timeout must be a number of seconds, got nan"),
        (-1, "timeout must not be negative, got -1"),
        (-math.inf, "timeout must not be negative, got -inf"),
        (timedelta(seconds=-1), "timeout must not be negative"),
        (True, "timeout must be seconds or a timedelta, got True"),
        ("5", "timeout must be seconds or a timedelta, got '5'"),
        (b"5", "timeout must be seconds or a timedelta"),
        ([], "timeout must be seconds or a timedelta"),
    ],
)
def test_what_is_no_length_is_refused_by_name(given, told):
    """Whether there has to be an end or not."""
    with pytest.raises(UsageError, match=f"^{re.escape(told)}"):
        durations.limit_of(given, "timeout")
    with pytest.raises(WorkflowError, match=f"^{re.escape(told)}"):
        durations.seconds_of(given, "timeout", WorkflowError)


@pytest.mark.parametrize("endless", [math.inf, 1e300, timedelta.max])
def test_where_there_has_to_be_an_end_infinity_is_refused(endless):
    """As far as a store can tell."""
    with pytest.raises(UsageError, match="delay must be a finite number of seconds"):
        durations.seconds_of(endless, "delay", finite=True)


@pytest.mark.parametrize("given", [timedelta(seconds=1), "5", True, math.nan, -1])
def test_milliseconds_are_numbers(given):
    """A timedelta has its own unit; the error does not speak of seconds."""
    with pytest.raises(UsageError, match=r"^poll_interval_ms must be .*milliseconds"):
        durations.seconds_of_millis(given, "poll_interval_ms")
    assert durations.seconds_of_millis(250, "poll_interval_ms") == 0.25


@given(st.one_of(st.floats(), st.integers(), st.timedeltas(), st.booleans(), st.none()))
def test_every_value_is_refused_or_can_be_stored(value):
    """Nothing else comes out than a length that the store can add to its time."""
    try:
        limit = durations.limit_of(value, "timeout")
    except UsageError:
        return
    assert 0 <= durations.millis_of(limit) <= NEVER
