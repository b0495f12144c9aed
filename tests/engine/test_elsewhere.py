"""Who is there and who is gone, as far as others on one database can see."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest

from layby.core.commands import GetPromise, Take
from layby.core.model import HeldKey
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.elsewhere import GONE_MS, LOOK_MS, Vouched
from layby.engine.engine import Engine
from layby.errors import StoreUnavailable
from layby.store.memory import MemoryStore
from tests.helpers.clocks import ManualClock

A, B = ("a", "1"), ("b", "1")


def test_who_is_not_seen_for_a_while_is_gone() -> None:
    """Once, and not before."""
    vouched = Vouched()
    assert vouched.gone([A, B], LOOK_MS * 10) == []
    assert vouched.gone([B], LOOK_MS * 11) == []
    assert vouched.gone([B], LOOK_MS * 10 + GONE_MS) == [A]
    assert vouched.gone([B], LOOK_MS * 13) == []


def test_who_comes_back_is_not_gone() -> None:
    """Its connection was reset."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 11) == []
    assert vouched.gone([A], LOOK_MS * 12) == []
    assert vouched.gone([], LOOK_MS * 13) == []


def test_nobody_is_gone_after_a_time_in_which_nobody_looked() -> None:
    """The database was away, for all of them."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 20) == []
    assert vouched.gone([], LOOK_MS * 21) == []


def test_nobody_is_gone_after_a_short_time_without_the_database() -> None:
    """Everybody's lock went with its connection, and not all are back at the same moment."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    vouched.begin_anew()
    assert vouched.gone([], LOOK_MS * 11) == []
    assert vouched.gone([], LOOK_MS * 12) == []


def test_who_was_never_seen_is_not_gone() -> None:
    """A worker that is connected to a server has no lock: its lease alone counts."""
    vouched = Vouched()
    assert vouched.gone([], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 12) == []


class SeenStore(MemoryStore):
    """One that others share: who is there, and whether it answers, is up to the test."""

    is_shared = True
    is_away = False
    there: Sequence[HeldKey] = (A,)

    def vouched(self) -> list[HeldKey]:
        return list(self.there)

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:
        if self.is_away:
            raise StoreUnavailable("away")
        return super().transaction(lazily=lazily)


@pytest.mark.parametrize("was_away", [True, False])
def test_after_the_database_was_away_everybody_is_looked_for_anew(was_away: bool) -> None:
    """It may have been away for others too: they get the time to come back."""
    clock, store = ManualClock(), SeenStore(Settings(), next_after)
    engine = Engine(store, clock)
    engine.start_inline()
    engine.call(Take(pid="a", incarnation="1", group="g", names=(), free=0))
    clock.advance(LOOK_MS)
    engine.pump()
    store.there = ()
    clock.advance(LOOK_MS)
    engine.pump()
    if was_away:
        store.is_away = True
        with pytest.raises(StoreUnavailable):
            engine.call(GetPromise(id="x"))
        store.is_away = False
    clock.advance(GONE_MS - LOOK_MS)
    engine.pump()
    assert store.dump().holders[A].is_alive == was_away
    engine.stop()
