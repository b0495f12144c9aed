"""Pauses between tries grow, and stay within what was said."""

from itertools import islice

import pytest

from layby.core.pauses import Pauses, spread


def test_each_pause_is_twice_the_one_before_up_to_the_longest():
    """Also after more failures than a float has doublings."""
    assert list(islice(Pauses(0.1, longest=1.0), 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert Pauses(0.1, longest=1.0).after(1_000_000) == 1.0


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 7.5), (0.5, 10.0), (1.0, 12.5)])
def test_a_spread_pause_is_longer_or_shorter_by_a_part_of_it(drawn, expected):
    """The middle of what may be drawn leaves it as it is."""
    assert spread(10.0, 0.25, lambda: drawn) == expected


def test_without_jitter_nothing_is_drawn():
    """A test with a fixed chance draws the same numbers whether or not anybody retries."""
    assert spread(10.0, 0.0, lambda: pytest.fail("drawn")) == 10.0
