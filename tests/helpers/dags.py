"""Random workflows without cycles, and a naive meaning of what flows through them."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from layby.wire.json_values import encode
from layby.workflow.merge import Delta, Entry
from layby.workflow.shape import Shape

KEYS = ("a", "b", "c")


@st.composite
def shapes(draw: st.DrawFn, most: int = 9) -> Shape:
    """Tasks t0, t1, …; each depends on some before it, in any order."""
    after: dict[str, tuple[str, ...]] = {}
    for number in range(draw(st.integers(1, most))):
        earlier = draw(st.permutations(sorted(after)))
        wanted = draw(st.integers(0, min(4, len(earlier))))
        after[f"t{number}"] = tuple(earlier[:wanted])
    return Shape(dict(draw(st.permutations(list(after.items())))))


def deltas() -> st.SearchStrategy[Delta]:
    changes = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3) | st.none(), max_size=2)
    return changes.map(delta_of)


def delta_of(changes: Mapping[Any, Any]) -> Delta:
    """None stands for a removal."""
    changed = {key: encode(value) for key, value in changes.items() if value is not None}
    return Delta(changed, tuple(key for key, value in changes.items() if value is None))


class Naive:
    """The rule as DESIGN words it, with dicts, recursion and no sharing."""

    def __init__(self, shape: Shape, initial: dict[str, bytes], deltas: dict[str, Delta]) -> None:
        self.shape = shape
        self.initial = {key: Entry(value, None) for key, value in initial.items()}
        self.deltas = deltas

    def before(self, task: str) -> tuple[dict[str, Entry], set[tuple[str, str, str]]]:
        return self.joined(self.shape.after[task])

    def after(self, task: str) -> dict[str, Entry]:
        entries, _ = self.before(task)
        delta = self.deltas[task]
        changed = {key: Entry(value, task) for key, value in delta.changed.items()}
        removed = {key: Entry(None, task) for key in delta.removed}
        return {**entries, **changed, **removed}

    def final(self) -> tuple[dict[str, Entry], set[tuple[str, str, str]]]:
        return self.joined(self.shape.leaves)

    def joined(self, tasks: tuple[str, ...]) -> tuple[dict[str, Entry], set[tuple[str, str, str]]]:
        if not tasks:
            return self.initial, set()
        views = [self.after(task) for task in tasks]
        joined: dict[str, Entry] = {}
        conflicts: set[tuple[str, str, str]] = set()
        for key in {key for view in views for key in view}:
            found = [view[key] for view in views if key in view]
            latest = [one for one in found if not any(self.is_later(other, one) for other in found)]
            joined[key] = latest[-1]
            conflicts |= {
                (key, str(latest[-1].writer), str(one.writer))
                for one in latest
                if one.encoded != latest[-1].encoded
            }
        return joined, conflicts

    def is_later(self, entry: Entry, than: Entry) -> bool:
        if entry.writer is None or than.writer is None:
            return than.writer is None and entry.writer is not None
        return than.writer in self.ancestors(entry.writer)

    def ancestors(self, task: str) -> set[str]:
        direct = set(self.shape.after[task])
        return direct.union(*(self.ancestors(each) for each in direct))
