"""Very many addresses listen to one promise: what that costs others, and that all are told."""

import random
from typing import Any, ClassVar, cast

import pytest

from layby.core import commands as c
from layby.core.footprint import Footprint
from layby.core.model import Millis
from layby.core.rows import Rows
from layby.core.settings import Settings
from layby.core.settlement import TOLD_CHARS
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Backend, World, Wrapped


class Watched(Wrapped):
    """A store, and the rows that were loaded from it last."""

    rows: ClassVar[Rows]

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        Watched.rows = self.inner.load(footprint, now)
        return Watched.rows


WATCHED = cast("Any", Watched)
SMALL = Settings(hop_limit=3)


def address(number: int) -> str:
    return f"poll://uni@g/{number:03}"


def tick_once(world: World) -> bool:
    return world.engine._tick(world.now)


def pruned(world: World) -> int:
    """Everything that has ended: how many of it."""
    found, cursor = 0, ""
    while cursor is not None:
        done = world.ok(c.Prune(completed=0, failed=0, foreign=True, cursor=cursor))
        found, cursor = found + done.roots, done.cursor
    return found


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


def told(world: World, promise_id: str) -> list[str]:
    return sorted(
        to for key, kind, to in world.dump().messages if (key, kind) == (promise_id, "unblock")
    )


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_settlement_tells_the_first_who_listen_and_its_tail_the_rest(backend: Backend) -> None:
    """In order, and everybody; what was not told yet is still a listener."""
    with World(backend, settings=SMALL) as world:
        world.ok(r.promise("foo"))
        listen(world, "foo", *range(8))
        world.ok(r.settle("foo"))
        counts = [len(told(world, "foo"))]
        while world.promise("foo").tail_at is not None:
            state = world.dump()
            assert told(world, "foo") == [address(n) for n in range(counts[-1])]
            assert len(state.listeners) == 8 - counts[-1]
            world.check()
            tick_once(world)
            counts.append(len(told(world, "foo")))
        assert counts == [3, 6, 8]
        assert world.dump().listeners == set()
        world.check()


def test_a_settlement_writes_so_many_characters_of_addresses_and_one_more_at_once() -> None:
    addresses = [f"{address(n)}/{'x' * (TOLD_CHARS // 200)}" for n in range(500)]
    size = len(addresses[0])
    with World() as world:
        world.ok(r.promise("foo"))
        world.batch([(c.RegisterListener(awaited="foo", address=each), 0) for each in addresses])
        world.ok(r.settle("foo"))
        first = told(world, "foo")
        assert first == addresses[: len(first)]
        assert TOLD_CHARS <= size * len(first) < TOLD_CHARS + size
        while tick_once(world):
            pass
        assert told(world, "foo") == addresses


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_who_begins_to_listen_in_the_batch_that_settles_is_told(backend: Backend) -> None:
    with World(backend, settings=SMALL) as world:
        world.ok(r.promise("foo"))
        listen(world, "foo", *range(1, 9))
        begins = [c.RegisterListener(awaited="foo", address=address(n)) for n in (0, 9, 10)]
        world.batch([(each, 0) for each in (*begins, r.settle("foo"))])
        assert told(world, "foo") == [address(n) for n in range(3)]
        while tick_once(world):
            pass
        assert told(world, "foo") == [address(n) for n in range(11)]
        world.check()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_batch_tells_whom_its_commands_would_tell_one_by_one(backend: Backend) -> None:
    """Whatever settles, begins to listen or is read among them, and in whatever order."""
    chance = random.Random(7)
    for script in range(10):
        names = [f"foo{script}.{n}" for n in range(3)]
        commands: list[c.Command] = [r.promise(each) for each in names]
        commands += [
            c.RegisterListener(awaited=chance.choice(names), address=address(chance.randrange(20)))
            for _ in range(60)
        ]
        reads = [c.GetPromise(id=each) for each in names]
        rest = [*commands[50:], *reads, *(r.settle(each) for each in names[:2])]
        chance.shuffle(rest)
        commands[50:] = rest
        with (
            World(backend, settings=SMALL) as one_by_one,
            World(backend, settings=SMALL) as batched,
        ):
            for each in commands:
                one_by_one.ok(each)
            cut = chance.randrange(len(commands))
            for some in (commands[:cut], commands[cut:]):
                batched.batch([(each, 0) for each in some])
            assert batched.dump() == one_by_one.dump()
            while tick_once(batched):
                assert tick_once(one_by_one)
                assert batched.dump() == one_by_one.dump()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_promises_with_many_listeners_that_settle_together_tell_all(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few of all the listeners one batch loads."""
    for module in ("core.rows", "store.statements", "store.memory"):
        monkeypatch.setattr(f"layby.{module}.MOST_LISTENERS", 4)
    ids = [f"foo{n}" for n in range(4)]
    with World(backend) as world:
        for each in ids:
            world.ok(r.promise(each, timeout_at=1_000))
            listen(world, each, *range(5))
        world.clock.advance(1_000)
        while tick_once(world):
            world.check()
        assert {each: told(world, each) for each in ids} == {
            each: [address(n) for n in range(5)] for each in ids
        }
        assert world.dump().listeners == set()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_promise_is_not_pruned_before_all_who_listen_to_it_are_told(backend: Backend) -> None:
    with World(backend, settings=SMALL) as world:
        world.ok(r.promise("foo"))
        listen(world, "foo", *range(5))
        world.ok(r.settle("foo"))
        assert told(world, "foo") == [address(n) for n in range(3)]
        world.engine.forget([*world.dump().messages.values()])
        assert (pruned(world), "foo" in world.dump().promises) == (0, True)
        while tick_once(world):
            pass
        assert told(world, "foo") == [address(n) for n in (3, 4)]
        world.engine.forget([*world.dump().messages.values()])
        assert (pruned(world), "foo" in world.dump().promises) == (1, True)
