"""The wall clock of real processes is put forward and back; lengths stay what they are.

The same with an injected clock, and without a process: test_kept_promises.py.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli_processes import Process, layby
from tests.helpers.places import address_of
from tests.helpers.stepped_clock import SteppedClock, needed_library
from tests.runner.test_kept_promises import free_port

CHILD = Path(__file__).with_name("clock_child.py")
LENGTH_S = 1.0
EARLY_S = 0.01
"""The store counts in milliseconds, and the child in less."""
LATE_S = 3.5
"""Less than any step, and more than a busy machine needs."""

BACK_5_S, BACK_1_H, FORWARD_3_H = -5, -3_600, 3 * 3_600


@pytest.fixture
def clock(tmp_path: Path) -> SteppedClock:
    return SteppedClock(tmp_path, needed_library())


def play(address: str, by: int, clock: SteppedClock) -> dict[str, Any]:
    with Process([str(CHILD), address, str(by)], **clock.environment) as child:
        told = json.loads(child.hear('"stepped"'))
        assert child.end() == 0, child.tail
    return told


def assert_kept_time(told: dict[str, Any], by: int) -> None:
    """Nothing was early, nothing waited for the clock to catch up, nothing was begun again."""
    assert told["stepped"] == by
    wrong = {
        name: told[name]
        for name in ("sleep", "timeout", "retry", "deadline")
        if not LENGTH_S - EARLY_S <= told[name] <= LENGTH_S + LATE_S
    }
    assert (wrong, told["errors"]) == ({}, [])
    assert told["tries"] == [1]
    if by < 0:
        assert LENGTH_S - EARLY_S <= told["before"] <= LENGTH_S + LATE_S
    else:
        assert 0 <= told["before"] <= LENGTH_S + LATE_S


RARELY = [pytest.param(by, marks=pytest.mark.slow) for by in (BACK_5_S, FORWARD_3_H)]
"""With an injected clock these steps are taken in every run: see test_clock_steps."""


@pytest.mark.parametrize("by", [BACK_1_H, *RARELY])
def test_embedded_everything_is_as_long_as_it_says(by: int, clock: SteppedClock, tmp_path: Path):
    """Promised: "A deadline never fires early"; and none hangs until the clock has caught up.

    Red on 6dc57c6, back 5 s and 1 h: sleeps of 0.01 s, deadlines "already passed", timeouts that
    came when the clock had caught up. Forward was green, here and on a server: a guard.
    """
    assert_kept_time(play(address_of(tmp_path / "layby.db"), by, clock), by)


@pytest.mark.parametrize("by", [BACK_1_H, *RARELY])
def test_on_a_server_everything_is_as_long_as_it_says(by: int, clock: SteppedClock, tmp_path: Path):
    """The same, with the clock of server and worker stepped at once; and leases are kept."""
    port = free_port()
    with ExitStack() as processes:
        flags = ("--db", address_of(tmp_path / "layby.db"), "--port", str(port))
        server = processes.enter_context(layby("serve", *flags, **clock.environment))
        server.hear("layby serves")
        assert_kept_time(play(f"http://127.0.0.1:{port}", by, clock), by)
