"""Limits, rates, weights, priorities, deaths and changes of limits together, in virtual time.

Each has tests of its own; here the engine and the `Credit` of several workers meet all of them.
"""

from collections.abc import Iterable, Sequence
from random import Random
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layby.core import limit, limits, permits, regaining, ticks
from layby.engine import waiting
from layby.worker import credit
from tests.helpers.fleet import EVENTS, MORE_EVENTS, Broken, Event, Fleet, schedule
from tests.helpers.planted_bugs import planted
from tests.helpers.worlds import Backend

FEW = 15
"""Schedules in which nothing may be found each time; the slow tests draw many."""
TELLING = (1, 7, 5, 6, 12, 53)
"""Schedules that show most of the planted bugs: they are tried first."""
MORE_TELLING = (42,)
"""The same of those with all kinds of events."""
ONCE_FOUND = (4538, 147, 317, 3932)
"""Schedules that have shown a bug of ours."""

BUGS: dict[str, tuple[ModuleType, str, str]] = {
    "one more than a limit allows": (
        permits,
        "rule.free(d.limit(name), d.now) <= 0:\n            return name",
        "rule.free(d.limit(name), d.now) < 0:\n            return name",
    ),
    "a parked body goes on without a permit": (
        permits,
        "rule.free_permits(d.limit(name)) <= 0:\n            return name",
        "False:\n            return name",
    ),
    "begins are not counted for the rate": (limit, "+ rate.share_us", "+ 0"),
    "a burst is one too large": (limit, "max(0, self.burst - ", "max(0, self.burst + 1 - "),
    "a change of a rate gives a second burst": (
        limit,
        "            each_us = then_us * was_us // ahead_us",
        "            pass",
    ),
    "a permit that is freed lets nobody in": (
        permits,
        "d.put_limit(d.limit(name).holding(by))\n        touched |= {name: None} if by < 0 else {}",
        "d.put_limit(d.limit(name).holding(by))\n        pass",
    ),
    "more permits let nobody in": (
        limits,
        "d.put_limit(limit)\n    permits.let_in(d, name)",
        "d.put_limit(limit)\n    pass",
    ),
    "the rate lets nobody in later": (
        permits,
        "next_at = rule.next_begin_at(limit, d.now) if begins <= 0 else None",
        "next_at = None",
    ),
    "the youngest of a lane is let in first": (
        permits,
        "for place, task_id in list(lane.known):",
        "for place, task_id in list(lane.known)[::-1]:",
    ),
    "one that was turned back loses its turn": (
        permits,
        "is_older = place < last and older < _free(d, gate)",
        "is_older = False",
    ),
    "slots are kept for one that has no permit": (
        permits,
        "if opened is not None and _free(d, name) <= 0:",
        "if False:",
    ),
    "a take that waits keeps the lease of a dead worker": (
        waiting,
        "renews=False",
        "renews=True",
    ),
    "the dead keep their permits for longer": (
        ticks,
        "elif holder.expires_at <= d.now:",
        "elif holder.expires_at + 3_000 <= d.now:",
    ),
    "what began by a faster rate counts for little": (
        limit,
        "max(ahead_us, min(then_us, rule.burst * each_us))\n            each_us = then_us",
        "ahead_us\n            ahead_us = then_us",
    ),
    "a body that is about to go on loses its permit": (
        regaining,
        "if waits.is_parked(task) and not waits.is_for_slot(task):",
        "if False:",
    ),
    "parked bodies that no longer count keep their permits": (
        limits,
        "return may_hold if before is None else before.count_parked",
        "return False",
    ),
    "an answer that was cut short is no news": (
        credit,
        "if ask.number == 0 or ask.number > self._told:\n            self._note_left(ANYBODY",
        "if False:\n            self._note_left(ANYBODY",
    ),
    "no turn is that of the oldest": (
        credit,
        "return self._turns % EVERY == EVERY - 1 and self._is_mixed",
        "return False",
    ),
    "a heavy body takes one slot": (
        credit,
        "self.held += head.slots\n            self._turns",
        "self.held += 1\n            self._turns",
    ),
}
RARE = ("a take that waits keeps the lease of a dead worker",)

events = st.lists(
    st.tuples(st.sampled_from(MORE_EVENTS), st.integers(0, 59)), min_size=5, max_size=40
)
sizes = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_everything_holds_together(backend: Backend) -> None:
    @given(sizes, events)
    @settings(
        max_examples={"memory": 30, "sqlite": 6}[backend],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def hold(slots: list[int], happening: list[Event]) -> None:
        Fleet(tuple(slots), backend).play(happening)

    hold()


def seed_that_shows(seeds: Iterable[int], kinds: Sequence[str] = MORE_EVENTS) -> int | None:
    for seed in seeds:
        slots, happening = schedule(Random(seed), kinds)
        try:
            Fleet(slots).play(happening)
        except Broken:
            return seed
    return None


def test_without_a_bug_nothing_is_found() -> None:
    assert seed_that_shows(ONCE_FOUND, EVENTS) is None
    assert seed_that_shows(range(FEW)) is None


@pytest.mark.slow
def test_without_a_bug_nothing_is_found_for_long() -> None:
    assert seed_that_shows(range(FEW, 2_000)) is None


@pytest.mark.parametrize("name", [name for name in BUGS if name not in RARE])
def test_the_properties_find(name: str) -> None:
    with planted(*BUGS[name]):
        seed = seed_that_shows((*TELLING, *ONCE_FOUND), EVENTS)
        assert seed is not None or seed_that_shows((*MORE_TELLING, *range(120))) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", RARE)
def test_the_properties_find_what_is_rare(name: str) -> None:
    with planted(*BUGS[name]):
        assert seed_that_shows(range(1_200)) is not None
