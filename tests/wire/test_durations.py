"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core.model import FAR
from layby.errors import UsageError
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
