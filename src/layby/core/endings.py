"""What has ended and may be pruned: where a pass looks, and what it finds there.

A pass goes through stages, each an index in order of time. What a store must find for it is said
by `Endings`; which rows that takes, and how many, is worked out here, the same for every store.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, get_args

from msgspec import Struct

from layby.core.ids import ancestors_of, root_of
from layby.core.model import Holder, Millis, Promise, Task

Stage = Literal[
    "completed", "failed", "foreign_completed", "foreign_failed", "placeholders", "ids", "holders"
]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
OF_RUNS: Final[tuple[Stage, ...]] = ("completed", "failed")
OF_TREES: Final[tuple[Stage, ...]] = (*OF_RUNS, "foreign_completed", "foreign_failed")
Key = tuple[Millis, str]
"""Since when, and the id: the order of a stage."""

RUNS: Final = "run/"
"""How the ids of everything in a run of a Runner begin: the stages of foreign trees leave it out"""
ROWS_PER_TREE: Final = 2
"""A batch looks at half as many trees as rows, since the smallest run has two: so it is full, and
reads few ids in vain where runs are larger.
"""


class Look(Struct, frozen=True):
    """One batch: the next of a stage that have been there for `age_ms`, with `rows` rows at most.

    `tree`: the last id that was looked at of the tree of the first one, which is larger than that.
    """

    stage: Stage
    age_ms: Millis
    rows: int
    after: Key = (-1, "")
    tree: str | None = None

    @property
    def candidates(self) -> int:
        if self.tree is not None:
            return 1
        return max(1, self.rows // ROWS_PER_TREE) if self.stage in OF_TREES else self.rows

    def root_of(self, candidate: str) -> str:
        """Lives of a run end in trees of their own name, and are pruned with the first."""
        return candidate.partition(":")[0] if self.stage in OF_RUNS else root_of(candidate)


class Found(Struct):
    """What a batch may prune."""

    keys: Sequence[Key] = ()
    is_last: bool = True
    """Nothing of the stage is behind them."""
    trees: Mapping[str, Sequence[str]] = {}
    """By root: the ids below it. Only of candidates that speak for their tree."""
    alone: Mapping[str, Sequence[str]] = {}
    """Foreign candidates whose tree has no root promise; and the ids that theirs continue."""
    cut: str | None = None
    """The last id of the only tree, when that has more rows than a batch may have."""
    has_room: bool = False
    """At the end of a pass: what was deleted has left room that can be given back."""

    def ids(self, look: Look) -> set[str]:
        """Every promise of which the row is needed."""
        if look.stage == "holders":
            return set()
        below = (key for ids in self.trees.values() for key in ids)
        above = (key for ids in self.alone.values() for key in ids)
        return {*(key for _, key in self.keys), *self.trees, *below, *above}


class Endings(Protocol):
    """How a store finds them: by index."""

    def ended_keys(self, look: Look, until: Millis, limit: int) -> list[Key]:
        """Of a stage, in order: after the key of the look, or from it if within its tree."""
        ...

    def ids_below(self, roots: Sequence[str], after: str, limit: int) -> Mapping[str, list[str]]:
        """The first ids after this one, in order, of each tree; without those of the roots."""
        ...

    def existing(self, ids: Sequence[str]) -> Collection[str]:
        """Those of these promises that there are."""
        ...

    def has_room(self) -> bool:
        """Whether it takes more room than it needs, and can give that back bit by bit."""
        ...


def find(store: Endings, look: Look, now: Millis) -> Found:
    keys = store.ended_keys(look, now - look.age_ms, look.candidates + 1)
    if look.tree is not None and keys[:1] != [look.after]:
        return Found([look.after], is_last=False)  # it is gone, and with it its tree
    is_last = len(keys) <= look.candidates
    keys = keys[: look.candidates]
    if look.stage not in OF_TREES:
        is_end = is_last and look.stage == STAGES[-1]
        return Found(keys, is_last, has_room=is_end and store.has_room())
    roots, alone = _speaking(store, look, keys)
    below = store.ids_below(roots, look.tree or "", look.rows + 1)
    found = _fitting(look, keys, {root: below.get(root, []) for root in roots}, is_last=is_last)
    found.alone = {key: ancestors_of(key) for _, key in found.keys if key in alone}
    return found


def _speaking(store: Endings, look: Look, keys: Sequence[Key]) -> tuple[list[str], set[str]]:
    """Roots whose trees are needed; and foreign candidates whose tree has no root promise."""
    roots = list(dict.fromkeys(look.root_of(key) for _, key in keys))
    if look.stage in OF_RUNS:
        return roots, set()
    there = store.existing(roots)
    alone = {key for _, key in keys if look.root_of(key) not in there}
    return [key for _, key in keys if key in there], alone


def stage_of(promise: Promise, task: Task | None) -> tuple[Stage, Millis] | None:
    """Where a stored promise is found, and by which time; the indexes of SQL say the same."""
    if promise.expired_at is not None:
        return "ids", promise.expired_at
    if promise.settled_at is None:
        return ("placeholders", promise.created_at) if promise.placeholder else None
    is_completed = promise.state == "resolved"
    if task is not None and task.is_root:
        return ("completed" if is_completed else "failed"), promise.settled_at
    if promise.id.startswith(RUNS):
        return None
    return ("foreign_completed" if is_completed else "foreign_failed"), promise.settled_at


def is_past(holder: Holder) -> bool:
    """It is gone and has nothing any more; `expires_at` says since when."""
    return not holder.is_alive and holder.held == 0


def _fitting(
    look: Look, keys: Iterable[Key], below: Mapping[str, list[str]], *, is_last: bool
) -> Found:
    """As many whole trees as fit into the batch; of a first one that does not, its beginning."""
    taken: list[Key] = []
    trees: dict[str, Sequence[str]] = {}
    room = look.rows
    for key in keys:
        root = look.root_of(key[1])
        if root not in below:
            taken.append(key)
            continue
        ids = below[root]
        if root not in trees and len(ids) >= room and taken:
            return Found(taken, is_last=False, trees=trees)
        taken.append(key)
        if len(ids) > look.rows:
            part = ids[: look.rows]
            return Found(taken, is_last=False, trees={root: part}, cut=part[-1])
        room -= 0 if root in trees else len(ids) + 1
        trees[root] = ids
    return Found(taken, is_last, trees)
