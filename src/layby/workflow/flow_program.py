"""The code of workflows as a worker runs it: loads contexts, decides rules, concludes runs.

What settled nodes changed is kept per run in memory, so that a chain reads nothing it has
just written; what is missing (another process ran it) is read from the store.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from layby.client.interface import Client
from layby.client.patience import known
from layby.core.commands import GetPromise, Value
from layby.core.model import Promise, PromiseState
from layby.core.replies import Claim, PromiseData
from layby.errors import ContextError, UsageError, error_for
from layby.program import LoadedTask, Verdict
from layby.wire import json_values
from layby.wire.call_format import Call
from layby.workflow import outcome, plan
from layby.workflow.context import Context
from layby.workflow.functions import Functions
from layby.workflow.job import TaskJob
from layby.workflow.merge import Merge
from layby.workflow.outcome import NodeOutcome
from layby.workflow.rules import Skip, decide
from layby.workflow.sameness import is_same_code
from layby.workflow.shape import Shape, same_shape
from layby.workflow.task import TaskDefinition
from layby.workflow.task_results import TaskResults, encoded_result
from layby.workflow.views import RunViews
from layby.workflow.workflow import AnyTask, Workflow

RUNS_REMEMBERED = 2_000
"""Runs whose contexts are kept in memory; the least recently used is forgotten first."""


class RunMemory:
    """What is known of one run: its shape, and how its settled nodes ended."""

    def __init__(self, root_param: str, shape_of: Callable[[str], Shape | None]) -> None:
        param = plan.read_root_param(root_param, shape_of)
        self.views = RunViews(param.shape, param.initial)
        self.outcomes: dict[str, NodeOutcome] = {}
        self.results = TaskResults(partial(same_shape, param.shape))

    def has(self, task_id: str) -> bool:
        """Calls made by its tasks have ids below theirs, but are not tasks of the run."""
        return task_id in self.views.shape.after

    def is_last(self, task_id: str) -> bool:
        """Whether all others are known to have ended, and no task depends on it."""
        shape = self.views.shape
        others = len(self.outcomes) - (task_id in self.outcomes)
        return others == len(shape.after) - 1 and task_id in shape.leaves

    def learn(self, task_id: str, promise: Promise) -> None:
        """How a task ended; one cancelled before its turn may settle ahead of those before it."""
        if promise.is_pending:
            self.views.leave_open(task_id)
            return
        found = outcome.read(promise)
        self.outcomes[task_id] = found
        self.views.learn(task_id, found.delta, promise.settled_at)
        if found.result is not None:
            self.results.encoded[task_id] = found.result


class FlowProgram:
    def __init__(self, client: Client, random: Callable[[], float]) -> None:
        self._client = client
        self._random = random
        self._flows: dict[str, Workflow] = {}
        self._runs: dict[str, RunMemory] = {}
        self._functions = Functions(random)
        self.names: tuple[str, ...] = ()

    @property
    def functions(self) -> frozenset[str]:
        return self._functions.names

    def serves(self, call: Call | None) -> bool:
        return self._functions.serves(call)

    def register_function(self, definition: AnyTask) -> bool:
        """Add a task that serves calls; True when it is new."""
        return self._functions.register(definition)

    def register(self, flow: Workflow) -> bool:
        """Add a workflow's code; True when it is new."""
        known = self._flows.get(flow.name)
        if known is not None:
            _refuse_other_code(known, flow)
            return False
        for definition in flow.tasks.values():
            self._functions.register(definition)
        self._flows[flow.name] = flow
        names = (name for each in self._flows.values() for name in plan.names(each))
        self.names = tuple(sorted(names))
        return True

    @property
    def flows(self) -> Mapping[str, Workflow]:
        """What was registered, by name."""
        return self._flows

    def load_now(self, claim: Claim) -> LoadedTask | Verdict | None:
        if not claim.task.is_ours:
            return self._functions.load(claim)
        node = plan.parse_node_id(claim.task.id)
        memory = self._known(claim, node)
        if memory is None or memory.views.unknown(_before(memory, node)):
            return None
        return self._loaded(claim, node, memory)

    async def load(self, claim: Claim) -> LoadedTask | Verdict:
        if not claim.task.is_ours:
            return self._functions.load(claim)
        node = plan.parse_node_id(claim.task.id)
        memory = self._known(claim, node)
        if memory is None:
            assert node is not None
            root = await self._read(plan.root_id(node.run_id))
            memory = self.remember(root.id, root.param)
        await self._learn(plan.run_id_of(claim.task.id), memory, _before(memory, node))
        return self._loaded(claim, node, memory)

    def conclude(self, task_id: str, state: PromiseState, value: Value) -> Verdict | None:
        """Only if it is the last task, and this process knows how all others ended."""
        node = plan.parse_node_id(task_id)
        memory = None if node is None else self._runs.get(plan.root_id(node.run_id))
        if node is None or memory is None or not memory.is_last(node.task_id):
            return None
        ended = outcome.read_as(state, value)
        outcomes = {**memory.outcomes, node.task_id: ended}
        in_order = {each: outcomes[each] for each in memory.views.shape.after}
        return outcome.conclude(in_order, memory.views.final_with(node.task_id, ended.delta))

    def _known(self, claim: Claim, node: "plan.NodeId | None") -> RunMemory | None:
        """What this process knows of the run; a claimed root carries its own param."""
        root_id = claim.task.id if node is None else plan.root_id(node.run_id)
        memory = self._runs.pop(root_id, None)
        if memory is not None:
            self._runs[root_id] = memory  # moved to the end: it is the most recently used
        elif node is None:
            memory = self.remember(root_id, claim.promise.param)
        elif claim.root_param is not None:
            memory = self.remember(root_id, claim.root_param)
        return memory

    def _loaded(
        self, claim: Claim, node: "plan.NodeId | None", memory: RunMemory
    ) -> LoadedTask | Verdict:
        if node is None:
            ended = {each: memory.outcomes[each] for each in memory.views.shape.after}
            return outcome.conclude(ended, memory.views.final())
        flow_name = (claim.task.name or "").partition("/")[0]
        definition = self._flows[flow_name].tasks[node.task_id]
        merged = memory.views.before(node.task_id)
        context = Context.over(merged.view, memory.results, node.task_id)
        try:
            after = memory.views.shape.after[node.task_id]
            decision = decide(definition.rule, _outcomes(memory, after), context)
        except Exception as error:  # noqa: BLE001 - a broken rule is this task's failure
            return Verdict("rejected", json_values.error_value(error))
        if isinstance(decision, Skip):
            return Verdict("resolved", outcome.encode_skipped(decision))
        return FlowJob(definition, merged, context, claim, self._random)

    def started(self, root: Promise) -> None:
        if plan.parse_root_id(root.id) is not None:
            self.remember(root.id, root.param)

    def settled(self, promise: Promise) -> None:
        node = plan.parse_node_id(promise.id)
        if node is None:
            self._runs.pop(promise.id, None)
            return
        memory = self._runs.get(plan.root_id(node.run_id))
        if memory is not None and memory.has(node.task_id):
            memory.learn(node.task_id, promise)

    def remember(self, root_id: str, root_param: str) -> RunMemory:
        """Keep a run that was started or read here: its root need not be read again."""
        memory = self._runs.get(root_id)
        if memory is None:
            memory = self._runs[root_id] = RunMemory(root_param, self._shape_of)
        while len(self._runs) > RUNS_REMEMBERED:
            del self._runs[next(iter(self._runs))]
        return memory

    def _shape_of(self, flow_name: str) -> Shape | None:
        flow = self._flows.get(flow_name)
        return None if flow is None else flow.shape

    async def _learn(self, run_id: str, memory: RunMemory, tasks: Any) -> None:
        """Read how these tasks, and all before them, have ended, unless that is known."""
        unknown = memory.views.unknown(tasks)
        missing = await asyncio.gather(
            *(self._read(plan.node_id(run_id, task_id)) for task_id in unknown)
        )
        for task_id, promise in zip(unknown, missing, strict=True):
            memory.learn(task_id, promise)

    async def _read(self, promise_id: str) -> Promise:
        reply = known(await self._client.send(GetPromise(id=promise_id)))
        if not isinstance(reply.data, PromiseData):
            raise error_for(reply.status, f"{promise_id}: {reply.data}")
        return reply.data.promise


class FlowJob(TaskJob):
    """A node ready to run, with the context it starts from."""

    __slots__ = ("_conflicts",)

    def __init__(
        self,
        definition: TaskDefinition[..., Any],
        merged: Merge,
        context: Context,
        claim: Claim,
        random: Callable[[], float],
    ) -> None:
        super().__init__(definition, context, claim, random)
        self._conflicts = merged.conflicts

    @staticmethod
    def in_process(definition: TaskDefinition[..., Any], context: Context) -> "LeftInProcess":
        returned = definition.call(context)
        try:
            result = encoded_result(returned, definition.id)
            context.absorb(returned)
            context.changes()  # what cannot be stored may be impossible to send as well
        except ContextError as error:
            return LeftInProcess(refused=str(error))
        return LeftInProcess(context.to_dict(), result)

    def completed(self, result: Any) -> Value:
        if isinstance(result, LeftInProcess):
            kept = self._adopt(result)
        else:
            kept = encoded_result(result, self._definition.id)
            self._context.absorb(result)
        return outcome.encode_completed(self._context.changes(), self._conflicts, kept)

    def _adopt(self, left: "LeftInProcess") -> bytes | None:
        if left.refused:
            raise ContextError(left.refused)
        for key in [key for key in self._context if key not in left.values]:
            del self._context[key]
        self._context.update(left.values)
        return left.result


class LeftInProcess(Struct, frozen=True):
    """The context as a function left it in a child process, and what it returned besides."""

    values: dict[str, Any] = {}
    result: bytes | None = None
    refused: str = ""
    """Why it cannot be stored."""


def _before(memory: RunMemory, node: "plan.NodeId | None") -> tuple[str, ...]:
    """The tasks whose outcomes it depends on; a root depends on all of them."""
    shape = memory.views.shape
    return shape.order if node is None else shape.after[node.task_id]


def _outcomes(memory: RunMemory, after: tuple[str, ...]) -> dict[str, NodeOutcome]:
    return {task_id: memory.outcomes[task_id] for task_id in after}


def _refuse_other_code(known: Workflow, flow: Workflow) -> None:
    if not is_same_code(known, flow):
        raise UsageError(
            f"workflow '{flow.name}' is already registered with this Runner, with different code: "
            "give one of the two another name"
        )
