"""Small things the tests of the Runner share."""

from collections.abc import Mapping
from typing import Any

from layby import Runner, Workflow
from layby.core.invariants import check
from layby.workflow.workflow import AnyTask


def flow_of(*tasks: AnyTask, name: str = "flow") -> Workflow[Mapping[str, Any]]:
    return Workflow(name, tasks=list(tasks))


async def sound(runner: Runner) -> None:
    """No invariant is violated in the Runner's store (inline engines only)."""
    assert runner.engine.is_inline
    state = runner.engine._store.dump()
    assert check(state, runner.now()) == []
