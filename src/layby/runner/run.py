"""One execution of a workflow, for code that started it or looked it up."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from layby.client.paging import pages
from layby.core.commands import GetPromise, WatchPromise
from layby.core.model import Promise, Task
from layby.core.queries import ExplainPromise, GetRun
from layby.core.replies import Explanation, PromiseData, RowPage
from layby.core.waits import waiting_of
from layby.errors import LaybyError, NotFound, error_for
from layby.runner.settling import Settlement
from layby.wire.durations import limit_of
from layby.worker.handle import maybe_handle
from layby.workflow import outcome, plan
from layby.workflow.context import Context
from layby.workflow.duration_checks import Duration
from layby.workflow.reasons import reason_of
from layby.workflow.status import NodeRow, RunStatus, run_status
from layby.workflow.unfinished import context_so_far, rows_of, run_failed

if TYPE_CHECKING:
    from layby.runner.runner import Runner


EXPLAINED_NAMES = 8
"""How many different ready tasks a status asks the store about."""
HINT_S = 0.5
"""How long whoever has lost their patience may have to wait for the reason."""
UNKNOWN = " is not known: check the id, or start it first"
RUNNING = "has no result after {within:g} s and is still running"
CLEANING_UP = "is not cleaned up after {within:g} s"


class Run:
    def __init__(self, runner: "Runner", run_id: str, *, is_new: bool = False) -> None:
        self._runner = runner
        self.id = run_id
        self.is_new = is_new
        """Whether the call that returned this has created the run; an existing one goes on."""

    @property
    def promise_id(self) -> str:
        return plan.root_id(self.id)

    async def result(self, timeout: Duration | None = None) -> Context:  # noqa: ASYNC109 - ours
        """The final context. A failed run raises RunFailed; inside a task this parks it.

        The causes of a RunFailed are made from what is stored, never the errors themselves.
        """
        within = limit_of(timeout, "timeout of result()")
        return await self._result(await self._settled(within))

    async def context(self) -> Context:
        """What the run has made so far, whether it runs, has failed or was cancelled; the final
        context if it has completed. Waits for nothing.
        """
        found = await self._rows()
        now = self._runner.now()
        root = next(promise for promise, _ in found if promise.id == self.promise_id).at(now)
        if root.state == "resolved":
            return await self._result(root)
        return context_so_far(root, rows_of(found, now))

    async def cleaned_up(self, timeout: Duration | None = None) -> RunStatus:  # noqa: ASYNC109 - ours
        """Wait until the run and its tasks with `rule="finally"` have ended; how they ended.

        A run without such tasks, or one that completed or failed by itself, is cleaned up as soon
        as it has ended. Nothing is raised if the clean-up failed: look at the status.
        """
        within = limit_of(timeout, "timeout of cleaned_up()")
        begin = asyncio.get_running_loop().time()
        root = await self._settled(within, CLEANING_UP)
        for task_id in plan.cleanups_of(root):
            passed = asyncio.get_running_loop().time() - begin
            left = None if within is None else max(0.0, within - passed)
            await self._settled(left, CLEANING_UP, plan.node_id(self.id, task_id))
        return await self.status()

    async def status(self) -> RunStatus:
        """The run and each of its tasks: what each does, and what it waits for."""
        rows = await self._rows()
        by_id = {promise.id: (promise, task) for promise, task in rows}
        root, root_task = by_id[self.promise_id]
        runnable = await self._runnable(rows)
        nodes = [
            NodeRow(
                promise,
                task,
                polling=self._runner.polling(promise.id),
                stuck=self._runner.is_stuck(promise.id),
                runnable=runnable.get(task.name or ""),
            )
            for promise, task in rows
            if task is not None and task.kind == "node"
        ]
        return run_status(root, root_task, nodes, self._runner.now())

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
        rows = await self._rows()
        steered = (task for _, task in rows if task is not None and task.kind is not None)
        return [task.id for task in steered if task.state != "fulfilled"]

    async def _result(self, root: Promise) -> Context:
        """Only what is not in the root is read: results that are large, and how tasks failed."""
        over = outcome.read_run(root)
        if over.status == "Failed":
            raise run_failed(root, rows_of(await self._rows(), self._runner.now()))
        if over.results is not None and over.elsewhere:
            kept = await asyncio.gather(*map(self._kept_result, over.elsewhere))
            over.results.encoded.update(zip(over.elsewhere, kept, strict=True))
        return over.result(self.id)

    async def _kept_result(self, task_id: str) -> bytes:
        reply = await self._runner.send(GetPromise(id=plan.node_id(self.id, task_id)))
        found = outcome.read(reply.data.promise) if isinstance(reply.data, PromiseData) else None
        if found is None or found.result is None:
            raise error_for(
                reply.status, f"the result of task '{task_id}' of run '{self.id}': {reply.data}"
            )
        return found.result

    async def _settled(
        self, within: float | None, not_yet: str = RUNNING, promise_id: str | None = None
    ) -> Promise:
        promise_id = promise_id or self.promise_id
        handle = maybe_handle()
        if handle is not None and self._runner.runs_here(handle.task_execution_id):
            return await handle.settled(promise_id, within)
        limit = asyncio.timeout(within)
        try:
            async with limit:
                reply = await self._runner.send(WatchPromise(id=promise_id))
        except TimeoutError:
            if not limit.expired():
                raise
            hint = await self._hint()
            raise TimeoutError(f"run '{self.id}' {not_yet.format(within=within)}: {hint}") from None
        if isinstance(reply.data, PromiseData):
            return reply.data.promise
        why = UNKNOWN if reply.status == 404 else f" cannot be watched: {reply.data}"
        raise error_for(reply.status, f"run '{self.id}'{why}")

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

    async def _hint(self) -> str:
        """What a caller whose patience is over should know: that nobody can go on with it."""
        lost: list[Explanation] = []
        with suppress(LaybyError, TimeoutError):  # the store may be what does not answer
            async with asyncio.timeout(HINT_S):
                explained = (await self._runnable(await self._rows())).values()
            lost = [each for each in explained if not each.able_workers]
        if not lost:
            return "wait again, or cancel it"
        reason = reason_of(lost[0], self._runner.now())
        return (
            f"{reason.subject} {reason.sentence}. Give its workflow to runner.register(), or start "
            "a worker that has it"
        )

    async def _rows(self) -> list[tuple[Promise, Task | None]]:
        ask, query = partial(self._runner.page, kind=RowPage), GetRun(id=self.promise_id)
        found = [row async for page in pages(ask, query) for row in page.rows]
        if not found:
            raise NotFound(f"run '{self.id}'{UNKNOWN}")
        return found
