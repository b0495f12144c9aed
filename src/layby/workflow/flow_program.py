"""The code of workflows as a worker runs it: loads contexts, decides rules, concludes runs.

What settled nodes changed is kept per run in memory, so that a chain reads nothing it has
just written; what is missing (another process ran it) is read from the store.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from layby.client.interface import Client
from layby.client.patience import known
from layby.core.codes import code_for
from layby.core.commands import GetPromise, PinRun, Value
from layby.core.model import Codes, Promise, PromiseState
from layby.core.replies import Claim, PinData, PromiseData
from layby.errors import ContextError, UsageError, error_for
from layby.program import LoadedTask, NamedLimits, UnfitCode, Verdict
from layby.wire import json_values
from layby.wire.call_format import Call
from layby.workflow import outcome, plan
from layby.workflow.code_names import name_of
from layby.workflow.context import Context
from layby.workflow.functions import Functions
from layby.workflow.limiting import limits_of
from layby.workflow.loaded_body import LoadedBody
from layby.workflow.loaded_item import JoinMemory, LoadedItem
from layby.workflow.mapped_tasks import ItemId, parse_item_id
from layby.workflow.merge import Merge
from layby.workflow.outcome import NodeOutcome
from layby.workflow.rules import Skip, decide
from layby.workflow.run_ending import RunEnding
from layby.workflow.sameness import is_same_code
from layby.workflow.shape import Shape
from layby.workflow.task import TaskDefinition
from layby.workflow.task_results import TaskResults, encoded_result
from layby.workflow.views import RunViews
from layby.workflow.workflow import AnyTask, Workflow

JOINS_REMEMBERED = 200
RUNS_REMEMBERED = 2_000
"""Runs whose contexts are kept in memory; the least recently used is forgotten first."""


class RunMemory:
    """What is known of one run: its shape, and how its settled nodes ended."""

    def __init__(self, root_param: str, shape_of: Callable[[str], Shape | None]) -> None:
        self._param = param = plan.read_root_param(root_param, shape_of)
        self.views = RunViews(param.shape, param.initial)
        self.is_pinned = param.pin
        self.pin: str | None = None
        """The code it is pinned to, as far as it is known here."""
        self.outcomes: dict[str, NodeOutcome] = {}
        self.results = TaskResults(param.shape)

    def has(self, task_id: str) -> bool:
        """Calls made by its tasks have ids below theirs, but are not tasks of the run."""
        return task_id in self.views.shape.after

    def is_last(self, task_id: str) -> bool:
        """Whether all others are known to have ended, and no task depends on it."""
        shape = self.views.shape
        others = len(self.outcomes) - (task_id in self.outcomes)
        return others == len(shape.after) - 1 and task_id in shape.leaves

    def learn(self, task_id: str, promise: Promise) -> None:
        """How a task ended; one cancelled before its turn may settle ahead of those before it.

        What runs again before a task that does not is passed on by it, though it settled later.
        """
        if promise.is_pending:
            self.views.leave_open(task_id)
            return
        found = outcome.read(promise)
        self.outcomes[task_id] = found
        settled_at = None if task_id in self._param.reused else promise.settled_at
        self.views.learn(task_id, found.delta, settled_at)
        if found.result is not None:
            self.results.learn(task_id, found.result)
        if found.event is not None:
            self.results.learn_event_id(task_id, found.event)

    def node_id(self, run_id: str, task_id: str) -> str:
        """Its promise; that of an earlier life if it does not run again in this one."""
        return plan.node_id(run_id, task_id, self._param.life_of(task_id))


class FlowProgram:
    """`version` names the code of all its workflows; by default each has a digest of its own."""

    has_records = True

    def __init__(
        self, client: Client, random: Callable[[], float], version: str | None = None
    ) -> None:
        self._client = client
        self._random = random
        self._version = version
        self._flows: dict[str, Workflow] = {}
        self._runs: dict[str, RunMemory] = {}
        self._joins: dict[str, JoinMemory] = {}
        self._functions = Functions(random)
        self.names: tuple[str, ...] = ()
        self.codes: Codes = ()

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
        self.codes = tuple(sorted((*self.codes, (flow.name, self._version or name_of(flow)))))
        return True

    @property
    def flows(self) -> Mapping[str, Workflow]:
        """What was registered, by name."""
        return self._flows

    def load_now(self, claim: Claim) -> LoadedTask | Verdict | None:
        if not claim.task.is_ours:
            return self._functions.load(claim)
        if (item := parse_item_id(claim.task.id)) is not None:
            known = self._joins.get(item.join_id)
            is_unfit = known is not None and known.is_pinned and known.pin != self._code_of(claim)
            return None if known is None or is_unfit else self._loaded_item(claim, item, known)
        node = plan.parse_node_id(claim.task.id)
        memory = self._known(claim, node)
        if memory is None or memory.views.unknown(_before(memory, node)):
            return None
        if node is not None and memory.is_pinned and memory.pin != self._code_of(claim):
            return None
        if _cleans_up(memory, node):
            return None  # how the run has ended must be read
        if node is not None and memory.results.unread_events(node.task_id):
            return None
        return self._loaded(claim, node, memory)

    async def load(self, claim: Claim) -> LoadedTask | Verdict:
        if not claim.task.is_ours:
            return self._functions.load(claim)
        if (item := parse_item_id(claim.task.id)) is not None:
            return await self._load_item(claim, item)
        node = plan.parse_node_id(claim.task.id)
        memory = self._known(claim, node)
        if memory is None:
            assert node is not None
            root = await self._read(node.root_id)
            memory = self.remember(root.id, root.param)
        if node is not None and memory.is_pinned:
            await self._check_pin(claim, memory)
        await self._learn(plan.run_id_of(claim.task.id), memory, _before(memory, node))
        if node is not None:
            await self._read_events(memory, node.task_id)
        ending = await self._ending(memory, node) if _cleans_up(memory, node) else None
        return self._loaded(claim, node, memory, ending)

    async def _load_item(self, claim: Claim, item: ItemId) -> LoadedTask:
        """What all items of a join have in common is read once."""
        known = self._joins.get(item.join_id)
        if known is None:
            known = JoinMemory((await self._read(item.join_id)).param)
            self._joins[item.join_id] = known
            while len(self._joins) > JOINS_REMEMBERED:
                del self._joins[next(iter(self._joins))]
        if known.is_pinned:
            await self._check_pin(claim, known)
        return self._loaded_item(claim, item, known)

    def _loaded_item(self, claim: Claim, item: ItemId, known: JoinMemory) -> LoadedTask:
        """Its function is looked for near the task of the workflow that it was mapped by."""
        flow, _, caller = (claim.task.name or "").partition("/")
        registered = self._flows.get(flow)
        near = None if registered is None else registered.tasks.get(caller)
        code = self._code_of(claim)
        definition = known.definition(near, code)
        return LoadedItem(definition, known, item, claim, self._random, code)

    async def _read_events(self, memory: RunMemory, reader: str) -> None:
        """They are stored once, with their triggers, and few are large."""
        results = memory.results
        for task_id, promise_id in results.unread_events(reader):
            promise = await self._read(promise_id)
            results.learn_event(task_id, json_values.from_text(promise.value))

    async def _check_pin(self, claim: Claim, memory: RunMemory | JoinMemory) -> None:
        """The first code that runs one of its tasks is the code of the whole run."""
        code, task = self._code_of(claim), claim.task
        if memory.pin == code:
            return
        reply = known(await self._client.send(PinRun(id=task.id, version=task.version, code=code)))
        if not isinstance(reply.data, PinData):
            raise error_for(
                reply.status, f"{task.id} cannot be pinned to code '{code}': {reply.data}"
            )
        memory.pin = reply.data.code
        if memory.pin != code:
            raise UnfitCode(f"its run is pinned to code '{memory.pin}'", code, memory.pin)

    def _code_of(self, claim: Claim) -> str:
        return code_for(claim.task.name or "", self.codes)

    def conclude(self, task_id: str, state: PromiseState, value: Value) -> Verdict | None:
        """Only if it is the last task, and this process knows how all others ended."""
        node = plan.parse_node_id(task_id)
        memory = None if node is None else self._runs.get(node.root_id)
        if node is None or memory is None or not memory.is_last(node.task_id):
            return None
        ended = outcome.read_as(state, value)
        outcomes = {**memory.outcomes, node.task_id: ended}
        in_order = {each: outcomes[each] for each in memory.views.shape.after}
        return outcome.conclude(in_order, memory.views.final_with(node.task_id, ended.delta))

    def _known(self, claim: Claim, node: "plan.NodeId | None") -> RunMemory | None:
        """What this process knows of the run; a claimed root carries its own param."""
        root_id = claim.task.id if node is None else node.root_id
        memory = self._runs.pop(root_id, None)
        if memory is not None:
            self._runs[root_id] = memory  # moved to the end: it is the most recently used
        elif node is None:
            memory = self.remember(root_id, claim.promise.param)
        elif claim.root_param is not None:
            memory = self.remember(root_id, claim.root_param)
        return memory

    def _loaded(
        self,
        claim: Claim,
        node: "plan.NodeId | None",
        memory: RunMemory,
        ending: RunEnding | None = None,
    ) -> LoadedTask | Verdict:
        if node is None:
            ended = {each: memory.outcomes[each] for each in memory.views.shape.after}
            return outcome.conclude(ended, memory.views.final())
        definition = self._definition(claim, node.task_id)
        merged = memory.views.before(node.task_id)
        context = Context.over(merged.view, memory.results, node.task_id)
        context.ending = ending
        try:
            after = memory.views.shape.after[node.task_id]
            decision = decide(definition.rule, _outcomes(memory, after), context)
        except Exception as error:  # noqa: BLE001 - a broken rule is this task's failure
            return Verdict("rejected", json_values.error_value(error))
        if isinstance(decision, Skip):
            return Verdict("resolved", outcome.encode_skipped(decision))
        if claim.task.limits is None and (names := limits_of(definition, context)):
            raise NamedLimits(names)
        code = self._code_of(claim)
        loaded = LoadedNode(definition, merged, context, claim, self._random, code)
        loaded.is_pinned = memory.is_pinned
        return loaded

    def _definition(self, claim: Claim, task_id: str) -> AnyTask:
        flow = self._flows.get((claim.task.name or "").partition("/")[0])
        if flow is None or task_id not in flow.tasks:
            raise UnfitCode(f"there is no task '{claim.task.name}'", self._code_of(claim))
        return flow.tasks[task_id]

    def started(self, root: Promise) -> None:
        if plan.parse_root_id(root.id) is not None:
            self.remember(root.id, root.param)

    def settled(self, promise: Promise) -> None:
        node = plan.parse_node_id(promise.id)
        if node is None:
            self._runs.pop(promise.id, None)
            return
        memory = self._runs.get(node.root_id)
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
            *(self._read(memory.node_id(run_id, task_id)) for task_id in unknown)
        )
        for task_id, promise in zip(unknown, missing, strict=True):
            memory.learn(task_id, promise)

    async def _ending(self, memory: RunMemory, node: "plan.NodeId | None") -> RunEnding:
        """How the run has ended, or will end if nothing else fails."""
        assert node is not None
        root = await self._read(node.root_id)
        shape = memory.views.shape
        ordinary = tuple(each for each in shape.after if each not in shape.cleanups)
        return outcome.ending(root, _outcomes(memory, ordinary))

    async def _read(self, promise_id: str) -> Promise:
        reply = known(await self._client.send(GetPromise(id=promise_id)))
        if not isinstance(reply.data, PromiseData):
            raise error_for(reply.status, f"{promise_id}: {reply.data}")
        return reply.data.promise


class LoadedNode(LoadedBody):
    """A node ready to run, with the context it starts from."""

    __slots__ = ("_conflicts", "is_pinned")

    def __init__(
        self,
        definition: TaskDefinition[..., Any],
        merged: Merge,
        context: Context,
        claim: Claim,
        random: Callable[[], float],
        code: str,
    ) -> None:
        super().__init__(definition, context, claim, random, code)
        self._conflicts = merged.conflicts

    @staticmethod
    def in_process(definition: TaskDefinition[..., Any], context: Context) -> "LeftInProcess":
        returned = definition.call(context)
        try:
            result = _kept(returned, context, definition.id)
            context.absorb(returned)
            context.changes()  # what cannot be stored may be impossible to send as well
        except ContextError as error:
            return LeftInProcess(refused=str(error))
        return LeftInProcess(context.to_dict(), result)

    def completed(self, result: Any) -> Value:
        if isinstance(result, LeftInProcess):
            kept = self._adopt(result)
        else:
            kept = _kept(result, self._context, self._definition.id)
            self._context.absorb(result)
        return outcome.encode_completed(
            self._context.changes(), self._conflicts, kept, self.event_id
        )

    def _adopt(self, left: "LeftInProcess") -> bytes | None:
        if left.refused:
            raise ContextError(left.refused)
        for key in [key for key in self._context if key not in left.values]:
            del self._context[key]
        self._context.update(left.values)
        return left.result


def _kept(returned: object, context: Context, task_id: str) -> bytes | None:
    """The result that is kept beside the context; a typed view is merged into it instead."""
    return None if context.is_typed_view(returned) else encoded_result(returned, task_id)


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


def _cleans_up(memory: RunMemory, node: "plan.NodeId | None") -> bool:
    return node is not None and node.task_id in memory.views.shape.cleanups


def _outcomes(memory: RunMemory, after: tuple[str, ...]) -> dict[str, NodeOutcome]:
    return {task_id: memory.outcomes[task_id] for task_id in after}


def _refuse_other_code(known: Workflow, flow: Workflow) -> None:
    if not is_same_code(known, flow):
        raise UsageError(
            f"workflow '{flow.name}' is already registered with this Runner, with different code: "
            "give one of the two another name"
        )
