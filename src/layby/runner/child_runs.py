"""Starts runs for tasks: each is found again by every later try of its caller, and never twice.

A child that was successful is reused, also by the next life of its parent if that starts it with
the same context. One that was not is run again, as its own next life, after the try that saw it has
failed or when its parent is run again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from layby.client.patience import until_answered
from layby.core import values
from layby.core.children import Caller, caller_of, parent_of
from layby.core.commands import StartRun
from layby.core.ids import life_id, life_root_of
from layby.core.model import Promise
from layby.core.replies import Reply, RunData
from layby.errors import Conflict, UsageError, error_for
from layby.runner.run import Run, deadline_ms
from layby.wire import json_values
from layby.wire.durations import true_or_false
from layby.worker.attempt import Attempt
from layby.worker.child_run import ChildSpec
from layby.worker.replay import Record, digest_of
from layby.workflow import plan
from layby.workflow.child_ids import child_run_id
from layby.workflow.names import check_run_id
from layby.workflow.next_life import next_life
from layby.workflow.turn_checks import check_priority

if TYPE_CHECKING:
    from layby.runner.runner import Runner
    from layby.worker.handle import TaskHandle
    from layby.workflow.workflow import Workflow

logger = logging.getLogger(__name__)

Found = Callable[[Any], Awaitable["Workflow | plan.Layout"]]
MOST_ROUNDS: Final = 10
"""How often a child is looked at again because others run it again at the same time."""


class StartedChild(Struct, frozen=True):
    """A child, and the root of the life that its caller waits for."""

    run: Run
    root: Promise
    is_new: bool = False
    is_kept: bool = False

    @property
    def id(self) -> str:
        return self.run.id

    async def concluded(self, root: Promise) -> Any:
        return await self.run.concluded(root)

    async def status(self) -> Any:
        return await self.run.status(life=plan.life_of(self.root.id))


class ChildRuns:
    """Of one Runner. `found` gives the workflow that is asked for, registered with its worker."""

    def __init__(self, runner: "Runner", found: Found, group: str) -> None:
        self._runner = runner
        self._found = found
        self._group = group

    async def start_child(
        self, caller_try: Attempt, handle: "TaskHandle", asked: ChildSpec
    ) -> StartedChild:
        node = plan.parse_node_id(caller_try.id)
        if node is None:
            raise UsageError(
                f"{caller_try.id}: only a task of a run can start child runs; a function that "
                "serves calls of others can use runner.start()"
            )
        flow = await self._found(asked.flow)
        run_id = child_run_id(node, asked.key) if asked.run_id is None else asked.run_id
        timeout = deadline_ms(asked.deadline)
        priority = caller_try.loaded.run_priority
        if asked.priority is not None:
            priority = check_priority(asked.priority, "priority")
        start = plan.plan(
            flow, check_run_id(run_id), asked.context, self._group, timeout, priority=priority
        )
        detach = true_or_false(asked.detach, "detach")
        caller = Caller(caller_try.id, caller_try.version, detach=detach)
        start = replace(start, caller=caller)
        if asked.run_id is None and (node.life > 1 or caller_try.replay.earlier):
            start = replace(start, id=await _own_id(caller_try, node, asked.key, start))
        for _ in range(MOST_ROUNDS):
            child = await self._started(caller_try, handle, asked, start)
            if child is not None:
                return child
        run_id = plan.run_id_of(start.id)
        raise Conflict(
            f"run '{run_id}' was run again by others each time it was asked for: try again"
        )

    async def _started(
        self, caller_try: Attempt, handle: "TaskHandle", asked: ChildSpec, start: StartRun
    ) -> StartedChild | None:
        """None if others have changed what was to be changed: then it is looked at again."""
        data = await self._send(caller_try, start)
        run = Run(self._runner, plan.run_id_of(start.id), is_new=data.created)
        first, caller = data.promise, start.caller
        assert caller is not None
        if data.created or first.is_expired:
            is_kept = data.created and not asked.detach
            return StartedChild(run, first, data.created, is_kept)
        is_own = parent_of(first) == caller.parent
        _check_same(caller_try, asked, start, first, is_own=is_own)
        latest = await _latest(caller_try, data)
        if is_own and _runs_again(caller_try, latest):
            return await self._run_again(caller_try, handle, run, start)
        if is_own and latest.is_pending and data.lives is not None:
            await self._send(caller_try, replace(start, life=data.lives))
        return StartedChild(run, latest, is_kept=is_own and not asked.detach)

    async def _run_again(
        self, caller_try: Attempt, handle: "TaskHandle", run: Run, start: StartRun
    ) -> StartedChild | None:
        rows = await run.latest_rows()
        for each in plan.cleanup_ids(rows.root[0]):
            await handle.settled(each)
        rows = await run.latest_rows()
        root = rows.root[0].at(self._runner.now())
        if root.is_pending or root.state == "resolved":
            return None
        assert start.caller is not None
        planned = next_life(rows, (), "keep", start.timeout, self._runner.now())
        command = replace(planned.command, caller=start.caller)
        reply = await until_answered(partial(self._runner.send, command))
        if isinstance(reply.data, RunData):
            return StartedChild(run, reply.data.promise, is_kept=not start.caller.detach)
        await caller_try.annotations.write()  # raises if the task is no longer ours
        return None

    async def _send(self, caller_try: Attempt, start: StartRun) -> RunData:
        reply = await until_answered(partial(self._runner.worker.start_run, start))
        if isinstance(reply.data, RunData):
            return reply.data
        await caller_try.annotations.write()  # raises if the task is no longer ours
        raise _refused(start, reply)


async def _own_id(caller_try: Attempt, node: plan.NodeId, key: str, start: StartRun) -> str:
    """Where the caller runs again: that of the earlier child, if it is still what is wanted.

    What another task has started is not: an item of a map may have the number that another had.
    """
    own = plan.root_id(child_run_id(node, key, node.life))
    first = await caller_try.read(start.id)
    if first is not None and caller_of(first) == caller_try.id:
        return start.id
    if own != start.id and await caller_try.read(own) is not None:
        return own
    for each in _earlier_ids(caller_try, key):
        child = first if each == start.id else await caller_try.read(each)
        if child is None or child.is_expired or caller_of(child) not in caller_try.replay.earlier:
            continue
        if _is_same(start, child):
            return each
    return start.id if first is None else own


def _earlier_ids(caller_try: Attempt, key: str) -> Iterator[str]:
    """Where the children are that this task has started by this call before, the latest first."""
    found: dict[str, None] = {}
    for each in caller_try.replay.earlier:
        node = plan.parse_node_id(each)
        assert node is not None  # the same task as the caller's
        lives = (node.life, 1)
        found |= dict.fromkeys(plan.root_id(child_run_id(node, key, life)) for life in lives)
    return iter(found)


def _is_same(start: StartRun, child: Promise) -> bool:
    """Whether it is a run of the same workflow that began with the same context."""
    if plan.read_root_param(child.param).flow != start.name:
        return False
    return not plan.differing_keys(child.param, json_values.text_of(start.param))


async def _latest(caller_try: Attempt, data: RunData) -> Promise:
    if data.lives is None:
        return data.promise
    return await caller_try.read(life_id(data.promise.id, data.lives)) or data.promise


def _runs_again(caller_try: Attempt, child: Promise) -> bool:
    """It was unsuccessful before this try, or ended with what this task was before."""
    if child.is_pending or child.state == "resolved":
        return False
    ended_with = {
        value
        for each in caller_try.replay.earlier
        for value in (values.run_has_ended(life_root_of(each)), values.task_was_cancelled(each))
    }
    return caller_try.replay.was_before(child) or child.value in ended_with


def _check_same(
    caller_try: Attempt, asked: ChildSpec, start: StartRun, child: Promise, *, is_own: bool
) -> None:
    """The same id is the same run, so it must belong to the same workflow, and to the caller."""
    stored, run_id = plan.read_root_param(child.param).flow, plan.run_id_of(child.id)
    if is_own:
        made, wanted = (Record("start", digest_of(each)) for each in (stored, start.name))
        caller_try.replay.check(child.id, made, wanted, is_earlier=caller_try.try_number > 1)
    elif asked.run_id is None or stored != start.name:
        raise Conflict(
            f"run '{run_id}' already exists, is a run of workflow '{stored}' and was not started "
            f"by {caller_try.id}: give the child another run_id= or key="
        )
    if asked.context is not None and not _is_same(start, child):
        keys = plan.differing_keys(child.param, json_values.text_of(start.param))
        logger.warning(
            "%s: child run '%s' exists and keeps its first context; the one given now differs in "
            "%s: what it depends on must be the same in every try",
            caller_try.id,
            run_id,
            ", ".join(map(repr, keys[:5])),
        )


def _refused(start: StartRun, reply: Reply) -> Exception:
    return error_for(
        reply.status, f"child run '{plan.run_id_of(start.id)}' cannot be started: {reply.data}"
    )
