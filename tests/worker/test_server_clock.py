"""How a worker learns what time it is at the server."""

import asyncio

import pytest

from layby.core.commands import Command, HeartbeatWorker
from layby.core.queries import Query
from layby.core.replies import HeartbeatData, Reply, ok, refuse
from layby.worker.server_clock import ServerClock
from tests.helpers.clocks import ManualClock

BEAT = HeartbeatWorker(pid="p", incarnation="1", held=0)
AN_HOUR = 3_600_000


class Far:
    """A server whose clock is so far ahead; its answers take their time, both ways."""

    def __init__(self, own: ManualClock, ahead: int) -> None:
        self.own = own
        self.ahead = ahead
        self.there_ms = self.back_ms = 0
        self.answer: Reply | None = None

    async def send(self, request: Command | Query) -> Reply:
        assert request is BEAT
        self.own.advance(self.there_ms)
        told = self.answer or ok(HeartbeatData((), agrees=True, now=self.own.now() + self.ahead))
        self.own.advance(self.back_ms)
        return told

    async def close(self) -> None: ...


def beat(clock: ServerClock, server: Far, there: int = 0, back: int = 0) -> Reply:
    server.there_ms, server.back_ms = there, back
    return asyncio.run(clock.beat(server, BEAT))


def test_a_clock_that_is_wrong_is_corrected_both_ways():
    """By the difference, to half of what the answer took."""
    for ahead in (AN_HOUR, -AN_HOUR):
        own = ManualClock(10 * AN_HOUR)
        clock, server = ServerClock(own), Far(own, ahead)
        assert clock.now() == own.now()
        beat(clock, server, there=80, back=20)
        assert abs(clock.now() - own.now() - ahead) <= 50 + 1


def test_clocks_that_agree_are_left_alone_however_slow_the_network_is():
    """An answer that took long says little; what it does not contradict stays."""
    own = ManualClock(AN_HOUR)
    clock, server = ServerClock(own), Far(own, 0)
    for there, back in ((0, 900), (900, 0), (0, 0), (3, 40), (30_000, 1)):
        beat(clock, server, there, back)
        assert clock.now() == own.now()


def test_faster_answers_make_it_better_and_slower_ones_do_not_make_it_worse():
    """So that time does not waver."""
    own = ManualClock(10 * AN_HOUR)
    clock, server = ServerClock(own), Far(own, AN_HOUR)
    errors: list[int] = []
    for there, back in ((2000, 0), (0, 0), (0, 2000), (2000, 0), (5, 5)):
        beat(clock, server, there, back)
        errors.append(abs(clock.now() - own.now() - AN_HOUR))
    assert 900 <= errors[0] <= 1001
    assert max(errors[1:]) <= 1


def test_a_clock_that_is_set_while_it_works_is_heeded_at_the_next_beat():
    """Whichever of the two it is."""
    own = ManualClock(10 * AN_HOUR)
    clock, server = ServerClock(own), Far(own, 0)
    beat(clock, server)
    server.ahead = -5_000
    beat(clock, server)
    assert abs(clock.now() - own.now() + 5_000) <= 1
    own.advance(-60_000)
    server.ahead += 60_000
    beat(clock, server)
    assert abs(clock.now() - own.now() - 55_000) <= 1


def test_an_answer_without_a_time_changes_nothing():
    """A refusal, or a server that does not tell."""
    own = ManualClock(AN_HOUR)
    clock, server = ServerClock(own), Far(own, AN_HOUR)
    for answer in (refuse(409, "gone"), ok(HeartbeatData((), agrees=True))):
        server.answer = answer
        assert beat(clock, server) is answer
        assert clock.now() == own.now()


@pytest.mark.parametrize("step", [-AN_HOUR, AN_HOUR])
def test_a_step_of_the_own_clock_changes_nothing(step):
    """Before the next heartbeat as well as after it: what has elapsed carries the estimate."""
    own = ManualClock(10 * AN_HOUR)
    clock, server = ServerClock(own), Far(own, AN_HOUR)
    beat(clock, server)
    before = clock.now()
    own.set(own.now() + step)
    server.ahead -= step
    own.advance(1_000)
    assert clock.now() == before + 1_000
    beat(clock, server)
    own.advance(1_000)
    assert clock.now() == before + 2_000


def test_a_wall_that_is_nudged_is_followed():
    """As time servers do it: a millisecond now and then is no step."""
    own = ManualClock(AN_HOUR)
    clock = ServerClock(own)
    for _ in range(100):
        own.set(own.now() + 1)
        own.advance(1_000)
        assert clock.now() == own.now()
