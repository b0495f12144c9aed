"""Tasks that serve calls from other languages: what they are given, and what the caller gets.

A single dict argument becomes the context, and so do arguments given by name; anything else is
put there as the list `args`. The answer is what the function returns; if it returns nothing, the
keys it has set in the context, or null.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from layby.core.commands import Value
from layby.core.replies import Claim
from layby.errors import UsageError
from layby.wire import json_values
from layby.wire.call_format import Call, read_call
from layby.workflow.child_result import ChildResult
from layby.workflow.context import Context
from layby.workflow.loaded_body import LoadedBody
from layby.workflow.merge import View
from layby.workflow.sameness import is_same_task
from layby.workflow.task import TaskDefinition
from layby.workflow.workflow import AnyTask

VERSIONS: Final = (0, 1)
"""A function has one version here, the first; callers that want the latest send 0."""
ARGS: Final = "args"


class Functions:
    """What a worker has code for, by the names that callers use."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._by_name: dict[str, AnyTask] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)

    def register(self, definition: AnyTask) -> bool:
        """Serve its calls, if it has a name for them; True when the name is new."""
        name = definition.rpc
        known = self._by_name.get(name or "")
        if name is None or known is definition:
            return False
        if known is not None and not is_same_task(known, definition):
            raise UsageError(
                f"function '{name}' is already served by task '{known.id}', with different code: "
                f"give task '{definition.id}' another rpc="
            )
        self._by_name[name] = definition
        return known is None

    def serves(self, call: Call | None) -> bool:
        return call is not None and call.func in self._by_name and call.version in VERSIONS

    def load(self, claim: Claim) -> "LoadedFunction":
        call = read_call(claim.promise)
        if call is None or not self.serves(call):
            raise UsageError(f"{claim.task.id} is not a call of a function served here")
        return LoadedFunction(self._by_name[call.func], context_of(call), claim, self._random)


class LoadedFunction(LoadedBody):
    """A call ready to run."""

    __slots__ = ()

    @staticmethod
    def in_process(definition: TaskDefinition[..., Any], context: Context) -> ChildResult:
        context = _given(context.to_dict())
        returned = definition.call(context)
        return ChildResult.of(lambda: _encoded(definition, answer_of(returned, context)))

    def completed(self, result: Any) -> Value:
        if isinstance(result, ChildResult):
            return json_values.wrap(result.checked())
        return json_values.wrap(_encoded(self._definition, answer_of(result, self._context)))


def _encoded(definition: TaskDefinition[..., Any], answer: object) -> bytes:
    return json_values.encode(answer, f"the result of '{definition.rpc}'")


def context_of(call: Call) -> Context:
    values = dict(call.kwargs)
    if len(call.args) == 1 and isinstance(call.args[0], dict):
        values = cast("dict[str, Any]", call.args[0]) | values
    elif call.args:
        values = {ARGS: list(call.args)} | values
    return _given(values)


def answer_of(returned: object, context: Context) -> object:
    if isinstance(returned, Context):
        return returned.to_dict()
    if returned is not None:
        return returned
    changed = context.changes().changed
    return {key: json_values.decode(value) for key, value in changed.items()} or None


def _given(values: dict[str, Any]) -> Context:
    """Only what the function changes in it counts as set."""
    return Context.over(
        View.initial({key: json_values.encode(each) for key, each in values.items()})
    )
