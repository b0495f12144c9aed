"""What takes may be handed: either store finds by its indexes what core says."""

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from layby.core import commands as c
from layby.core.footprint import Footprint
from layby.core.queue import Entry, TakeKey, by_age, entry_of, is_for
from layby.store.sql import SqlStore
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Timed, World, new_store

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


def prior(key: str, priority: int, name: str) -> c.CreatePromise:
    tags = {"resonate:target": "poll://any@layby.g", "layby:name": name}
    tags["layby:priority"] = str(priority)
    return c.CreatePromise(id=key, timeout_at=10**9, tags=tags)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_unknown_names_in_front_of_a_priority_hide_nobody(backend) -> None:
    """More of them than are read at once, in each priority, and others of ours behind."""
    with World(backend, now=NOW) as world:
        world.batch([(prior(f"x{at:02}", 5, "other"), at) for at in range(40)])
        world.batch([(prior(f"y{at}", 5, "mine"), 50 + at) for at in range(3)])
        world.batch([(prior(f"z{at}", -5, "mine"), at) for at in range(3)])
        taken = world.ok(r.take(4, names=("mine",)))
        assert [claim.task.id for claim in taken.claims] == ["y0", "y1", "y2", "z0"]
        assert (taken.next_place.priority, taken.oldest_left) == (-5, 1)
        world.check(NOW)


def test_priorities_are_found_by_index() -> None:
    """From one to the next, and of each the oldest: no row is looked at in vain."""
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        dialect, given = store._sql.dialect, {"group": "g", "now": 1, "since": 0, "prefix": ""}
        names = {"names": '["a"]', "priorities": "[1]", "most": 3, "nodes": 3, "roots": 3}
        for statement, indexes in (
            (dialect.prior, {"promises_prior"}),
            (dialect.prior_by_name, {"promises_prior_names"}),
            (dialect.front, {"promises_ready_nodes", "promises_refused"}),
            (dialect.by_name, {"promises_ready_names"}),
        ):
            told = store._connection.execute(f"EXPLAIN QUERY PLAN {statement}", given | names)
            looks = [row[3] for row in told.fetchall() if " promises" in row[3]]
            assert all(look.startswith("SEARCH") for look in looks), looks
            found = {word for look in looks for word in look.split() if "promises_" in word}
            assert indexes <= found, looks
            assert not any("TEMP B-TREE" in look for look in looks), looks
