"""Pruning gives one result on every store, and nothing goes that must not go."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core.commands import Prune
from layby.core.queries import SnapDebug, TickDebug
from layby.core.settings import RetentionPolicy, Settings
from layby.core.state import State
from tests.engine.test_equalities import (
    POSTGRES_WAYS,
    WAYS,
    assert_same,
    in_batches,
    kept,
    shown_plainly,
    sizes,
    small,
    without_notices,
)
from tests.helpers.pruned_trees import check_pruned
from tests.helpers.random_runs import SMALL, Script, run_scripts, seeded_run_script
from tests.helpers.seeds import seeds
from tests.helpers.worlds import Backend, History, World

KEPT = replace(SMALL, retention=RetentionPolicy(500, 900, 2_000), prune_rows=4)


def one_by_one(world: World, script: Script) -> tuple[list[Any], State, int]:
    """As for scripts that prune nothing, and what is pruned is looked at as well."""
    history, replies, pruned, after = History(), [], 0, world.dump()
    for request, now in script:
        before = after
        reply = world.send(request, now)
        replies.append(kept(reply))
        after = world.dump()
        if isinstance(request, Prune):
            gone = check_pruned(before, after)
            history.pruned(gone)
            pruned += len(gone)
        elif isinstance(request, TickDebug):
            history.pruned(before.promises.keys() - _unpruned(after))
        if not isinstance(request, SnapDebug | Prune):
            history.answered(shown_plainly(reply))
        history.observe(after, now)
    return replies, without_notices(after), pruned


def _unpruned(state) -> set[str]:
    return {key for key, promise in state.promises.items() if not promise.is_expired}


def assert_equal(
    script: Script,
    cuts: list[int],
    using: Settings,
    *,
    mixed: bool,
    backend: Backend = "sqlite",
    ways: Mapping[str, Callable[[Settings], World]] = WAYS,
) -> int:
    with small("memory", using) as world:
        replies, state, pruned = one_by_one(world, script)
        told = replies, state
    with small(backend, using) as world:
        replies, state, _ = one_by_one(world, script)
        assert_same(f"one by one, {backend}", script, (replies, state), told)
    for name, new_world in ways.items():
        if using.retention is not None and name.startswith("threaded"):
            continue  # its first tick may come before the world is paused
        with new_world(using) as world:
            replies, state = in_batches(world, script, cuts, mixed=mixed)
            assert_same(name, script, (replies, without_notices(state)), told)
    return pruned


@pytest.mark.parametrize("using", [SMALL, KEPT], ids=["asked", "by time"])
@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
@given(data=st.data())
@settings(max_examples=6)
def test_every_way_prunes_the_same(using: Settings, early: bool, data: st.DataObject) -> None:
    """Alone or batched, inline or threaded, on any store, with more rows, after a rollback."""
    script = data.draw(run_scripts(early=early, settings=using, prunes=True))
    assert_equal(script, data.draw(sizes), using, mixed=early)


@pytest.mark.parametrize("seed", seeds(4, slow=24))
def test_long_scripts_prune_the_same(seed: int) -> None:
    """The same for long scripts that a seed names."""
    chance = random.Random(seed)
    early, using = seed % 2 == 0, KEPT if seed % 3 == 0 else SMALL
    script = seeded_run_script(seed, 150, early=early, settings=using, prunes=True)
    assert_equal(script, [chance.randint(1, 20) for _ in range(5)], using, mixed=early)


def test_scripts_prune_something() -> None:
    """Runs of one life and of several, foreign trees, ids, placeholders: each at some time."""
    expected = {"lives", "foreign", "roots", "ids", "placeholders", "kept"}
    seen: set[str] = set()
    for seed in range(60):
        if seen == expected:
            break
        with small("memory", SMALL) as world:
            for request, now in seeded_run_script(seed, 150, early=seed % 2 == 0, prunes=True):
                is_real = isinstance(request, Prune) and not request.dry_run
                before = world.dump() if is_real else State()
                reply = world.send(request, now)
                if not is_real:
                    continue
                done = reply.data
                gone = check_pruned(before, world.dump())
                seen |= {"lives" for key in gone if ":life/" in key}
                seen |= {"foreign" for key in gone if key[0] == "e"}
                for name in ("roots", "ids", "placeholders", "kept"):
                    seen |= {name} if getattr(done, name) else set()
    assert seen == expected


@pytest.mark.parametrize("seed", seeds(1, slow=8))
def test_scripts_that_prune_are_equal_on_postgres(seed: int) -> None:
    """What is pruned is locked before, and gone afterwards, as elsewhere."""
    script = seeded_run_script(seed, 150, early=True, prunes=True)
    cuts = [3, 17, 8]
    assert_equal(script, cuts, SMALL, mixed=True, backend="postgres", ways=POSTGRES_WAYS)
