"""What tasks returned beside the context: anything but a mapping, which is merged, and None."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from layby.errors import ContextError
from layby.wire.json_values import decode, encode
from layby.workflow.names import close_match
from layby.workflow.shape import Shape, same_shape

MAX_RESULT_BYTES: Final = 2_000_000
"""Together with the largest change of a context it still fits into a promise."""


LISTED: Final = 10


class TaskResults:
    """The results of one run, as far as they are known; encoded, since few are read."""

    __slots__ = ("_shape", "encoded", "event_ids", "events")

    def __init__(
        self, shape: Callable[[], Shape], encoded: Mapping[str, bytes] | None = None
    ) -> None:
        self._shape = shape
        self.encoded = dict(encoded or {})
        self.event_ids: dict[str, str] = {}
        """Of tasks that were deferred: the promises whose values they were resumed with."""
        self.events: dict[str, Any] = {}
        """Those values, as far as they were read."""

    def of(self, task_id: str, reader: str | None = None) -> Any:
        """What a task before `reader` returned; None if it was nothing, or is in the context."""
        self._check(task_id, reader, "result")
        found = self.encoded.get(task_id)
        return None if found is None else decode(found)

    def event_of(self, task_id: str, reader: str) -> Any:
        """What a task before `reader` was resumed with; None if it was not deferred."""
        self._check(task_id, reader, "event")
        return self.events.get(task_id)

    def unread_events(self, reader: str) -> list[str]:
        """Tasks before `reader` whose events are not known here."""
        if not self.event_ids:
            return []
        before = self._shape().ancestors(reader)
        return [each for each in self.event_ids if each in before and each not in self.events]

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
        known = {each: found for each, found in self.encoded.items() if each in before}
        star = Shape(dict.fromkeys(shape.after, ()) | {reader: tuple(before)})
        seen = TaskResults(partial(same_shape, star), known)
        seen.events = {each: found for each, found in self.events.items() if each in before}
        return seen


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
