"""How long a thread waits at most."""

import math
import threading

import pytest

from layby.executors.deadline import Deadline
from layby.executors.wakers import ThreadWaker


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, threading.TIMEOUT_MAX])
def test_no_end_is_no_deadline(timeout):
    """However it is said; no lock could wait that long."""
    assert Deadline(timeout).remaining() is None


@pytest.mark.parametrize("timeout", [0, -1, 60])
def test_what_is_left_can_be_waited_for(timeout):
    """At least nothing."""
    left = Deadline(timeout).remaining()
    assert left is not None
    assert 0 <= left <= 60
    waker = ThreadWaker()
    waker.wake()
    assert waker.wait(left)


def test_nan_is_refused():
    """It is neither long nor short."""
    with pytest.raises(ValueError, match="got nan"):
        Deadline(math.nan)
