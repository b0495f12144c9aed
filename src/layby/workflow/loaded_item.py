"""An item of a `map` ready to run: the mapped task, a copy of its caller's context, the item."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from layby.core.commands import Value
from layby.core.joins import MAX_ITEM_BYTES
from layby.core.replies import Claim
from layby.errors import ContextError
from layby.program import UnfitCode
from layby.wire import json_values
from layby.workflow.child_result import ChildResult
from layby.workflow.context import Context
from layby.workflow.loaded_body import LoadedBody
from layby.workflow.mapped_tasks import ItemId, read_join_param, task_named
from layby.workflow.merge import View
from layby.workflow.task import TaskDefinition


class ItemContext(Context):
    """The context of the caller, to be read: what an item has to say is its result."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise ContextError(
            f"context['{key}'] cannot be set by an item of a map: return what it has found out"
        )

    def __delitem__(self, key: str) -> NoReturn:
        raise ContextError(f"context['{key}'] cannot be removed by an item of a map")


class JoinMemory:
    """What is known of a join: the same for all its items."""

    def __init__(self, param: str) -> None:
        told = read_join_param(param)
        self._name = told.task
        self.view = View.initial({key: bytes(value) for key, value in told.context.items()})
        self.is_pinned = told.pin
        self.pin: str | None = None
        """The code that its run is pinned to, as far as it is known here."""

    def definition(
        self, near: TaskDefinition[..., Any] | None, code: str
    ) -> TaskDefinition[..., Any]:
        found = task_named(self._name, near)
        if found is None:
            why = f"there is no task '{self._name}' to map; import its module where the flow is"
            raise UnfitCode(why, code)
        return found


class LoadedItem(LoadedBody):
    """What its function returns is its result."""

    __slots__ = ("_index", "_item", "is_pinned")

    def __init__(
        self,
        definition: TaskDefinition[..., Any],
        join: JoinMemory,
        item: ItemId,
        claim: Claim,
        random: Callable[[], float],
        code: str,
    ) -> None:
        super().__init__(definition, ItemContext.over(join.view), claim, random, code)
        self._index = item.index
        self._item = json_values.from_text(claim.promise.param)
        self.is_pinned = join.is_pinned

    def body(self, handle: Any) -> Callable[[], Any]:
        if self._definition.process and self._then is None:
            context = self._context.for_process()
            return partial(in_child, self._definition, context, self._item, self._index)
        return super().body(handle)

    def _given(self) -> dict[str, Any]:
        return {"item": self._item}

    def completed(self, result: Any) -> Value:
        if isinstance(result, ChildResult):
            return json_values.wrap(result.checked())
        return json_values.wrap(_encoded(result, self._index))


def in_child(
    definition: TaskDefinition[..., Any], context: Context, item: Any, index: int
) -> ChildResult:
    returned = definition.call(context, item=item)
    return ChildResult.of(lambda: _encoded(returned, index))


def _encoded(result: object, index: int) -> bytes:
    return json_values.encode_bounded(result, f"the result of item {index}", MAX_ITEM_BYTES)
