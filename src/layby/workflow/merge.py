"""What a task sees of the context: who wrote each key last, along all paths that lead to it.

A view is a stack of layers, each a dict from key to entry; a later layer covers earlier ones.
Layers are never changed, so views share them: a chain copies no keys it did not write, and a
fan-in looks only at keys that differ. A layer that has grown to the size of the one below is
joined with it, so a view has few layers and writing n keys copies O(n log n).

Where paths meet, the entry of the causally later writer wins; between concurrent writers the
one of the later dependency, which is recorded as a conflict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

Precedes = Callable[[str, str], bool]
"""Whether the first task has settled before the second starts (`Shape.precedes`)."""


class Delta(Struct, frozen=True):
    """What a task changed: encoded values by key, and the keys it removed."""

    changed: dict[str, bytes] = {}
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


UNCHANGED = Delta()


class Entry(NamedTuple):
    """The value of a key, and who wrote it. `encoded` is None when the key was removed."""

    encoded: bytes | None
    writer: str | None
    """Id of the writing task; None for the initial context."""


class MergeConflict(Struct, frozen=True):
    """Two concurrent tasks left different values under this key."""

    key: str
    winner: str
    loser: str


Layer = Mapping[str, Entry]
Candidate = tuple[int, Entry]
"""An entry and the position of the dependency it comes from."""


class View:
    """The materialised context at one point of a run; immutable."""

    __slots__ = ("layers", "size")

    def __init__(self, layers: tuple[Layer, ...] = (), size: int = 0) -> None:
        self.layers = layers
        self.size = size
        """Bytes of all keys and values as JSON."""

    @classmethod
    def initial(cls, values: Mapping[str, bytes]) -> "View":
        return cls().covered_by({key: Entry(value, None) for key, value in values.items()})

    @classmethod
    def merged(cls, views: Sequence["View"], precedes: Precedes) -> "Merge":
        """`views` of a task's dependencies, in the order of its dependency list."""
        if len(views) <= 1:
            return Merge(views[0] if views else cls())
        shared = _shared_layers(views)
        base = View(shared, _size_of(shared, views[0]))
        resolved = {
            key: _resolve(candidates, precedes)
            for key, candidates in _candidates(views, len(shared)).items()
        }
        layer = {key: winner for key, (winner, _) in resolved.items()}
        conflicts = tuple(
            MergeConflict(key, winner.writer or "", loser.writer or "")
            for key, (winner, losers) in resolved.items()
            for loser in losers
        )
        return Merge(base.covered_by(layer), conflicts)

    def after(self, delta: Delta, writer: str) -> "View":
        """What later tasks see once `writer` has made these changes."""
        layer = {key: Entry(value, writer) for key, value in delta.changed.items()}
        layer.update((key, Entry(None, writer)) for key in delta.removed)
        return self.covered_by(layer)

    def covered_by(self, layer: dict[str, Entry]) -> "View":
        """The same view with another layer on top."""
        if not layer:
            return self
        layers, top, size = list(self.layers), layer, self.size
        for key, entry in layer.items():
            covered = self.encoded(key) if layers else None
            size += size_of(key, entry.encoded) - size_of(key, covered)
        while layers and len(top) >= len(layers[-1]):
            top = {**layers.pop(), **top}
        return View((*layers, top), size)

    def entry(self, key: str) -> Entry | None:
        for layer in reversed(self.layers):
            if key in layer:
                return layer[key]
        return None

    def encoded(self, key: str) -> bytes | None:
        """The encoded value; None when the key does not exist, or was removed."""
        entry = self.entry(key)
        return None if entry is None else entry.encoded

    def entries(self) -> dict[str, Entry]:
        """Everything that was ever written on the way here, removals included."""
        joined: dict[str, Entry] = {}
        for layer in self.layers:
            joined.update(layer)
        return joined

    def items(self) -> Iterator[tuple[str, bytes]]:
        for key, entry in self.entries().items():
            if entry.encoded is not None:
                yield key, entry.encoded

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __contains__(self, key: str) -> bool:
        return self.encoded(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self.entries() == other.entries()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"View({self.entries()!r})"


class Merge(Struct, frozen=True):
    view: View
    conflicts: tuple[MergeConflict, ...] = ()


def size_of(key: str, encoded: bytes | None) -> int:
    """What a key and its value cost in JSON, punctuation included."""
    return 0 if encoded is None else len(key.encode()) + len(encoded) + 4


def _shared_layers(views: Sequence[View]) -> tuple[Layer, ...]:
    """The layers at the bottom of all views; a key found only there is the same in all."""
    shared = 0
    for layers in zip(*(view.layers for view in views), strict=False):
        if any(layer is not layers[0] for layer in layers):
            break
        shared += 1
    return views[0].layers[:shared]


def _size_of(shared: tuple[Layer, ...], view: View) -> int:
    """The size of a view cut down to its shared layers."""
    base, size = View(shared), view.size
    above = dict.fromkeys(key for layer in view.layers[len(shared) :] for key in layer)
    for key in above:
        size += size_of(key, base.encoded(key)) - size_of(key, view.encoded(key))
    return size


def _candidates(views: Sequence[View], shared: int) -> dict[str, list[Candidate]]:
    """For each key that may differ, the entries above the shared layers.

    An entry in the shared layers is not a candidate: any task that covered it had seen it.
    """
    found: dict[str, list[Candidate]] = {}
    for position, view in enumerate(views):
        for key, entry in View(view.layers[shared:]).entries().items():
            found.setdefault(key, []).append((position, entry))
    return found


def _resolve(candidates: list[Candidate], precedes: Precedes) -> tuple[Entry, list[Entry]]:
    """The winning entry, and the concurrent ones with other values that lost."""
    by_writer = {entry.writer: entry for _, entry in candidates}
    if len(by_writer) == 1:
        return candidates[-1][1], []
    latest = [entry for entry in by_writer.values() if not _is_covered(entry, by_writer, precedes)]
    last = max(candidates, key=lambda each: (each[1] in latest, each[0]))[1]
    return last, [each for each in latest if each.encoded != last.encoded]


def _is_covered(entry: Entry, by_writer: Mapping[str | None, Entry], precedes: Precedes) -> bool:
    """A task that had seen this entry wrote another one."""
    others = (writer for writer in by_writer if writer is not None and writer != entry.writer)
    return any(entry.writer is None or precedes(entry.writer, other) for other in others)
