"""What people see of the child runs of a run, derived from their roots."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from layby.core import tag_names
from layby.core.children import caller_of, is_detached
from layby.core.fields import Tags
from layby.core.ids import root_of
from layby.core.model import Millis, Promise
from layby.core.queries import SearchPromises
from layby.workflow import outcome, plan
from layby.workflow.outcome import RunState

MOST_CHILDREN: Final = 1_000
"""So many are named, by id."""
_tags = msgspec.json.Decoder(Tags).decode


class ChildState(Struct, frozen=True, kw_only=True):
    """A run that a task of another run has started."""

    run_id: str
    flow: str
    state: RunState | Literal["Running"]
    task: str
    """The task that started it."""
    life: int = 1
    """The life of the parent in which it did."""
    detached: bool = False
    lives: int = 1


def children_of(run_root: str) -> SearchPromises:
    """The question that finds the roots of all lives of all children of a run."""
    return SearchPromises(tags={tag_names.PARENT: root_of(run_root)}, limit=100)


def child_states(roots: Iterable[Promise], now: Millis) -> list[ChildState]:
    """By run id; each as it is in its latest life."""
    latest: dict[str, Promise] = {}
    for root in roots:
        run_id = plan.parse_root_id(root.id)
        if run_id is not None and plan.life_of(root.id) >= _life(latest.get(run_id)):
            latest[run_id] = root
    return [_state(run_id, latest[run_id].at(now)) for run_id in sorted(latest)]


def caller_named(root: Promise) -> str | None:
    """`task 'ship' of run 'order-7'`: who has started this run; None if no task has."""
    node = _caller(root)
    return None if node is None else f"task '{node.task_id}' of run '{node.run_id}'"


def shown_in(children: Sequence[ChildState], life: int) -> tuple[ChildState, ...]:
    """Those of a life of the parent, and of those before: they are found again."""
    return tuple(child for child in children if child.life <= life)


def _state(run_id: str, root: Promise) -> ChildState:
    caller = _caller(root)
    return ChildState(
        run_id=run_id,
        flow=_tags(root.tags).get(tag_names.NAME, ""),
        state="Running" if root.is_pending else outcome.read_run(root).status,
        task="" if caller is None else caller.task_id,
        life=1 if caller is None else caller.life,
        detached=is_detached(root),
        lives=plan.life_of(root.id),
    )


def _caller(root: Promise) -> plan.NodeId | None:
    caller = caller_of(root)
    return None if caller is None else plan.parse_node_id(caller)


def _life(root: Promise | None) -> int:
    return 0 if root is None else plan.life_of(root.id)
