"""One execution of a workflow, for code that started it or looked it up."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec.structs import replace

from layby.client.paging import pages
from layby.client.patience import PAUSES
from layby.core.commands import GetPromise, WatchPromise, WatchRun
from layby.core.model import Millis, Promise, Task
from layby.core.queries import ExplainPromise, GetRun
from layby.core.replies import (
    Explanation,
    PromiseData,
    PromisePage,
    Reply,
    RowPage,
    RunData,
    RunWatchData,
)
from layby.core.waits import waiting_of
from layby.errors import (
    LaybyError,
    NotFound,
    ResultExpired,
    StoreGone,
    StoreUnavailable,
    error_for,
)
from layby.runner.settling import Settlement
from layby.wire.durations import limit_of, millis_of
from layby.worker.handle import maybe_handle
from layby.workflow import outcome, plan
from layby.workflow.child_states import (
    MOST_CHILDREN,
    ChildState,
    child_states,
    children_of,
    shown_in,
)
from layby.workflow.context import Context
from layby.workflow.duration_checks import Duration
from layby.workflow.next_life import (
    Checkpoints,
    From,
    LifeRows,
    check_life,
    from_tasks,
    next_life,
    rows_of_life,
)
from layby.workflow.reasons import reason_of
from layby.workflow.status import NodeRow, RunStatus, exits_by_task, joins_by_caller, run_status
from layby.workflow.unfinished import context_so_far, rows_of, run_failed

if TYPE_CHECKING:
    from layby.runner.runner import Runner


EXPLAINED_NAMES = 8
"""How many different ready tasks a status asks the store about."""
HINT_S = 0.5
"""How long whoever has lost their patience may have to wait for the reason."""
UNKNOWN = " is not known: check the id, or start it first"
NO_RESULT = "has no result after {within:g} s"
CLEANING_UP = "is not cleaned up after {within:g} s"
Answer = TypeVar("Answer", PromiseData, RunWatchData)


def deadline_ms(deadline: Duration | None) -> Millis:
    """How long a run may take; the store turns it into a deadline by its own clock."""
    return max(1, millis_of(limit_of(deadline, "deadline of a run", positive=True)))


class Run:
    def __init__(self, runner: "Runner", run_id: str, *, is_new: bool = False) -> None:
        self._runner = runner
        self.id = run_id
        self.is_new = is_new
        """Whether the call that returned this has created the run; an existing one goes on."""

    @property
    def promise_id(self) -> str:
        return plan.root_id(self.id)

    async def result(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109 - ours
        *,
        life: int | None = None,
    ) -> Context:
        """The final context. A failed run raises RunFailed; inside a task this parks it.

        The causes of a RunFailed are made from what is stored, never the errors themselves.
        Of a run that was run again: that of its latest life, unless another one is asked for.
        """
        within = limit_of(timeout, "timeout of result()")
        return await self.concluded(await self._settled(within, life))

    async def context(self, *, life: int | None = None) -> Context:
        """What the run has made so far, whether it runs, has failed or was cancelled; the final
        context if it has completed. Waits for nothing.
        """
        found, now = rows_of_life(self.id, await self._rows(), life), self._runner.now()
        root = found.root[0].at(now)
        if root.state == "resolved":
            return await self.concluded(root)
        return context_so_far(root, rows_of(found.nodes.values(), now))

    async def cleaned_up(self, timeout: Duration | None = None) -> RunStatus:  # noqa: ASYNC109 - ours
        """Wait until the run and its tasks with `rule="finally"` have ended; how they ended.

        A run without such tasks, or one that completed or failed by itself, is cleaned up as soon
        as it has ended. Nothing is raised if the clean-up failed: look at the status.
        """
        within = limit_of(timeout, "timeout of cleaned_up()")
        begin = asyncio.get_running_loop().time()
        not_yet = "" if within is None else CLEANING_UP.format(within=within)
        root = await self._settled(within, None, not_yet)
        life_of = plan.read_root_param(root.param).life_of
        for task_id in plan.cleanups_of(root):
            passed = asyncio.get_running_loop().time() - begin
            left = None if within is None else max(0.0, within - passed)
            node_id = plan.node_id(self.id, task_id, life_of(task_id))
            await self._settled(left, None, not_yet, node_id)
        return await self.status(life=plan.life_of(root.id))

    async def status(self, *, life: int | None = None) -> RunStatus:
        """The run and each of its tasks: what each does, and what it waits for.

        Of a run that was run again: its latest life, unless another one is asked for.
        """
        rows = await self._rows()
        found = rows_of_life(self.id, rows, life)
        root, root_task = found.root
        runnable = await self._runnable(tuple(found.nodes.values()))
        joins, exits = joins_by_caller(rows), exits_by_task(rows)
        nodes = [
            NodeRow(
                promise,
                task,
                polling=self._runner.polling(promise.id),
                stuck=self._runner.is_stuck(promise.id),
                runnable=runnable.get(task.name or ""),
                old_body=found.old_bodies.get(task_id),
                joins=joins.get(promise.id, ()),
                exits=exits.get(promise.id, ()),
            )
            for task_id, (promise, task) in found.nodes.items()
            if task is not None
        ]
        status = run_status(root, root_task, nodes, self._runner.now(), found.lives)
        children = shown_in(await self._children(), status.life)
        return replace(status, children=children) if children else status

    async def _children(self) -> list[ChildState]:
        """The first of them; none if this process may not look for them."""
        found: list[Promise] = []
        query = children_of(self.promise_id)
        while len(found) < MOST_CHILDREN:
            page = (await self._runner.send(query)).data
            if not isinstance(page, PromisePage):
                break
            found += page.promises
            if page.cursor is None:
                break
            query = replace(query, cursor=page.cursor)
        return child_states(found, self._runner.now())

    async def rerun(
        self,
        from_: From | Sequence[From] | None = None,
        checkpoints: Checkpoints = "keep",
        deadline: Duration | None = None,
    ) -> Self:
        """Run again what was unsuccessful; with `from_` also these tasks and everything after.

        This begins a new life of the run, which must have ended: otherwise it raises Conflict.
        What was successful is not repeated, and neither are the checkpoints of the tasks that run
        again, unless they are to be forgotten. `deadline` is that of the new life.
        """
        latest = await self.latest_rows()
        timeout, now = deadline_ms(deadline), self._runner.now()
        planned = next_life(latest, from_tasks(from_), checkpoints, timeout, now)
        reply = await self._runner.send(planned.command)
        if isinstance(reply.data, RunData):
            await self._runner.directory.warn_if_nobody_works(latest.param.flow, latest.group)
            return self
        raise error_for(reply.status, f"run '{self.id}' cannot be run again: {reply.data}")

    async def cancel(self, *, by: str = "", reason: str = "") -> Settlement:
        """Cancel it with all its tasks; the answer is true if this call did it."""
        return await self._runner.cancel(self.id, by=by, reason=reason)

    async def halt(self, *, by: str = "", reason: str = "") -> None:
        await self._runner.halt(self.id, by=by, reason=reason)

    async def continue_(self, *, code: bool = False) -> None:
        await self._runner.continue_(self.id, code=code)

    def __repr__(self) -> str:
        return f"<run '{self.id}'>"

    async def unsettled(self) -> list[str]:
        """The ids of its unsettled root and tasks, which can be halted or continued; root first."""
        rows = await self._rows(items=True)
        steered = (task for _, task in rows if task is not None and task.kind is not None)
        return [task.id for task in steered if task.state != "fulfilled"]

    async def latest_rows(self) -> LifeRows:
        """What is stored of its latest life."""
        return rows_of_life(self.id, await self._rows())

    async def concluded(self, root: Promise) -> Context:
        """The result of a life whose root has settled; raises how it failed.

        Only what is not in the root is read: results that are large, and how tasks failed.
        """
        self._unexpired(root)
        over = outcome.read_run(root)
        if over.status == "Failed":
            found = rows_of_life(self.id, await self._rows(), plan.life_of(root.id))
            raise run_failed(root, rows_of(found.nodes.values(), self._runner.now()))
        if over.results is not None and over.elsewhere:
            life_of = plan.read_root_param(root.param).life_of
            ids = (plan.node_id(self.id, each, life_of(each)) for each in over.elsewhere)
            kept = await asyncio.gather(*map(self._kept_result, ids))
            for task_id, encoded in zip(over.elsewhere, kept, strict=True):
                over.results.learn(task_id, encoded)
        return over.result(self.id)

    async def _kept_result(self, node_id: str) -> bytes:
        reply = await self._runner.send(GetPromise(id=node_id))
        found = outcome.read(reply.data.promise) if isinstance(reply.data, PromiseData) else None
        if found is None or found.result is None:
            raise error_for(reply.status, f"the result of {node_id} cannot be read: {reply.data}")
        return found.result

    async def _settled(
        self,
        within: float | None,
        life: int | None,
        not_yet: str = NO_RESULT,
        node_id: str | None = None,
    ) -> Promise:
        """The root of this life, or of the latest, or this node, when it has settled."""
        handle = maybe_handle()
        if handle is not None and self._runner.runs_here(handle.task_execution_id):
            awaited = node_id or await self._awaited_root(life)
            return self._unexpired(await handle.settled(awaited, within))
        limit = asyncio.timeout(within)
        try:
            async with limit:
                if node_id is None:
                    return await self._watched(life)
                return (await self._watch(WatchPromise(id=node_id), PromiseData)).promise
        except TimeoutError:
            if not limit.expired():
                raise
            hint = await self._hint(is_over=node_id is not None)
            raise TimeoutError(f"run '{self.id}' {not_yet.format(within=within)}{hint}") from None

    async def _watched(self, life: int | None) -> Promise:
        if life is not None:
            life = await self._known_life(life)
        else:
            latest = await self._watch(WatchRun(id=self.promise_id), RunWatchData)
            if latest.lives == 1:
                return latest.promise
            life = latest.lives
        watch = WatchPromise(id=plan.root_id(self.id, life))
        return (await self._watch(watch, PromiseData)).promise

    async def _awaited_root(self, life: int | None) -> str:
        """If it was pruned, the id that is left: that a body has found it so keeps it."""
        try:
            return plan.root_id(self.id, await self._known_life(life))
        except ResultExpired:
            return self.promise_id

    async def _known_life(self, life: int | None = None) -> int:
        """The number of this life, which must exist, or of the latest."""
        ask = WatchRun(id=self.promise_id, hold=False)
        lives = (await self._watch(ask, RunWatchData)).lives
        return lives if life is None else check_life(self.id, life, lives)

    async def _watch(self, command: WatchPromise, kind: type[Answer]) -> Answer:
        reply = await self._watched_patiently(command)
        if isinstance(reply.data, kind):
            self._unexpired(reply.data.promise)
            return reply.data
        why = UNKNOWN if reply.status == 404 else f" cannot be watched: {reply.data}"
        raise error_for(reply.status, f"run '{self.id}'{why}")

    async def _watched_patiently(self, command: WatchPromise) -> Reply:
        """Runs go on, and the store is expected back, for as long as the caller waits."""
        failures = 0
        while True:
            try:
                return await self._runner.send(command)
            except StoreGone:
                raise
            except StoreUnavailable:  # the client has logged it
                failures += 1
            await asyncio.sleep(PAUSES.after(failures))

    async def _runnable(
        self, rows: Sequence[tuple[Promise, Task | None]]
    ) -> dict[str, Explanation]:
        """By name, of the tasks that are ready: which workers have their code, if any."""
        now, ready = self._runner.now(), dict[str, str]()
        for promise, task in rows:
            waiting = None if task is None else waiting_of(promise.at(now), task, now)
            if task is not None and waiting is not None and waiting.form == "untaken":
                ready.setdefault(task.name or "", task.id)
        found: dict[str, Explanation] = {}
        for name, task_id in islice(ready.items(), EXPLAINED_NAMES):
            reply = await self._runner.send(ExplainPromise(id=task_id))
            if isinstance(reply.data, Explanation):
                found[name] = reply.data
        return found

    async def _hint(self, *, is_over: bool) -> str:
        """What a caller whose patience is over should know: that nobody can go on with it, or
        that nobody can tell. `is_over`: whether only its clean-up is waited for.
        """
        directory = self._runner.directory
        try:
            async with asyncio.timeout(HINT_S):
                explained = (await self._runnable(await self._rows())).values()
        except (LaybyError, TimeoutError):
            return (
                f", and whether it is still running is not known: {directory.address} does not "
                "answer. Wait again: runs go on without this process"
            )
        going = "" if is_over else " and is still running"
        lost = [each for each in explained if not each.able_workers]
        if not lost:
            return f"{going}: wait again" + ("" if is_over else ", or cancel it")
        reason = reason_of(lost[0], self._runner.now())
        return f"{going}: {reason.subject} {reason.sentence}. {directory.how_to_work}"

    async def _rows(self, *, items: bool = False) -> list[tuple[Promise, Task | None]]:
        """Without items of maps, unless they are asked for."""
        ask = partial(self._runner.page, kind=RowPage)
        query = GetRun(id=self.promise_id, items=items)
        found = [row async for page in pages(ask, query) for row in page.rows]
        if not found:
            raise NotFound(f"run '{self.id}'{UNKNOWN}")
        self._unexpired(found[0][0])
        return found

    def _unexpired(self, promise: Promise) -> Promise:
        if promise.is_expired:
            raise ResultExpired(f"run '{self.id}'", promise.state)
        return promise
