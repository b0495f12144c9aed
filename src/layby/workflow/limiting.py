"""Which limits a task runs under: names, or a function of its context."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from layby.core.limit import PRIVATE, limit_names
from layby.errors import WorkflowError
from layby.workflow.context import Context

if TYPE_CHECKING:
    from layby.workflow.task import TaskDefinition

LimitNames = str | Iterable[str] | None
LimitFunction = Callable[[Context], LimitNames]
GivenLimit = LimitNames | LimitFunction
Limiting = tuple[str, ...] | LimitFunction


def check_limit(given: GivenLimit, task_id: str) -> Limiting:
    """As it is kept; what a function says is checked when it says it."""
    if callable(given):
        return given
    return _names(given, task_id)


def fixed_limits(limit: Limiting) -> tuple[str, ...]:
    """Those that are known before the context is."""
    return () if callable(limit) else limit


def limits_of(definition: "TaskDefinition[..., Any]", context: Context) -> tuple[str, ...]:
    """Those that follow from the context."""
    limit = definition.limit
    return _names(limit(context), definition.id) if callable(limit) else ()


def _names(given: object, task_id: str) -> tuple[str, ...]:
    if given is None:
        return ()
    listed = (given,) if isinstance(given, str) else given
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise _wrong(task_id, given)
    names = tuple(cast("Iterable[object]", listed))
    texts = tuple(each for each in names if isinstance(each, str))
    if len(texts) < len(names):
        raise _wrong(task_id, given)
    wrong = [*limit_names(texts, f"task '{task_id}'")]
    wrong += [f"limit '{each}' is for layby's own use" for each in texts if each[:1] == PRIVATE]
    if wrong:
        raise WorkflowError("; ".join(wrong))
    return texts


def _wrong(task_id: str, given: object) -> WorkflowError:
    return WorkflowError(
        f"limit of task '{task_id}' must be the name of a limit, several names, or a function of "
        f"the context that returns them, got {given!r}"
    )
