"""What tasks returned beside the context: anything but a mapping, which is merged, and None."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from layby.errors import ContextError
from layby.wire.json_values import decode, encode
from layby.workflow.names import close_match
from layby.workflow.shape import Shape

T = TypeVar("T")

MAX_RESULT_BYTES: Final = 2_000_000
"""Together with the largest change of a context it still fits into a promise."""


LISTED: Final = 10


class TaskResults:
    """The results of one run, as far as they are known; encoded, since few are read.

    Thousands of parked tasks have one each, and few runs have results: there is no empty dict.
    """

    __slots__ = ("_encoded", "_event_ids", "_events", "_given_shape")

    def __init__(
        self, shape: Shape | Callable[[], Shape], encoded: Mapping[str, bytes] | None = None
    ) -> None:
        self._given_shape = shape
        self._encoded = dict(encoded) if encoded else None
        self._event_ids: dict[str, str] | None = None
        """Of tasks that were deferred: the promises whose values they were resumed with."""
        self._events: dict[str, Any] | None = None
        """Those values, as far as they were read."""

    def learn(self, task_id: str, encoded: bytes) -> None:
        if self._encoded is None:
            self._encoded = {}
        self._encoded[task_id] = encoded

    def learn_event_id(self, task_id: str, promise_id: str) -> None:
        if self._event_ids is None:
            self._event_ids = {}
        self._event_ids[task_id] = promise_id

    def learn_event(self, task_id: str, event: Any) -> None:
        if self._events is None:
            self._events = {}
        self._events[task_id] = event

    def _shape(self) -> Shape:
        given = self._given_shape
        return given if isinstance(given, Shape) else given()

    def of(self, task_id: str, reader: str | None = None) -> Any:
        """What a task before `reader` returned; None if it was nothing, or is in the context."""
        self._check(task_id, reader, "result")
        found = None if self._encoded is None else self._encoded.get(task_id)
        return None if found is None else decode(found)

    def event_of(self, task_id: str, reader: str) -> Any:
        """What a task before `reader` was resumed with; None if it was not deferred."""
        self._check(task_id, reader, "event")
        return self._events.get(task_id) if self._events else None

    def unread_events(self, reader: str) -> list[tuple[str, str]]:
        """Tasks before `reader` whose events are not known here, with the promises that are."""
        if not self._event_ids:
            return []
        unread = self._shape().ancestors(reader) - (self._events or {}).keys()
        return [each for each in self._event_ids.items() if each[0] in unread]

    def _check(self, task_id: str, reader: str | None, what: str) -> None:
        shape = self._shape()
        if task_id not in shape.after:
            some = ", ".join(list(shape.after)[:LISTED])
            hint = close_match(task_id, tuple(shape.after)) or f"; it has {some}"
            raise ContextError(f"{what} of task '{task_id}': this run has no such task{hint}")
        if reader is not None and not shape.precedes(task_id, reader):
            raise ContextError(
                f"task '{reader}' asks for the {what} of '{task_id}', which need not have ended: "
                f"add it to the dependencies of '{reader}'"
            )

    def seen_by(self, reader: str) -> "TaskResults":
        """All that `reader` may ask for, without the shape of the whole run."""
        shape = self._shape()
        before = shape.ancestors(reader)
        star = Shape(dict.fromkeys(shape.after, ()) | {reader: tuple(before)})
        seen = TaskResults(star, _only(before, self._encoded))
        seen._events = _only(before, self._events)
        return seen


def _only(wanted: Collection[str], known: Mapping[str, T] | None) -> dict[str, T] | None:
    return (
        None if known is None else {each: found for each, found in known.items() if each in wanted}
    )


def encoded_result(returned: object, task_id: str) -> bytes | None:
    """The result to keep; None if there is none. Raises for what cannot be kept."""
    if returned is None or isinstance(returned, Mapping):
        return None
    try:
        encoded = encode(returned, f"the result of task '{task_id}'")
    except ContextError as error:
        raise ContextError(
            f"{error}; a task returns JSON: a dict is merged into the context, anything else "
            "is kept as its result"
        ) from None
    if len(encoded) > MAX_RESULT_BYTES:
        raise ContextError(
            f"the result of task '{task_id}' is {len(encoded):,} bytes, more than "
            f"{MAX_RESULT_BYTES:,}: store it elsewhere and return its address"
        )
    return encoded
