"""The code of workflows as a worker runs it: loads contexts, decides rules, concludes runs.

What settled nodes changed is kept per run in memory, so that a chain reads nothing it has
just written; whatever is missing (another process ran it) is read from the store.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from layby.client.api import Client
from layby.core.commands import GetPromise, Value
from layby.core.model import Promise
from layby.core.replies import Claim, PromiseData
from layby.errors import UsageError
from layby.worker import encoding
from layby.worker.call_format import Call
from layby.worker.patience import known
from layby.worker.program import Failure, Job, Mode, Verdict
from layby.workflow import outcome, plan
from layby.workflow.context import Context
from layby.workflow.functions import Functions
from layby.workflow.history import ClaimHistory
from layby.workflow.outcome import NodeOutcome
from layby.workflow.rules import Skip, decide
from layby.workflow.sameness import is_same_code
from layby.workflow.shape import Shape
from layby.workflow.task import TaskDefinition
from layby.workflow.views import RunViews
from layby.workflow.workflow import AnyTask, Workflow

RUNS_REMEMBERED = 2_000
"""Runs whose contexts are kept in memory; the one used longest ago is forgotten first."""


class RunMemory:
    """What is known of one run: its shape, and how its settled nodes ended."""

    def __init__(self, root: Promise, shape_of: Callable[[str], Shape | None]) -> None:
        param = plan.read_root_param(root.param, shape_of)
        self.views = RunViews(param.shape, param.initial)
        self.outcomes: dict[str, NodeOutcome] = {}

    def has(self, task_id: str) -> bool:
        """Calls that its tasks make have ids below theirs, and are no tasks of the run."""
        return task_id in self.views.shape.after

    def learn(self, task_id: str, promise: Promise) -> None:
        """How a task ended; one cancelled before its turn may settle ahead of those before it."""
        if promise.is_pending:
            self.views.leave_open(task_id)
            return
        found = outcome.read(promise)
        self.outcomes[task_id] = found
        self.views.learn(task_id, found.delta, promise.settled_at)


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
        """Learn a task that serves calls; True when that is news."""
        return self._functions.register(definition)

    def register(self, flow: Workflow) -> bool:
        """Learn a workflow's code; True when that is news."""
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

    async def load(self, claim: Claim) -> Job | Verdict:
        if not claim.task.is_ours:
            return self._functions.load(claim)
        node = plan.parse_node_id(claim.task.id)
        if node is None:
            return await self._conclude(claim)
        flow_name = (claim.task.name or "").partition("/")[0]
        definition = self._flows[flow_name].tasks[node.task_id]
        memory = await self._memory(node.run_id)
        after = memory.views.shape.after[node.task_id]
        await self._learn(node.run_id, memory, after)
        context = Context.over(memory.views.before(node.task_id).view)
        try:
            decision = decide(definition.rule, _outcomes(memory, after), context)
        except Exception as error:  # noqa: BLE001 - a broken rule is this task's failure
            return Verdict("rejected", encoding.error_value(error))
        if isinstance(decision, Skip):
            return Verdict("resolved", outcome.encode_skipped(decision))
        return FlowJob(
            definition, context, claim, memory.views.before(node.task_id).conflicts, self._random
        )

    def settled(self, promise: Promise) -> None:
        node = plan.parse_node_id(promise.id)
        if node is None:
            self._runs.pop(promise.id, None)
            return
        memory = self._runs.get(plan.root_id(node.run_id))
        if memory is not None and memory.has(node.task_id):
            memory.learn(node.task_id, promise)

    def remember(self, root: Promise) -> None:
        """A run this process has started: its root need not be read."""
        if root.id not in self._runs:
            self._runs[root.id] = RunMemory(root, self._shape_of)
        while len(self._runs) > RUNS_REMEMBERED:
            del self._runs[next(iter(self._runs))]

    def _shape_of(self, flow_name: str) -> Shape | None:
        flow = self._flows.get(flow_name)
        return None if flow is None else flow.shape

    async def _conclude(self, claim: Claim) -> Verdict:
        """All nodes of a run have settled: merge the leaves, or say what failed."""
        run_id = plan.parse_root_id(claim.task.id)
        assert run_id is not None
        memory = await self._memory(run_id, claim.promise)
        await self._learn(run_id, memory, memory.views.shape.order)
        ended = {each: memory.outcomes[each] for each in memory.views.shape.after}
        return outcome.conclude(ended, memory.views.final())

    async def _memory(self, run_id: str, root: Promise | None = None) -> RunMemory:
        root_id = plan.root_id(run_id)
        if root_id not in self._runs:
            self.remember(root or await self._read(root_id))
        memory = self._runs.pop(root_id)
        self._runs[root_id] = memory  # behind all others: it was used last
        return memory

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
            raise UsageError(f"{promise_id}: {reply.data}")
        return reply.data.promise


class FlowJob:
    """A node ready to run, with the context it starts from."""

    __slots__ = ("_conflicts", "_context", "_definition", "_random", "history")

    def __init__(
        self,
        definition: TaskDefinition[..., Any],
        context: Context,
        claim: Claim,
        conflicts: tuple[Any, ...],
        random: Callable[[], float],
    ) -> None:
        self._definition = definition
        self._context = context
        self._conflicts = conflicts
        self._random = random
        self.history = ClaimHistory(claim.task, claim.ready_at)

    @property
    def name(self) -> str:
        return self._definition.id

    @property
    def mode(self) -> Mode:
        return self._definition.mode

    @property
    def timeout(self) -> float | None:
        return self._definition.timeout

    @property
    def wants_handle(self) -> bool:
        return self._definition.requires_handle

    def body(self, handle: Any) -> Callable[[], Any]:
        if self._definition.process:
            return partial(run_in_process, self._definition, self._context.to_dict())
        return partial(self._definition.call, self._context, handle)

    def completed(self, result: Any) -> Value:
        if self._definition.process:
            self._adopt(result)
        else:
            self._context.absorb(result)
        return outcome.encode_completed(self._context.changes(), self._conflicts)

    def failed(self, error: BaseException, failures: int) -> Failure:
        delay = self._definition.retry.next_delay(failures, error, self._random)
        return Failure(encoding.error_value(error), delay)

    def callback(self, error: BaseException | None) -> Callable[[], Any] | None:
        return self._definition.callback(self._context, error)

    def _adopt(self, after: dict[str, Any]) -> None:
        """The context as the child process left it."""
        for key in [key for key in self._context if key not in after]:
            del self._context[key]
        self._context.update(after)


def run_in_process(definition: TaskDefinition[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """In the child: the context as the function left it."""
    context = Context(values)
    context.absorb(definition.call(context))
    return context.to_dict()


def _outcomes(memory: RunMemory, after: tuple[str, ...]) -> dict[str, NodeOutcome]:
    return {task_id: memory.outcomes[task_id] for task_id in after}


def _refuse_other_code(known: Workflow, flow: Workflow) -> None:
    if not is_same_code(known, flow):
        raise UsageError(
            f"workflow '{flow.name}' is already registered with this Runner, with other code: "
            "give one of the two another name"
        )
