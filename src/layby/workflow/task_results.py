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

    __slots__ = ("_shape", "encoded")

    def __init__(
        self, shape: Callable[[], Shape], encoded: Mapping[str, bytes] | None = None
    ) -> None:
        self._shape = shape
        self.encoded = dict(encoded or {})

    def of(self, task_id: str, reader: str | None = None) -> Any:
        """What a task before `reader` returned; None if it was nothing, or is in the context."""
        shape = self._shape()
        if task_id not in shape.after:
            some = ", ".join(list(shape.after)[:LISTED])
            hint = close_match(task_id, tuple(shape.after)) or f"; it has {some}"
            raise ContextError(f"result of task '{task_id}': this run has no such task{hint}")
        if reader is not None and not shape.precedes(task_id, reader):
            raise ContextError(
                f"task '{reader}' asks for the result of '{task_id}', which need not have ended: "
                f"add it to the dependencies of '{reader}'"
            )
        found = self.encoded.get(task_id)
        return None if found is None else decode(found)

    def seen_by(self, reader: str) -> "TaskResults":
        """All that `reader` may ask for, without the shape of the whole run."""
        shape = self._shape()
        before = shape.ancestors(reader)
        known = {each: found for each, found in self.encoded.items() if each in before}
        star = Shape(dict.fromkeys(shape.after, ()) | {reader: tuple(before)})
        return TaskResults(partial(same_shape, star), known)


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
