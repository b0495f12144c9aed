"""Tasks and their dependencies, checked when the workflow is built."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from layby.core.runs import MAX_CLEANUPS
from layby.errors import WorkflowError
from layby.workflow.declared_context import check_declared
from layby.workflow.names import check_name, check_run_id, close_match
from layby.workflow.shape import Shape
from layby.workflow.task import TaskDefinition

__all__ = ["AnyTask", "Workflow", "check_run_id"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # known to type checkers, wherever it is not installed

    C = TypeVar("C", default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")

AnyTask = TaskDefinition[..., Any]
"""Any task, whatever its function takes and returns: for functions that make tasks."""


class Workflow(Generic[C]):
    """A definition; a run is one execution of it.

    `context` is the class of its context: a TypedDict, a dataclass, a msgspec Struct or a pydantic
    model. What a run is given is checked against it when the run starts.

    With `pin`, a run stays on the code that began it: workers with other code leave it alone.
    """

    @overload
    def __init__(
        self: "Workflow[Mapping[str, Any]]",
        name: str,
        tasks: Iterable[AnyTask],
        *,
        context: None = None,
        pin: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self, name: str, tasks: Iterable[AnyTask], *, context: type[C], pin: bool = False
    ) -> None: ...
    def __init__(
        self,
        name: str,
        tasks: Iterable[AnyTask],
        *,
        context: type[Any] | None = None,
        pin: bool = False,
    ) -> None:
        self.name = check_name(name, "workflow name")
        self.declared = check_declared(context, self.name)
        self.pin = pin
        self.tasks: Mapping[str, AnyTask] = MappingProxyType(_by_id(self.name, tasks))
        _check_dependencies(self)
        self.shape = _shape(self)

    @property
    def order(self) -> tuple[str, ...]:
        """Task ids, each after everything it depends on."""
        return self.shape.order

    @property
    def leaves(self) -> tuple[str, ...]:
        """Tasks nobody depends on, in the order given."""
        return self.shape.leaves

    def ancestors(self, task_id: str) -> frozenset[str]:
        return self.shape.ancestors(task_id)

    def __repr__(self) -> str:
        return f"Workflow('{self.name}', {', '.join(self.tasks)})"


def _by_id(name: str, tasks: object) -> dict[str, AnyTask]:
    if isinstance(tasks, TaskDefinition | str) or not isinstance(tasks, Iterable):
        raise WorkflowError(f"workflow '{name}': tasks must be a list of tasks, got {tasks!r}")
    found: dict[str, AnyTask] = {}
    for each in cast("Iterable[object]", tasks):
        definition = _definition(name, each)
        if definition.id in found:
            raise WorkflowError(
                f"workflow '{name}' has two tasks '{definition.id}': give one another id"
            )
        found[definition.id] = definition
    if not found:
        raise WorkflowError(f"workflow '{name}' has no tasks: give it at least one")
    return found


def _definition(name: str, given: object) -> AnyTask:
    if not isinstance(given, TaskDefinition):
        raise WorkflowError(
            f"workflow '{name}': {given!r} is not a task: decorate the function with @task"
        )
    if given.needs_item:
        raise WorkflowError(
            f"workflow '{name}': task '{given.id}' takes an item, so it cannot be a task of its "
            f"own: let another task call handle.map({given.id}, items)"
        )
    return cast("AnyTask", given)


def _check_dependencies(flow: Workflow) -> None:
    _check_cleanups(flow)
    for definition in flow.tasks.values():
        for dependency in definition.dependencies:
            if dependency not in flow.tasks:
                hint = close_match(dependency, tuple(flow.tasks)) or "; add it to tasks"
                raise WorkflowError(
                    f"workflow '{flow.name}': task '{definition.id}' depends on "
                    f"'{dependency}', which is not in it{hint}"
                )


def _check_cleanups(flow: Workflow) -> None:
    cleanups = {each.id for each in flow.tasks.values() if each.cleans_up}
    if len(cleanups) == len(flow.tasks):
        raise WorkflowError(
            f"workflow '{flow.name}' has only tasks with rule='finally': add one to clean up after"
        )
    if len(cleanups) > MAX_CLEANUPS:
        raise WorkflowError(
            f"workflow '{flow.name}' has {len(cleanups)} tasks with rule='finally', more than "
            f"{MAX_CLEANUPS}: do more in each of them"
        )
    for definition in flow.tasks.values():
        for last in definition.dependencies if not definition.cleans_up else ():
            if last in cleanups:
                raise WorkflowError(
                    f"workflow '{flow.name}': task '{definition.id}' depends on '{last}', which "
                    f"has rule='finally' and so runs after it: remove the dependency, or give "
                    f"'{definition.id}' rule='finally' too"
                )


def _shape(flow: Workflow) -> Shape:
    cleanups = [each.id for each in flow.tasks.values() if each.cleans_up]
    try:
        return Shape({each.id: each.dependencies for each in flow.tasks.values()}, cleanups)
    except WorkflowError as error:
        raise WorkflowError(f"workflow '{flow.name}': {error}") from None
