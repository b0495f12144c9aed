"""Owns the values that pass between an executor and its embedder."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

Work = Callable[[], Any]
Metadata = Mapping[str, Any]


class TaskSubmission(NamedTuple):
    """The answer to a submit. It is true if accepted, so that `if submit(...)` works."""

    accepted: bool = False
    task_id: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.accepted


class TaskCompletion(NamedTuple):
    """The end of a task that ran: a payload, or the text of what it raised."""

    task_id: int
    ok: bool
    payload: Any = None
    error: str = ""
    metadata: Metadata | None = None


class Discard(NamedTuple):
    """The end of a task that was accepted and will have no completion."""

    task_id: int
    reason: str


CompletionCallback = Callable[[TaskCompletion], object]
DiscardCallback = Callable[[int, str], object]
Ending = TaskCompletion | Discard

# The C constructor itself, with every field given: the generated one takes twice as long, and it
# would be called twice for each task.
build: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class AdmittedTask:
    """What every admitted task has; executors may add to it."""

    __slots__ = ()

    task_id: int  # given on admission
    work: Any  # a callable; None never gets past admission
    completion: CompletionCallback | None
    metadata: Metadata | None

    def completed(self, payload: Any) -> TaskCompletion:
        return build(TaskCompletion, (self.task_id, True, payload, "", self.metadata))

    def failed(self, error: BaseException) -> TaskCompletion:
        return self.failed_with(text_of(error))

    def failed_with(self, error: str) -> TaskCompletion:
        return TaskCompletion(self.task_id, ok=False, error=error, metadata=self.metadata)


class PlainTask(Struct, AdmittedTask, eq=False):
    """Work that is simply called. A Struct is created twice as fast as an object."""

    work: Any  # a callable; None never gets past admission
    completion: CompletionCallback | None
    metadata: Metadata | None
    task_id: int = 0

    def perform(self) -> TaskCompletion:
        """Run the work in this thread; whatever it raises is its failure."""
        try:
            return self.completed(self.work())
        except BaseException as error:  # noqa: BLE001 - work must not end its worker
            return self.failed(error)


def text_of(error: BaseException) -> str:
    """Its message, or the name of its type if it has none or cannot be shown."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that there was an error
        return type(error).__name__
