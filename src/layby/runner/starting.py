"""Start a run, or find the one that has its id."""

import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from layby.client.request_ids import new_request_id
from layby.core.birth import run_priority_of
from layby.core.commands import GetPromise, StartRun, Value
from layby.core.model import NEVER, Millis, Promise
from layby.core.replies import PromiseData, RunData
from layby.errors import Conflict, ContextError, error_for
from layby.runner.limit_calls import UndefinedLimits
from layby.runner.run import UNKNOWN, Run, deadline_ms
from layby.wire import json_values
from layby.worker.worker import Worker
from layby.workflow import plan
from layby.workflow.duration_checks import Duration
from layby.workflow.names import check_run_id
from layby.workflow.outcome import moment
from layby.workflow.short_ids import quoted
from layby.workflow.turn_checks import check_priority
from layby.workflow.workflow import Workflow

if TYPE_CHECKING:
    from layby.runner.runner import Runner

logger = logging.getLogger(__name__)


class RunStarts:
    """`worker` is the one of this process, which may take the first tasks at once."""

    def __init__(self, runner: "Runner", worker: Worker | None, group: str) -> None:
        self._runner = runner
        self._worker = worker
        self._group = group
        self._undefined_limits = UndefinedLimits()

    async def start(
        self,
        flow: Workflow[Any] | plan.Layout,
        context: object | Mapping[str, Any] | None,
        run_id: str | None,
        deadline: Duration | None,
        priority: int,
    ) -> Run:
        start_id = "" if run_id is None else new_request_id()
        run_id = uuid.uuid4().hex if run_id is None else check_run_id(run_id)
        timeout = deadline_ms(deadline)
        check_priority(priority, "priority")
        try:
            command = plan.plan(
                flow, run_id, context, self._group, timeout, start_id=start_id, priority=priority
            )
        except ContextError:
            if context is None and start_id and await self._exists(run_id, flow.name):
                return Run(self._runner, run_id)  # which has a context
            raise
        started = await self._started(command, run_id)
        if started.created:
            await self._runner.directory.warn_if_nobody_works(flow.name)
            groups = (node.group for node in command.nodes if node.group is not None)
            await self._runner.directory.warn_of_groups(flow.name, groups)
            await self._undefined_limits.warn(self._runner.client, command)
            return Run(self._runner, run_id, is_new=True)
        return self._existing(started.promise, command, start_id, context)

    async def _started(self, command: StartRun, run_id: str) -> RunData:
        send = self._runner.send if self._worker is None else self._worker.start_run
        reply = await send(command)
        if not isinstance(reply.data, RunData):
            raise error_for(reply.status, f"run '{run_id}' cannot be started: {reply.data}")
        return reply.data

    def _existing(self, root: Promise, command: StartRun, start_id: str, context: object) -> Run:
        run_id = plan.run_id_of(root.id)
        if root.is_expired:  # it has ended, and what it began with is gone
            return Run(self._runner, run_id)
        found = plan.read_root_param(root.param)
        _check_flow(found.flow, command.name, run_id)
        if found.start_id == start_id:  # an earlier copy of this call, whose answer was lost
            return Run(self._runner, run_id, is_new=True)
        if context is not None:
            _compare_contexts(run_id, root.param, command.param)
        _compare_deadlines(run_id, root, command.timeout)
        _compare_priorities(run_id, root, command.priority)
        return Run(self._runner, run_id)

    async def _exists(self, run_id: str, flow_name: str) -> bool:
        """Whether there is such a run; raises if it belongs to another workflow."""
        data = (await self._runner.send(GetPromise(id=plan.root_id(run_id)))).data
        if not isinstance(data, PromiseData):
            return False
        if data.promise.is_expired:
            return True
        _check_flow(plan.read_root_param(data.promise.param).flow, flow_name, run_id)
        return True


async def root_of(runner: "Runner", run_id: str, life: int = 1) -> Promise:
    """The root promise of a run, which must exist."""
    reply = await runner.send(GetPromise(id=plan.root_id(run_id, life)))
    if isinstance(reply.data, PromiseData):
        return reply.data.promise
    why = UNKNOWN if reply.status == 404 else f": {reply.data}"
    raise error_for(reply.status, f"run '{run_id}'{why}")


def _check_flow(stored: str, flow_name: str, run_id: str) -> None:
    """The same id is the same run, so it must belong to the same workflow."""
    if stored != flow_name:
        raise Conflict(
            f"run '{run_id}' already exists and belongs to workflow '{stored}', not "
            f"'{flow_name}': use another run id; runner.get({run_id!r}) or "
            f"`layby tree {quoted(run_id)}` shows the existing run"
        )


def _compare_contexts(run_id: str, stored: str, given: Value) -> None:
    """Values may be confidential, so only keys are named."""
    if keys := plan.differing_keys(stored, json_values.text_of(given)):
        shown = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
        logger.warning(
            "run '%s' already exists and keeps its first context: the one given now differs in %s; "
            "use another run id for a new run, or pass no context to get the existing one",
            run_id,
            shown,
        )


def _compare_deadlines(run_id: str, root: Promise, timeout: Millis) -> None:
    """A start without a deadline asks for none: whoever wants the existing run need not know it."""
    if root.is_pending and timeout < NEVER and timeout != root.timeout_at - root.created_at:
        kept = "none" if root.timeout_at >= NEVER else moment(root.timeout_at)
        _warn_of_kept(run_id, "deadline", kept)


def _compare_priorities(run_id: str, root: Promise, priority: int) -> None:
    stored = run_priority_of(root.tags)
    if root.is_pending and priority and priority != stored:
        _warn_of_kept(run_id, "priority", stored)


def _warn_of_kept(run_id: str, what: str, kept: object) -> None:
    logger.warning(
        "run '%s' already exists and keeps its first %s (%s): the one given now does not count; "
        "use another run id for a new run",
        run_id,
        what,
        kept,
    )
