"""The budget of DESIGN 3: how many commands and commits a run may cost."""

import pytest
from msgspec.structs import replace

from layby.core.commands import RootVerdict
from layby.core.replies import Claim
from tests.helpers import requests as r
from tests.helpers.worlds import World


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_run_of_one_task_costs_two_commands(backend) -> None:
    """Start with a take; finish with the verdict on the run, and a take."""
    with World(backend, paused=False) as world:
        taker = r.take(1)
        (node,) = world.ok(r.run(with_take=taker, a="")).taken.claims
        before = world.engine.commits
        finish = replace(r.finish(node.task.id, with_take=taker), root=RootVerdict("resolved"))
        done = world.ok(finish)
        assert (done.promise.state, done.root.state) == ("resolved", "resolved")
        assert (done.taken.claims, world.promise("run/a")) == ([], done.root)
        assert world.engine.commits - before == 1


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_a_chain_of_n_costs_n_plus_2_commits(backend, length: int) -> None:
    """One to start, one for each node, one for the root."""
    nodes = {f"n{at:02}": f"n{at - 1:02}" if at else "" for at in range(length)}
    with World(backend, paused=False) as world:
        taker = r.take(1)
        before = world.engine.commits
        held: list[Claim] = list(world.ok(r.dag(nodes, with_take=taker)).taken.claims)
        while held:
            claim = held.pop()
            held += world.ok(r.finish(claim.task.id, with_take=taker)).taken.claims
        assert world.promise("run/a").state == "resolved"
        assert world.engine.commits - before <= length + 2
        assert world.promise("run/a").tail_at is None
