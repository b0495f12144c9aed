"""Complaints about what every request meets: in the log, and not as often as there are requests."""

import logging

import pytest

from layby.rate_limited_log import AGAIN_S, RateLimitedLog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog("refused", logging.getLogger("layby.here"), logging.WARNING, clock)
    for why in ("the disk is full", "the disk is full", "it is locked", "the disk is full"):
        log.tell(why)
    assert caplog.record_tuples == [
        ("layby.here", logging.WARNING, "refused: the disk is full"),
        ("layby.here", logging.WARNING, "refused: it is locked"),
    ]
    clock.now = AGAIN_S - 1
    log.tell("the disk is full")
    assert len(caplog.records) == 2
    clock.now = AGAIN_S
    log.tell("the disk is full")
    assert len(caplog.records) == 3


def test_they_are_not_remembered_without_end(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog("refused", logging.getLogger("layby"), clock=Clock())
    for number in range(1_000):
        log.tell(str(number))
    assert len(caplog.records) == 1_000
    assert len(log._again_at) <= 100
