"""Tasks that `map` runs for items: how they are stored, and found again by other processes."""

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from layby.errors import UsageError, WireError
from layby.program import Mapped, may_be_one_file
from layby.wire import json_values
from layby.workflow.context import Context
from layby.workflow.limiting import fixed_limits, limits_of
from layby.workflow.plan import is_other
from layby.workflow.task import TaskDefinition, takes_item
from layby.workflow.workflow import AnyTask

_ITEM: Final = re.compile(r"(?P<caller>.+):map/[^:/]+:(?P<index>\d+)")


class ItemId(Struct, frozen=True):
    """What the id of an item says."""

    join_id: str
    caller: str
    """The promise of the task that has called `map`."""
    index: int


class JoinParam(Struct, frozen=True):
    """What all items of a join have in common."""

    task: str
    context: dict[str, Raw]
    pin: bool = False


@lru_cache(maxsize=1024)
def parse_item_id(promise_id: str) -> ItemId | None:
    """None when this is not an item of a join."""
    found = _ITEM.fullmatch(promise_id)
    if found is None:
        return None
    return ItemId(promise_id.rpartition(":")[0], found["caller"], int(found["index"]))


def mapped_as_stored(
    task: object, context: Context, run_priority: int, *, is_pinned: bool
) -> Mapped:
    """The task by its name, with the context as it stands: stored once for all items."""
    if not isinstance(task, TaskDefinition):
        raise UsageError(f"map: {task!r} is not a task: decorate the function with @task")
    definition = cast("AnyTask", task)
    name = name_of_task(definition)
    encoded = {key: Raw(value) for key, value in context.as_encoded().items()}
    param = msgspec.json.encode(JoinParam(name, encoded, is_pinned))
    limits = (*fixed_limits(definition.limit), *limits_of(definition, context))
    return Mapped(
        name,
        definition.id,
        json_values.wrap(param),
        definition.group,
        limits,
        run_priority + definition.priority,
        definition.slots,
    )


def name_of_task(task: AnyTask) -> str:
    """By which other processes find it; refuses what has no such name."""
    name = f"{task.function.__module__}:{task.function.__qualname__}"
    if task_named(name, task) is not task:
        raise UsageError(
            f"map: task '{task.id}' cannot be found by name in another process: make it a def "
            "with @task at the top of a module, and put what it needs into items or the context"
        )
    if not takes_item(task.function):
        raise UsageError(f"map: task '{task.id}' takes no item: write def {task.id}(context, item)")
    return name


def task_named(name: str, near: AnyTask | None = None) -> AnyTask | None:
    """A task at the top of a module that has been imported; None if there is none.

    Nothing is imported for a name that comes from a store. `near` is a task of the code that
    mapped: what was the script itself there may be a module here, or one of a package.
    """
    module, _, qualified = name.partition(":")
    places: list[Mapping[str, Any]] = []
    if module in sys.modules:
        places.append(vars(sys.modules[module]))
    if near is not None and may_be_one_file(module, near.function.__module__):
        places.append(getattr(near.function, "__globals__", {}))
    for place in places:
        found = place.get(qualified)
        if isinstance(found, TaskDefinition) and found.function.__qualname__ == qualified:
            return cast("AnyTask", found)
    return None


def read_join_param(text: str) -> JoinParam:
    try:
        return msgspec.json.decode(json_values.bytes_of(text), type=JoinParam)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"this promise was not written by layby.map.add: {error}") from None


def is_same_context(join_param: str, other: str) -> bool:
    """Whether the context was the same when these two joins were made; keys have no order."""
    one, two = (read_join_param(each).context for each in (join_param, other))
    return one.keys() == two.keys() and not any(is_other(one[key], two[key]) for key in one)
