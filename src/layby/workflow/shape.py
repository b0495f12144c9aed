"""The shape of a workflow: which task comes after which, and what follows from that."""

from collections.abc import Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from layby.errors import WorkflowError


class Shape:
    """A directed graph without cycles. `after` maps each task to the tasks it depends on."""

    def __init__(self, after: Mapping[str, tuple[str, ...]]) -> None:
        self.after = dict(after)
        self.order = _topological(self.after)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Tasks nobody depends on, in the order the tasks were given."""
        awaited = {each for dependencies in self.after.values() for each in dependencies}
        return tuple(task for task in self.after if task not in awaited)

    def ancestors(self, task: str) -> frozenset[str]:
        """Every task that has settled before this one starts."""
        mask = self._ancestors[task]
        return frozenset(each for each, number in self.position.items() if mask >> number & 1)

    def precedes(self, earlier: str, later: str) -> bool:
        return bool(self._ancestors[later] >> self.position[earlier] & 1)

    @cached_property
    def position(self) -> dict[str, int]:
        """The index of each task in `order`."""
        return {task: number for number, task in enumerate(self.order)}

    @cached_property
    def _ancestors(self) -> dict[str, int]:
        """A bit per task: sets of names would need gigabytes for a chain of 10,000 tasks."""
        masks: dict[str, int] = {}
        for task in self.order:
            mask = 0
            for dependency in self.after[task]:
                mask |= masks[dependency] | 1 << self.position[dependency]
            masks[task] = mask
        return masks


def same_shape(shape: Shape) -> Shape:
    """For whoever is to be given a function: `partial(same_shape, shape)` can be pickled."""
    return shape


def _topological(after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    try:
        return tuple(TopologicalSorter(after).static_order())
    except CycleError as cycle:
        path = " -> ".join(cycle.args[1])
        raise WorkflowError(f"dependencies form a cycle: {path}; remove one of them") from None
