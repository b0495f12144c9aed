"""What flows between tasks: a dict of JSON values that tracks its changes."""

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from layby.errors import ContextError
from layby.wire.json_values import decode, encode, refuse_scalar
from layby.workflow.merge import Delta, View, size_of
from layby.workflow.run_ending import RunEnding
from layby.workflow.task_results import TaskResults
from layby.workflow.typed_view import TypedView

T = TypeVar("T")

MAX_CONTEXT_BYTES: Final = 1_000_000
NOTHING: Final[frozenset[str]] = frozenset()
"""Shared by all: there may be a hundred thousand contexts of parked tasks."""


class NamedTask(Protocol):
    """A task as written: what `@task` makes."""

    id: str


class Carried(Struct, frozen=True, omit_defaults=True):
    """What a task had changed when it was deferred."""

    changed: dict[str, Raw] = {}
    removed: tuple[str, ...] = ()


class Context(MutableMapping[str, Any]):
    """A dict of JSON values; tuples become lists on the way to the next task.

    Values are decoded from the task's view when they are first read. Only those can have been
    changed, even deep inside, so only those are encoded again when the task ends.
    """

    __slots__ = ("_reader", "_removed", "_results", "_typed", "_values", "_view", "ending")

    def __init__(self, values: Mapping[str, Any] | None = None, /) -> None:
        self.ending: RunEnding | None = None
        """How the run has ended: for tasks with `rule="finally"`, and only for them."""
        self._view = View()
        self._values: dict[str, Any] = {}
        self._removed = NOTHING
        self._results: TaskResults | None = None
        self._reader: str | None = None
        self._typed: tuple[TypedView, ...] = ()
        if values is not None:
            self._fill(values)

    @classmethod
    def over(
        cls, view: View, results: TaskResults | None = None, reader: str | None = None
    ) -> "Context":
        """The context that the task `reader` starts with; without a reader, that of a whole run."""
        context = cls()
        context._view = view
        context._results = results
        context._reader = reader
        return context

    def __getitem__(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        encoded = None if key in self._removed else self._view.encoded(key)
        if encoded is None:
            raise KeyError(key)
        value = self._values[key] = decode(encoded)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        _check_key(key)
        if not isinstance(value, dict | list | tuple):  # their contents may still change
            refuse_scalar(value, f'context["{key}"]')
        self._values[key] = value
        if key in self._removed:
            self._removed -= {key}

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._values.pop(key, None)
        if key in self._view:
            self._removed |= {key}

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str) or key in self._removed:
            return False
        return key in self._values or key in self._view

    def __iter__(self) -> Iterator[str]:
        inherited = [key for key in self._view if key not in self._removed]
        return iter(dict.fromkeys([*inherited, *self._values]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(cast("Mapping[Any, Any]", other))

    __hash__ = None

    def __repr__(self) -> str:
        return f"Context({dict(self)!r})"

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def insert(self, key: str, value: Any) -> None:
        """Set a key that must not be there yet."""
        if key in self:
            raise ContextError(f"context already has '{key}': use set or update to replace it")
        self[key] = value

    def update(self, *given: Any, **named: Any) -> None:
        """`update(key, value)` replaces a key that must be there; otherwise like `dict.update`."""
        if len(given) != 2:
            super().update(*given, **named)
            return
        key, value = given
        if key not in self:
            raise ContextError(f"context has no '{key}' to update: use set or insert")
        self[key] = value

    def remove(self, key: str) -> Any:
        """Remove the key; returns its value, or None when it was not there."""
        return self.pop(key, None)

    def result(self, task: str | NamedTask) -> Any:
        """What a task before this one returned, if that was not a mapping: those are merged into
        the context. None when it returned nothing, or has not completed.
        """
        task_id = task if isinstance(task, str) else task.id
        if self._results is None:
            raise ContextError(
                f"result of task '{task_id}': this context was not given to a task by a run"
            )
        return self._results.of(task_id, self._reader)

    def event(self, task: str | NamedTask) -> Any:
        """What the trigger fired with that a task before this one was deferred for, the last one.

        None when it was not deferred, or has not completed.
        """
        task_id = task if isinstance(task, str) else task.id
        if self._results is None or self._reader is None:
            raise ContextError(
                f"event of task '{task_id}': only tasks of its run can read it; put what is needed "
                "later into the context"
            )
        return self._results.event_of(task_id, self._reader)

    def to_dict(self) -> dict[str, Any]:
        """A plain copy that shares nothing with the context."""
        return copy.deepcopy(dict(self))

    def as_encoded(self) -> dict[str, bytes]:
        """Every key as it stands, encoded."""
        self.changes()  # refuses what cannot be stored
        return {key: self._encoded(key) for key in self}

    def for_process(self) -> "Context":
        """A copy to be sent to another process: with everything that its task may read."""
        sent = Context(self.to_dict())
        sent._reader = self._reader
        sent.ending = self.ending
        if self._results is not None and self._reader is not None:
            sent._results = self._results.seen_by(self._reader)
        return sent

    def typed(self, kind: type[T]) -> T:
        """The context as one of your classes, checked now: a copy, made for reading.

        `kind` is a TypedDict, a dataclass, a msgspec Struct or a pydantic model. Only the keys it
        declares are read. To store something, set it in the context, or change the copy and
        return it; a copy that is changed and not returned fails the task.
        """
        self.check_typed(kind)
        view = TypedView(kind, {key: self._encoded(key) for key in self})
        self._typed = (*(each for each in self._typed if each.kind is not kind), view)
        return view.instance

    def check_typed(self, kind: type[Any] | None = None) -> None:
        """Raise if a typed view (of this class) was changed, since nobody would store that."""
        for each in self._typed:
            if kind is None or each.kind is kind:
                each.check_unchanged()

    def is_typed_view(self, returned: object) -> bool:
        return any(each.instance is returned for each in self._typed)

    def absorb(self, returned: object) -> None:
        """Merge the mapping that a task returned; anything else is a result of its own.

        Of a typed view, what was changed in it is merged.
        """
        for each in self._typed:
            if each.instance is returned:
                self.update(each.take_changes())
                return
        if returned is not self and isinstance(returned, Mapping):
            self.update(cast("Mapping[str, Any]", returned))

    def changes(self) -> Delta:
        """What differs from the view it started with: the only thing a task stores."""
        self.check_typed()
        changed = {
            key: encoded
            for key, value in self._values.items()
            if (encoded := encode(value, f'context["{key}"]')) != self._view.encoded(key)
        }
        delta = Delta(changed, tuple(sorted(self._removed)))
        self._check_size(delta)
        return delta

    def carried(self) -> Raw:
        """What was changed so far, for whoever goes on with the task."""
        delta = self.changes()
        changed = {key: Raw(value) for key, value in delta.changed.items()}
        return Raw(msgspec.json.encode(Carried(changed, delta.removed)))

    def restore(self, carried: str) -> None:
        """As it was when the task was deferred."""
        left = msgspec.json.decode(carried, type=Carried)
        for key, value in left.changed.items():
            self._values[key] = decode(bytes(value))
        for key in left.removed:
            self.pop(key, None)

    def _encoded(self, key: str) -> bytes:
        if key in self._values:
            return encode(self._values[key], f'context["{key}"]')
        encoded = self._view.encoded(key)
        assert encoded is not None
        return encoded

    def _fill(self, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ContextError(f"context must be a dict, got {values!r}")
        self.update(cast("Mapping[str, Any]", values))

    def _check_size(self, delta: Delta) -> None:
        """As if nothing were replaced first: nearly every context is far from the bound."""
        added = sum(size_of(key, encoded) for key, encoded in delta.changed.items())
        if self._view.size + added <= MAX_CONTEXT_BYTES:
            return
        after = self._view.after(delta, "")
        if after.size > MAX_CONTEXT_BYTES:
            raise ContextError(_too_large(after))


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ContextError(f"context key {key!r} is not a string: use {str(key)!r}")
    refuse_scalar(key, f"context key {key!r}")


def _too_large(view: View) -> str:
    sizes = sorted(((size_of(key, value), key) for key, value in view.items()), reverse=True)
    largest = ", ".join(f"'{key}' ({size:,} bytes)" for size, key in sizes[:3])
    return (
        f"context is {view.size:,} bytes, more than {MAX_CONTEXT_BYTES:,}; largest: {largest}; "
        "store large data elsewhere and keep its address in the context"
    )
