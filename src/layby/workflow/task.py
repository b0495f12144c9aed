"""A function that can be part of a workflow, and what its author says about running it."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from layby.errors import WorkflowError
from layby.program import Mode
from layby.workflow.context import Context
from layby.workflow.duration_checks import Duration, positive_limit
from layby.workflow.limiting import GivenLimit, Limiting, check_limit
from layby.workflow.names import check_name
from layby.workflow.retry import RetryPolicy
from layby.workflow.rules import FINALLY, Rule, check_rule
from layby.workflow.turn_checks import check_priority, check_slots

P = ParamSpec("P")
R = TypeVar("R")

OnSuccess = Callable[[str, Context], object]
OnFailure = Callable[[str, BaseException, Context], object]

HANDLE_NAMES = ("handle", "task_handle")
ITEM = "item"
"""The parameter that gets the item of a `map`."""
ONCE = RetryPolicy()


class TaskDefinition(Generic[P, R]):
    """Still callable like the function. Made by `task`; never changes afterwards."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        task_id: str,
        dependencies: tuple[str, ...] = (),
        retry: RetryPolicy = ONCE,
        timeout: float | None = None,
        rule: Rule = "all_success",
        *,
        group: str | None = None,
        process: bool = False,
        rpc: str | None = None,
        priority: int = 0,
        slots: int = 1,
        on_success: OnSuccess | None = None,
        on_failure: OnFailure | None = None,
        limit: Limiting = (),
    ) -> None:
        functools.update_wrapper(cast("Any", self), function)
        self.function = function
        self.id = task_id
        self.dependencies = dependencies
        self.retry = retry
        self.timeout = timeout
        self.rule: Rule = rule
        self.group = group
        self.process = process
        self.rpc = rpc
        """What callers in other languages call it; None when it serves no calls."""
        self.priority = priority
        """Added to that of the run."""
        self.slots = slots
        """How many of its worker's slots its body holds."""
        self.on_success = on_success
        self.on_failure = on_failure
        self.limit: Limiting = limit
        """Names of the limits it runs under, or what says them for a context."""
        self.is_async = is_async(function)
        self.handle_name = _handle_name(function, task_id)
        self.needs_item = _needs_item(function, task_id)
        """It can only be mapped: nothing else has an item for it."""

    @property
    def requires_handle(self) -> bool:
        return self.handle_name is not None

    @property
    def cleans_up(self) -> bool:
        return self.rule == FINALLY

    @property
    def mode(self) -> Mode:
        if self.process:
            return "process"
        return "async" if self.is_async else "thread"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def call(self, context: object, handle: object = None, **given: object) -> Any:
        """Call the function as a worker does, with a handle if it asks for one."""
        call = cast("Callable[..., Any]", self.function)
        if self.handle_name:
            given[self.handle_name] = handle
        return call(context, **given)

    def callback(
        self, context: Context, error: BaseException | None
    ) -> Callable[[], object] | None:
        """What to call after a try that succeeded, or failed with `error`."""
        if error is None:
            return self.on_success and functools.partial(self.on_success, self.id, context)
        return self.on_failure and functools.partial(self.on_failure, self.id, error, context)

    def __repr__(self) -> str:
        return f"<task '{self.id}'>"

    def __reduce__(self) -> str:
        """Sent to a child process by name: there, the decorated name is this object."""
        return self.function.__qualname__


Dependency = str | TaskDefinition[..., Any]


@overload
def task(function: Callable[P, R], /) -> TaskDefinition[P, R]: ...
@overload
def task(
    *,
    id: str | None = None,
    dependencies: Iterable[Dependency] = (),
    retries: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    rule: Rule = "all_success",
    group: str | None = None,
    process: bool = False,
    rpc: str | None = None,
    priority: int = 0,
    slots: int = 1,
    on_success: OnSuccess | None = None,
    on_failure: OnFailure | None = None,
    limit: GivenLimit = None,
) -> Callable[[Callable[P, R]], TaskDefinition[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name the seeds gave it
    dependencies: Iterable[Dependency] = (),
    retries: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    rule: Rule = "all_success",
    group: str | None = None,
    process: bool = False,
    rpc: str | None = None,
    priority: int = 0,
    slots: int = 1,
    on_success: OnSuccess | None = None,
    on_failure: OnFailure | None = None,
    limit: GivenLimit = None,
) -> Any:
    """Make a function a task; used as `@task` or `@task(...)`.

    `id` is the function's name unless given; `dependencies` are ids or tasks. `retries=3` is
    three retries after the first try; `retry` takes a whole policy. `timeout` counts only time
    with a slot held. `group` names the workers that run it, if not those of the run.
    `process=True` runs a module-level plain `def` in a process of its own.
    `rule="finally"` makes it clean up: it runs when the bodies of all other tasks of the run have
    ended, even if the run was cancelled or its deadline has passed, and needs a `timeout`.
    Of tasks that are ready, those of higher `priority` begin first (the run's own is added to it);
    `slots` says how many slots of its worker it holds while it runs.
    `rpc` is a name under which Resonate SDKs and `handle.rpc` can call the function.
    `limit` names the limit that it runs under, several, or a function of the context that says
    them: `runner.limit` defines how many run at once on all machines, and how many begin in a time.
    `on_success(task_id, context)` is called once a successful try is recorded,
    `on_failure(task_id, error, context)` after every failed one.
    """

    def define(function: Callable[..., Any]) -> TaskDefinition[..., Any]:
        task_id = _task_id(function, id)
        if process:
            _check_can_leave(function, task_id)
        if rpc is not None and limit is not None:
            raise WorkflowError(
                f"task '{task_id}' has a limit, which does not count for calls: remove rpc=, or "
                "give the limit to the tasks that call it"
            )
        if rpc is not None and _needs_item(function, task_id):
            raise WorkflowError(
                f"task '{task_id}' takes an item, which calls do not have: remove rpc=, or give "
                "item a default"
            )
        return TaskDefinition(
            function,
            task_id,
            _dependency_ids(dependencies, task_id),
            _retry_policy(retries, retry, task_id),
            _timeout(timeout, rule, task_id),
            check_rule(rule),
            group=None if group is None else check_name(group, f"group of task '{task_id}':"),
            process=process,
            rpc=None if rpc is None else _function_name(rpc, task_id),
            priority=check_priority(priority, f"priority of task '{task_id}'", WorkflowError),
            slots=check_slots(slots, task_id),
            on_success=_callback(on_success, "on_success(task_id, context)", task_id),
            on_failure=_callback(on_failure, "on_failure(task_id, error, context)", task_id),
            limit=check_limit(limit, task_id),
        )

    return define if function is None else define(function)


def _timeout(timeout: Duration | None, rule: object, task_id: str) -> float | None:
    """No deadline ends a task that cleans up, so something else must."""
    limit = positive_limit(timeout, f"timeout of task '{task_id}'")
    if limit is None and rule == FINALLY:
        raise WorkflowError(
            f"task '{task_id}' has rule='finally' but no timeout: the run's deadline does not end "
            "it, so write timeout= with the seconds it may hold a slot"
        )
    return limit


def is_async(function: Callable[..., Any]) -> bool:
    """Also for objects with an async `__call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004 - not asking whether it is callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _task_id(function: object, given: str | None) -> str:
    if isinstance(function, TaskDefinition):
        raise WorkflowError(f"task '{function.id}' is decorated twice: remove one @task")
    if not callable(function) or isinstance(function, type):
        raise WorkflowError(f"@task needs a function, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise WorkflowError(f"@task needs a function, but {function.__qualname__} yields")
    name = given if given is not None else getattr(function, "__name__", "<nameless>")
    if given is None and not name.isidentifier():
        raise WorkflowError(f"{function!r} has no name to use as an id: write @task(id=...)")
    return check_name(name, "task id")


def _function_name(name: object, task_id: str) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise WorkflowError(
            f"rpc of task '{task_id}' must be the name that callers use, got {name!r}"
        )
    return name


def _callback(function: Any, form: str, task_id: str) -> Any:
    """Checked now: later, an error could only be logged."""
    if function is None:
        return None
    if not callable(function):
        raise WorkflowError(f"task '{task_id}': {function!r} is not a function {form}")
    arguments = form.partition("(")[2].split(",")
    try:
        _signature(function, task_id).bind(*arguments)
    except TypeError as error:
        raise WorkflowError(
            f"task '{task_id}': {function!r} cannot be called as {form}: {error}"
        ) from None
    return function


def _dependency_ids(dependencies: object, task_id: str) -> tuple[str, ...]:
    if isinstance(dependencies, str | TaskDefinition) or not isinstance(dependencies, Iterable):
        raise WorkflowError(
            f"dependencies of task '{task_id}' must be a list of ids or tasks: "
            f"write [{dependencies!r}]"
        )
    listed = [_dependency_id(each, task_id) for each in cast("Iterable[object]", dependencies)]
    twice = sorted({each for each in listed if listed.count(each) > 1})
    if twice:
        raise WorkflowError(f"task '{task_id}' lists dependency '{twice[0]}' twice: name it once")
    return tuple(listed)


def _dependency_id(dependency: object, task_id: str) -> str:
    if isinstance(dependency, TaskDefinition):
        return dependency.id
    if callable(dependency):
        raise WorkflowError(
            f"task '{task_id}' depends on {dependency!r}, which is not a task: "
            "decorate it with @task"
        )
    return check_name(dependency, f"dependency of task '{task_id}':")


def _retry_policy(retries: int | None, retry: object, task_id: str) -> RetryPolicy:
    if retries is not None and retry is not None:
        raise WorkflowError(f"task '{task_id}' gives both retries and retry: give one of them")
    if retry is None:
        return RetryPolicy.retries(retries or 0)
    if not isinstance(retry, RetryPolicy):
        raise WorkflowError(
            f"retry of task '{task_id}' must be a RetryPolicy, got {retry!r}; "
            "for a number of retries write retries="
        )
    return retry


def _handle_name(function: Callable[..., Any], task_id: str) -> str | None:
    """The parameter that gets the handle. Any others must have defaults."""
    parameters = list(_signature(function, task_id).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise WorkflowError(f"task '{task_id}' takes no context: write def {task_id}(context)")
    handles = [each.name for each in parameters[1:] if each.name in HANDLE_NAMES]
    if len(handles) > 1:
        raise WorkflowError(f"task '{task_id}' takes both handle and task_handle: keep one")
    for parameter in parameters[1:]:
        _refuse_parameter(parameter, task_id)
        if parameter.name in HANDLE_NAMES:
            _check_handle_type(parameter, function, task_id)
    return handles[0] if handles else None


def takes_item(function: Callable[..., Any]) -> bool:
    """Whether it can be called with `item=`."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == ITEM or each.kind is each.VAR_KEYWORD for each in parameters)


def _needs_item(function: Callable[..., Any], task_id: str) -> bool:
    parameters = _signature(function, task_id).parameters
    if next(iter(parameters), None) == ITEM:
        why = "the context comes first, and item is passed by name"
        raise WorkflowError(f"task '{task_id}': {why}: write def {task_id}(context, item)")
    item = parameters.get(ITEM)
    if item is not None and item.kind is item.POSITIONAL_ONLY:
        raise WorkflowError(f"task '{task_id}': item is passed by name: remove the '/' after it")
    return item is not None and item.default is item.empty


def _check_handle_type(
    parameter: inspect.Parameter, function: Callable[..., Any], task_id: str
) -> None:
    """By name: the annotation may be a string, of something that is only imported for checkers."""
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    named = named.rpartition(".")[2]
    form, handle, other = (
        ("an async def", "TaskHandle", "BlockingHandle")
        if is_async(function)
        else ("a plain def", "BlockingHandle", "TaskHandle")
    )
    if named == other:
        raise WorkflowError(
            f"task '{task_id}' is {form} and gets a {handle}, but its parameter "
            f"'{parameter.name}' is declared as a {other}: write {parameter.name}: {handle}"
        )


def _signature(function: Callable[..., Any], task_id: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise WorkflowError(
            f"task '{task_id}': cannot tell which parameters {function!r} takes; wrap it in a def"
        ) from None


def _refuse_parameter(parameter: inspect.Parameter, task_id: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return
    if parameter.name in HANDLE_NAMES:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise WorkflowError(
                f"task '{task_id}': {parameter.name} is passed by name: remove the '/' after it"
            )
        return
    if parameter.default is parameter.empty and parameter.name != ITEM:
        raise WorkflowError(
            f"task '{task_id}' has a parameter '{parameter.name}' that gets no value: name it "
            "handle to get the TaskHandle or item to get an item of a map, give it a default, or "
            "read it from the context"
        )


def _check_can_leave(function: Callable[..., Any], task_id: str) -> None:
    """A child process finds the function by its name, and gets nothing but the context."""
    if is_async(function):
        raise WorkflowError(
            f"task '{task_id}' is async: process=True needs a plain def; drop one of the two"
        )
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise WorkflowError(
            f"task '{task_id}' has process=True, but {name or function!r} cannot be found by "
            "name in another process: make it a def at the top of a module"
        )
    if _handle_name(function, task_id):
        raise WorkflowError(
            f"task '{task_id}' asks for a handle, which is not available in another process: "
            "remove the parameter or process=True, or wait in another task"
        )
