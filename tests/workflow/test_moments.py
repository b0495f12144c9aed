"""Spans of time as people say them."""

import pytest

from layby.core.model import NEVER
from layby.workflow.moments import ago, ahead, span

S, MIN, H, D = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (999, "999 ms"),
        (S, "1 s"),
        (59 * S + 999, "59 s"),
        (MIN, "1 min"),
        (MIN + 5 * S, "1 min 5 s"),
        (12 * MIN + 5 * S, "12 min"),
        (H, "1 h"),
        (2 * H + 5 * MIN + S, "2 h 5 min"),
        (D + 3 * H, "1 d 3 h"),
        (400 * D + 3 * H, "400 d"),
    ],
)
def test_a_span_has_two_units_at_most(length, said):
    """The second one only while the first is small."""
    assert span(length) == said


def test_the_past_and_the_future():
    """Each in its words, and neither at the moment itself."""
    assert ago(0, 3 * MIN) == "3 min ago"
    assert ago(0, 500) == "just now"
    assert ago(5 * S, 0) == "in 5 s"
    assert ahead(5 * S, 0) == "in 5 s"
    assert ahead(H, 1) == "in 1 h"
    assert ahead(0, 5 * S) == "now"
    assert ahead(NEVER, 0) == "never"
