"""Very many addresses listen to one promise: what that costs others, and that all are told."""

from typing import Any, ClassVar, cast

import pytest

from layby.core import commands as c
from layby.core.footprint import Footprint
from layby.core.model import Millis
from layby.core.rows import Rows
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Backend, World, Wrapped


class Watched(Wrapped):
    """A store, and the rows that were loaded from it last."""

    rows: ClassVar[Rows]

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        Watched.rows = self.inner.load(footprint, now)
        return Watched.rows


WATCHED = cast("Any", Watched)


def address(number: int) -> str:
    return f"poll://uni@g/{number:03}"


def listen(world: World, awaited: str, *numbers: int) -> None:
    world.batch([(c.RegisterListener(awaited=awaited, address=address(n)), 0) for n in numbers])


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize(
    "command",
    [
        c.GetPromise(id="foo"),
        c.WatchRun(id="foo", hold=False),
        c.GetTask(id="foo"),
        c.RegisterListener(awaited="foo", address=address(999)),
    ],
    ids=lambda each: each.kind,
)
def test_who_does_not_settle_a_promise_loads_nobody_else_who_listens_or_waits(
    backend: Backend, command: c.Command
) -> None:
    with World(backend, wrap=WATCHED) as world:
        world.ok(r.target("foo"))
        listen(world, "foo", *range(5))
        world.ok(r.claimed("sdk"))
        world.ok(r.suspend("sdk", 1, "foo"))
        world.send(command)
        rows = Watched.rows
        assert rows.listeners.get("foo", set()) <= {address(999)}
        assert (rows.waits, "sdk" in rows.known) == ({}, False)
        world.ok(r.settle("foo"))
        assert world.task("sdk").state == "pending"
        assert len([key for key in world.dump().messages if key[1] == "unblock"]) >= 5
        world.check()
