"""The memory store: work grows with what is done, not with what is there."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from layby.core import commands as c
from layby.core.state import State
from layby.store.memory import MemoryStore
from layby.store.memory_indexes import COMPACT, Groups, Indexes, InOrder
from tests.helpers import requests as r
from tests.helpers.worlds import World, frozen

MEASURED = ("store/memory.py", "store/memory_indexes.py", "core/rows.py", "core/queue.py")


def steps(work: Callable[[], object]) -> int:
    """Instructions that the store and the rows execute: each row looked at costs some."""
    counted = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.endswith(MEASURED):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        counted[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted[0]


def one_by_one(count: int) -> int:
    """A run whose nodes are all ready at once, taken and finished one after the other."""
    with World("memory") as world:
        world.ok(r.dag({f"n{at:04}": "" for at in range(count)}))

        def work() -> None:
            (claim,) = world.ok(r.take(1)).claims
            while claim is not None:
                done = world.ok(r.finish(claim.task.id, with_take=r.take(1)))
                claim = next((each for each in done.taken.claims if not each.task.is_root), None)

        return steps(work)


def fan_in(count: int) -> int:
    """A node behind many others, settled one after the other."""
    nodes = {f"n{at:04}": "" for at in range(count)}
    with World("memory") as world:
        world.ok(r.dag(nodes | {"z": " ".join(nodes)}))

        def work() -> None:
            for name in nodes:
                world.ok(r.settle(f"run/a:{name}"))

        return steps(work)


def timers(count: int) -> int:
    """Many deadlines, each at its own time."""
    with World("memory") as world:
        for at in range(count):
            world.ok(r.promise(f"p{at:04}", timeout_at=10 + at))

        def work() -> None:
            for _ in range(count):
                world.tick(1)

        return steps(work)


@pytest.mark.parametrize("work", [one_by_one, fan_in, timers])
def test_work_is_linear(work: Callable[[int], int]) -> None:
    """Twice as many cost twice as much; scans of all would cost four times as much."""
    once, twice = work(60), work(120)
    assert once > 60
    assert twice < 2.2 * once


def test_a_state_that_is_put_in_is_indexed() -> None:
    """As the tests do to undo a commit: everything is found again."""
    with World("memory") as world:
        world.ok(r.run(a="", b="a"))
        world.ok(r.claimed("x", branch="r"))
        world.ok(r.take(1))
        world.ok(r.promise("y", 50))
        world.ok(c.RegisterListener(awaited="y", address="poll://uni@other/w"))
        world.ok(r.target("t", 1_000))
        assert isinstance(world.store, MemoryStore)
        state = frozen(world.store.state)
        world.store.state = state
        assert [h.id for h in world.ok(r.take(5)).claims] == []
        world.ok(r.finish("run/a:a"))
        assert [claim.task.id for claim in world.ok(r.take(5)).claims] == ["run/a:b"]
        world.tick(1_000)
        assert world.promise("y").state == "rejected_timedout"
        assert ("y", "unblock", "poll://uni@other/w") in world.dump().messages


def shape(indexes: Indexes) -> dict[str, Any]:
    """What an index holds, without what is empty."""
    found: dict[str, Any] = {}
    for name, index in vars(indexes).items():
        if isinstance(index, InOrder):
            found[name] = list(index)
        elif isinstance(index, Counter):
            found[name] = dict(index)
        elif isinstance(index, Groups):
            found[name] = {key: list(ids) for key, ids in index._ids.items()}
        elif name in ("ready", "refused"):
            found[name] = {
                (key, inner): list(ids)
                for key, lines in index.items()
                for inner, ids in lines.items()
                if list(ids)
            }
        else:
            found[name] = {key: sorted(ids) for key, ids in index.items() if list(ids)}
    return found


def test_indexes_are_what_a_new_one_would_be() -> None:
    """After random scripts, whatever they did."""
    from tests.helpers.random_runs import seeded_run_script

    for seed in range(20):
        with World("memory") as world:
            for request, now in seeded_run_script(seed, 80, early=True):
                world.send(request, now)
            store: Any = world.store
            assert shape(store._indexes) == shape(Indexes(store.state))


def test_what_leaves_at_the_front_is_forgotten_in_time() -> None:
    """And what is not there cannot be removed."""
    line: InOrder[str] = InOrder()
    texts = [f"{at:05}" for at in range(2 * COMPACT)]
    for text in texts:
        line.add(text)
        line.add(text)
    for text in texts[: COMPACT + 1]:
        line.remove(text)
        line.remove(text)
    assert list(line) == texts[COMPACT + 1 :]
    assert (len(line), len(line._entries)) == (COMPACT - 1, COMPACT)
    line.remove(texts[-1])
    assert len(line) == COMPACT - 2


def test_a_group_without_members_is_gone() -> None:
    groups: Groups[str] = Groups()
    groups.add("k", "a")
    groups.remove("k", "b")
    groups.remove("other", "a")
    groups.remove("k", "a")
    assert (list(groups.of("k")), groups._ids) == ([], {})
    assert shape(Indexes(State()))["held"] == {}
