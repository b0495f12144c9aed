"""How a run is laid out in promises: their ids, names and params."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from layby.core.commands import CreateRunSchedule, Node, StartRun, Take, Value
from layby.core.ids import LIFE, life_id
from layby.core.model import Millis, Promise
from layby.core.schedule_row import Overlap
from layby.errors import WireError
from layby.wire import json_values
from layby.workflow.context import Context
from layby.workflow.limiting import fixed_limits
from layby.workflow.merge import View
from layby.workflow.names import check_run_id
from layby.workflow.shape import Shape
from layby.workflow.workflow import Workflow

ROOT_PREFIX: Final = "run/"


class NodeId(Struct, frozen=True):
    """What the id of a node's promise says."""

    run_id: str
    task_id: str
    life: int = 1

    @property
    def root_id(self) -> str:
        """The root of the life it belongs to."""
        return root_id(self.run_id, self.life)


class RunParam(Struct, frozen=True):
    """The param of the root promise: enough to work out every context of the run."""

    flow: str
    initial: View
    shape: Shape
    pin: bool = False
    """Whether it stays on the code that began it."""
    start_id: str = ""
    """Which call has created the run, if it was given a run id: see `plan`."""
    life: int = 1
    reused: Mapping[str, int] = {}
    """Tasks that do not run in this life, and the life in which they did."""

    def life_of(self, task_id: str) -> int:
        """The life in which the task ran, or runs."""
        return self.reused.get(task_id, self.life)


class _TaskParam(Struct, frozen=True):
    id: str
    after: tuple[str, ...] = ()


class _CleanupParam(_TaskParam, frozen=True):
    """Kept apart, so that of other tasks the same is written as ever: schedules compare it."""

    cleanup: bool = False


class _RootParam(Struct, frozen=True):
    flow: str
    context: dict[str, Raw]
    tasks: tuple[_CleanupParam, ...]
    pin: bool = False
    start: str = ""
    life: int = 1
    reused: dict[str, int] = {}


class _WrittenRoot(Struct, frozen=True, omit_defaults=True):
    """`_RootParam` with its tasks encoded once for all runs of a workflow."""

    flow: str
    context: dict[str, Raw]
    tasks: Raw
    pin: bool = False
    start: str = ""


class Layout(Struct, frozen=True):
    """What is the same in every run of a workflow."""

    name: str
    nodes: tuple[Node, ...]
    tasks: bytes
    pin: bool = False


class _NodeParam(Struct, frozen=True):
    after: tuple[str, ...] = ()


def plan(
    flow: Workflow | Layout,
    run_id: str,
    context: Any,
    group: str,
    timeout: Millis,
    take: Take | None = None,
    *,
    start_id: str = "",
    priority: int = 0,
) -> StartRun:
    """The one command that starts a run.

    `start_id` is kept with the run, so that a copy of the command finds out that its first copy
    created the run. Whoever makes up a run id for one call needs none.
    """
    layout = flow if isinstance(flow, Layout) else layout_of(flow)
    return StartRun(
        id=root_id(check_run_id(run_id)),
        name=layout.name,
        group=group,
        nodes=layout.nodes,
        timeout=timeout,
        param=_root_param(layout, _initial(flow, context), start_id),
        take=take,
        priority=priority,
    )


def schedule(
    flow: Workflow | Layout,
    schedule_id: str,
    cron: str,
    context: Any,
    group: str,
    timeout: Millis,
    timezone: str,
    *,
    catch_up: bool,
    overlap: Overlap,
    replace: bool,
    priority: int = 0,
) -> CreateRunSchedule:
    """The one command that starts runs from now on. Equal contexts have equal bytes."""
    layout = flow if isinstance(flow, Layout) else layout_of(flow)
    given = _initial(flow, context)
    return CreateRunSchedule(
        id=schedule_id,
        cron=cron,
        name=layout.name,
        group=group,
        nodes=layout.nodes,
        timeout=timeout,
        param=_root_param(layout, {key: _in_order(given[key]) for key in sorted(given)}),
        timezone=timezone,
        catch_up=catch_up,
        overlap=overlap,
        replace=replace,
        priority=priority,
    )


def published_layout(flow: Workflow) -> str:
    """The layout as a worker publishes it."""
    return msgspec.json.encode(layout_of(flow)).decode()


def read_layout(text: str) -> Layout:
    """What `published_layout` has written, here or in another version of layby."""
    try:
        return msgspec.json.decode(text, type=Layout)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from None


def root_id(run_id: str, life: int = 1) -> str:
    return life_id(f"{ROOT_PREFIX}{run_id}", life)


def node_id(run_id: str, task_id: str, life: int = 1) -> str:
    return f"{root_id(run_id, life)}:{task_id}"


def node_name(flow: str, task_id: str) -> str:
    """What a worker asks for when it has the code of this task."""
    return f"{flow}/{task_id}"


def names(flow: Workflow) -> tuple[str, ...]:
    """Everything a worker with this workflow's code can take: its root and its nodes."""
    return (flow.name, *(node_name(flow.name, task_id) for task_id in flow.tasks))


def parse_root_id(promise_id: str) -> str | None:
    """The run id; None when this is not the root of a run, or of a life of one."""
    place = _parse(promise_id)
    return None if place is None or place.task_id else place.run_id


def parse_node_id(promise_id: str) -> NodeId | None:
    """None when this is not a node of a run."""
    place = _parse(promise_id)
    return place if place is not None and place.task_id else None


def run_id_of(promise_id: str) -> str:
    """The run that a root or a node belongs to."""
    return promise_id.removeprefix(ROOT_PREFIX).partition(":")[0]


def life_of(promise_id: str) -> int:
    """The life that a root or a node belongs to."""
    place = _parse(promise_id)
    return 1 if place is None else place.life


@lru_cache(maxsize=1024)  # a claim, its body and its end ask about one id in turn
def _parse(promise_id: str) -> NodeId | None:
    """The task id is empty for a root. None when it does not belong to a run."""
    root, _, task_id = promise_id.partition(":")
    run_id = root.removeprefix(ROOT_PREFIX)
    if run_id == root:
        return None
    number, _, below = task_id.removeprefix(LIFE).partition(":")
    if task_id.startswith(LIFE) and number.isdecimal():
        return NodeId(run_id, below, int(number))
    return NodeId(run_id, task_id)


def read_root_param(text: str, known: Callable[[str], Shape | None] | None = None) -> RunParam:
    """`known` gives the shape of a workflow by name: runs of the same shape share it."""
    param = _read(text, _RootParam)
    initial = View.initial({key: bytes(value) for key, value in param.context.items()})
    after = {each.id: each.after for each in param.tasks}
    cleanups = [each.id for each in param.tasks if each.cleanup]
    shape = known(param.flow) if known is not None else None
    if shape is None or not shape.is_of(after, cleanups):
        shape = Shape(after, cleanups)
    life, reused = param.life, param.reused
    return RunParam(param.flow, initial, shape, param.pin, param.start, life, reused)


def next_life_param(text: str, life: int, reused: Mapping[str, int], checkpoints: str) -> Value:
    """The param of a later life's root: that of an earlier one, and what is new about this one."""
    param: dict[str, Raw] = _read(text, dict[str, Raw])
    new = {"life": life, "reused": dict(reused), "checkpoints": checkpoints}
    written = param | {key: Raw(msgspec.json.encode(value)) for key, value in new.items()}
    return json_values.wrap(msgspec.json.encode(written))


def shape_of(root_param: str) -> Shape:
    return read_root_param(root_param).shape


def cleanups_of(promise: Promise) -> tuple[str, ...]:
    """The tasks that clean up after this run, in order; none if it is not the root of one."""
    shape = _shape_if_root(promise)
    return () if shape is None else tuple(each for each in shape.order if each in shape.cleanups)


def task_ids_of(promise: Promise) -> tuple[str, ...]:
    """The tasks of this run, in order; none if it is not the root of one."""
    shape = _shape_if_root(promise)
    return () if shape is None else tuple(shape.order)


def _shape_if_root(promise: Promise) -> Shape | None:
    if parse_root_id(promise.id) is None:
        return None
    try:
        return read_root_param(promise.param).shape
    except WireError:
        return None


def cleanup_ids(root: Promise) -> tuple[str, ...]:
    """The promises of the tasks that clean up after this life of a run."""
    run_id, tasks = parse_root_id(root.id), cleanups_of(root)
    if run_id is None or not tasks:
        return ()
    life_of = read_root_param(root.param).life_of
    return tuple(node_id(run_id, each, life_of(each)) for each in tasks)


def differing_keys(one: str, other: str) -> list[str]:
    """The keys whose first values differ between two runs, given as their root params."""
    mine, theirs = (_read(text, _RootParam).context for text in (one, other))
    return sorted(
        key
        for key in mine.keys() | theirs.keys()
        if key not in mine or key not in theirs or _is_other(mine[key], theirs[key])
    )


def _is_other(one: Raw, other: Raw) -> bool:
    first, second = bytes(one), bytes(other)
    return first != second and _in_order(first) != _in_order(second)


def _read(text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(json_values.bytes_of(text), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"this promise was not written by layby.run.start: {error}") from None


def _initial(flow: Workflow | Layout, given: Any) -> dict[str, bytes]:
    """What a run begins with, checked by the class that the workflow declares for it.

    Without the workflow's code there is nothing to check it by.
    """
    if isinstance(flow, Layout) or flow.declared is None:
        return Context(given).changes().changed
    encoded = Context(cast("Any", flow.declared.values_of(given))).changes().changed
    flow.declared.check(encoded)
    return encoded


def _root_param(layout: Layout, context: Mapping[str, bytes], start_id: str = "") -> Value:
    encoded = {key: Raw(value) for key, value in context.items()}
    written = _WrittenRoot(layout.name, encoded, Raw(layout.tasks), layout.pin, start_id)
    return json_values.wrap(msgspec.json.encode(written))


def _in_order(encoded: bytes) -> bytes:
    return msgspec.json.encode(json_values.decode(encoded), order="sorted")


@lru_cache(maxsize=256)
def layout_of(flow: Workflow) -> Layout:
    tasks = tuple(
        _CleanupParam(task.id, task.dependencies, cleanup=True)
        if task.cleans_up
        else _TaskParam(task.id, task.dependencies)
        for task in flow.tasks.values()
    )
    nodes = tuple(_node(flow, task_id) for task_id in flow.tasks)
    return Layout(flow.name, nodes, msgspec.json.encode(tasks), flow.pin)


def _node(flow: Workflow, task_id: str) -> Node:
    task = flow.tasks[task_id]
    param = json_values.wrap(msgspec.json.encode(_NodeParam(task.dependencies)))
    name = node_name(flow.name, task_id)
    return Node(
        task_id,
        name,
        task.dependencies,
        task.group,
        param,
        task.cleans_up,
        task.priority,
        task.slots,
        fixed_limits(task.limit),
    )
