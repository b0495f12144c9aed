"""The shape of a workflow: which task comes after which, and what follows from that."""

from collections.abc import Collection, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from layby.errors import WorkflowError


class Shape:
    """A directed graph without cycles. `after` maps each task to the tasks it depends on.

    Those that clean up come after all others, whether or not they say so.
    """

    def __init__(
        self, after: Mapping[str, tuple[str, ...]], cleanups: Collection[str] = ()
    ) -> None:
        self.cleanups = frozenset(cleanups)
        self._given = dict(after)
        self.after = _with_ends(self._given, self.cleanups) if cleanups else self._given
        self.order = _topological(self.after)

    def is_of(self, after: Mapping[str, tuple[str, ...]], cleanups: Collection[str]) -> bool:
        """Whether it was made of these, in this order."""
        is_same = list(self._given.items()) == list(after.items())
        return is_same and self.cleanups == frozenset(cleanups)

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


def _with_ends(
    after: Mapping[str, tuple[str, ...]], cleanups: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    ordinary = tuple(each for each in after if each not in cleanups)
    return {
        each: tuple(dict.fromkeys((*ordinary, *given))) if each in cleanups else given
        for each, given in after.items()
    }


def _topological(after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    try:
        return tuple(TopologicalSorter(after).static_order())
    except CycleError as cycle:
        path = " -> ".join(cycle.args[1])
        raise WorkflowError(f"dependencies form a cycle: {path}; remove one of them") from None
