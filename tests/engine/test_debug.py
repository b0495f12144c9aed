"""The debug surface: off unless enabled (C12), and what it does when it is on."""

from typing import Any

import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import FAR, MessageKey
from layby.engine.engine import Engine
from layby.engine.outbox import Nobody
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock
from tests.helpers.worlds import World, new_store

SURFACE = [
    q.StartDebug(),
    q.StopDebug(),
    q.ResetDebug(),
    q.TickDebug(time=9_000),
    q.SnapDebug(),
]


@pytest.mark.parametrize("query", SURFACE, ids=lambda query: query.kind)
def test_c12_the_debug_surface_is_off_unless_enabled(query: q.Query) -> None:
    """Every debug kind is refused with 403, and nothing happens."""
    engine = Engine(new_store("memory"), ManualClock())
    engine.start_inline()
    engine.call(r.promise("x", 500))
    reply = engine.call(query)
    assert (reply.status, reply.data) == (403, "Debug operations are disabled")
    found: Any = engine.call(c.GetPromise(id="x")).data
    assert found.promise.is_pending
    engine.stop()


def test_start_pauses_time_and_delivery_and_stop_resumes_them() -> None:
    """Between the two only `debug.tick` moves anything, and nothing is sent."""
    sent: list[str] = []

    class Receiver(Nobody):
        def offered(self, outgoing):
            sent.extend(each.message.id for each in outgoing)

    with World(paused=True, delivery=Receiver()) as world:
        world.ok(r.promise("x", 500))
        world.ok(r.target("t"))
        world.clock.advance(500)
        world.engine.pump()
        assert world.promise("x").is_pending
        assert sent == []
        world.ok(q.StopDebug())
        world.engine.pump()
        assert world.promise("x").state == "rejected_timedout"
        assert sent == ["t"]


class Carrier(Nobody):
    """Knows what is under way; what is offered and under way already it does not carry again."""

    def __init__(self) -> None:
        self.under_way: dict[MessageKey, int] = {}

    def committed(self, outgoing, withdrawn):
        for key in withdrawn:
            self.under_way.pop(key, None)
        self.under_way.update({each.key: each.message.version for each in outgoing})

    def offered(self, outgoing):
        for each in outgoing:
            self.under_way.setdefault(each.key, each.message.version)

    @property
    def versions(self) -> list[int]:
        return list(self.under_way.values())


def test_what_was_told_before_a_pause_does_not_hide_what_comes_after_it() -> None:
    """A message that was taken back or replaced meanwhile is not under way any more."""
    carrier = Carrier()
    with World(paused=False, delivery=carrier) as world:
        world.ok(r.target("t"))
        assert carrier.versions == [0]
        world.ok(q.StartDebug())
        world.ok(r.acquire("t", 0))
        world.ok(c.ReleaseTask(id="t", version=1))
        assert carrier.versions == []
        world.ok(q.StopDebug())
        world.engine.pump()
        assert carrier.versions == [1]


def test_what_was_told_before_a_reset_does_not_hide_what_comes_after_it() -> None:
    """A new promise of the same id is news, also when it is made in a pause."""
    carrier = Carrier()
    for backend in ("memory", "sqlite"):
        with World(backend, paused=False, delivery=carrier) as world:
            world.ok(r.target("t"))
            assert carrier.versions == [0]
            world.ok(q.StartDebug())
            world.reset()
            assert carrier.versions == []
            world.ok(r.target("t"))
            world.ok(q.StopDebug())
            world.engine.pump()
            assert carrier.versions == [0]
            world.reset()
            assert carrier.versions == []


def test_reset_forgets_everything() -> None:
    """Rows, waits, messages, holders and schedules, on either store."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            world.ok(r.run(a="", b="a"))
            world.ok(r.take())
            world.ok(r.target("t"))
            world.reset()
            state = world.dump()
            assert not any(getattr(state, name) for name in state.__struct_fields__)
            assert world.store.earliest() == FAR


def test_tick_may_look_into_the_future() -> None:
    """Its time counts, not the clock's."""
    with World() as world:
        world.ok(r.promise("x", 500))
        assert world.ok(q.TickDebug(time=500)) == []
        assert not world.promise("x").is_pending
