"""What takes may be handed: either store finds by its indexes what core says."""

import random
from collections.abc import Iterator

import pytest

from layby.core import commands as c
from layby.core.footprint import Footprint
from layby.core.queue import Entry, TakeKey, by_age, entry_of, is_for
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Timed, World

NOW = 1_000
NAMES = ("a", "b", "c")
KEYS: tuple[TakeKey, ...] = tuple(
    (group, names, prefix, codes)
    for codes in ((), *(tuple((name, code) for name in "abcf") for code in ("v1", "v2")))
    for group in ("g", "h", "none")
    for names in ((), ("a",), ("a", "b"), (*NAMES, "root", "f"))
    for prefix in ("", "x", "run/x")
)


def rows(chance: random.Random) -> Iterator[Timed]:
    """Nodes and roots of several groups and names: ready, due later, halted, over."""
    for number in range(60):
        key, group = f"{chance.choice('xy')}{number}", chance.choice("gh")
        at = chance.randrange(NOW)
        if chance.random() < 0.3:
            yield r.run(f"run/{key}", chance.choice((5, 10**9)), m="", n="m"), at
            continue
        tags = {
            "layby:priority": str((0, 0, 7, -3, 0)[number % 5]),
            "resonate:target": f"poll://any@layby.{group}",
            "layby:name": chance.choice(NAMES),
            "resonate:delay": str(chance.choice((0, NOW + 1))),
        }
        yield c.CreatePromise(id=key, timeout_at=chance.choice((NOW, 10**9)), tags=tags), at
        if chance.random() < 0.2:
            yield c.HaltTask(id=key), at
        if chance.random() < 0.2:
            yield r.take(1, group=group, names=(chance.choice(NAMES),), pid=key), at
        elif chance.random() < 0.5:
            yield from refused(chance, key, group, at)


def refused(chance: random.Random, key: str, group: str, at: int) -> Iterator[Timed]:
    """A task that some code has blocked, maybe because another is pinned."""
    yield r.take(1, group=group, names=NAMES, pid=key, prefix=key), at
    code, pin = chance.choice(("v1", "v2")), chance.choice((None, "v1"))
    ready_at = chance.choice((None, at))
    yield c.BlockTask(id=key, version=1, code=code, why="", pin=pin, ready_at=ready_at), at


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("seed", range(5))
def test_either_store_finds_what_core_says(backend, seed: int) -> None:
    """For every key, oldest first; nothing that is not due, over, or somebody else's."""
    with World(backend, now=NOW) as world:
        script = sorted(rows(random.Random(seed)), key=lambda timed: timed[1])
        world.batch(script)
        footprint = Footprint(
            takes=dict.fromkeys(KEYS, 1_000), take_count=1_000, oldest=1_000, since=NOW
        )
        with world.store.transaction():
            found = world.store.load(footprint, NOW).ready
            state = world.store.dump()
        for key in KEYS:
            for queue in found[key][:3]:
                expected: list[Entry] = sorted(
                    entry_of(task)
                    for task in state.tasks.values()
                    if found[key].queue_of(task) is queue and is_for(key, task) and task.is_ready
                    if task.ready_at is not None and task.ready_at <= NOW
                    if state.promises[task.id].timeout_at > NOW
                )
                assert queue.entries == expected, key
            nodes, oldest = found[key].nodes.entries, found[key].oldest.entries
            has_priorities = any(negative for negative, _, _ in nodes)
            assert oldest == (sorted(map(by_age, nodes)) if has_priorities else []), key
        assert any(each.nodes.entries for each in found.values())
        assert seed == 1 or any(each.refused.entries for each in found.values())
