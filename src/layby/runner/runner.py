"""A Runner: an engine on its store, a worker with slots, and the verbs users have for runs."""

import asyncio
import os
import random
import socket
import sys
import uuid
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from layby.client.local import LocalClient
from layby.core.address import inbox_of
from layby.core.commands import (
    CancelPromise,
    Command,
    ContinueTask,
    GetPromise,
    HaltTask,
    ListRuns,
    ResolvePromise,
)
from layby.core.model import NEVER, Millis, Promise, PromiseState
from layby.core.replies import PromiseData, Reply, RowPage, RunData
from layby.core.rows import Settings
from layby.engine.clock import SystemClock, virtual_clock
from layby.engine.engine import Engine
from layby.engine.outbox import Inboxes, Outgoing
from layby.errors import UsageError
from layby.runner.opening import open_store
from layby.runner.run import Run
from layby.store.sqlite import Durability
from layby.worker.values import to_value
from layby.worker.worker import Worker, WorkerConfig
from layby.workflow import encoding, plan
from layby.workflow.context import Context
from layby.workflow.names import check_run_id
from layby.workflow.program import FlowProgram
from layby.workflow.status import Polling
from layby.workflow.workflow import Workflow

SWITCH_INTERVAL_S = 0.0005
"""The writer's thread must get the interpreter soon, whatever user code computes."""


class Runner:
    """`async with Runner("sqlite:layby.db", slots=4) as runner: …`"""

    def __init__(
        self,
        address: str = "sqlite:layby.db",
        *,
        slots: int = 4,
        group: str = "default",
        max_parked: int = 250_000,
        max_threads: int = 32,
        durability: Durability = "full",
        max_crashes: int = 5,
        switch_interval: float | None = SWITCH_INTERVAL_S,
    ) -> None:
        self._address = address
        self._durability: Durability = durability
        self._settings = Settings(max_crashes=max_crashes)
        self._switch_interval = switch_interval
        self._config = WorkerConfig(
            slots=slots,
            group=group,
            pid=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            incarnation=uuid.uuid4().hex,
            max_parked=max_parked,
            max_threads=max_threads,
            processes=min(slots, os.cpu_count() or 1),
        )
        self._open = False

    # --- life ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        clock = virtual_clock.get()
        self._inboxes = Inboxes()
        store = open_store(self._address, self._durability, self._settings)
        self.engine = Engine(store, clock or SystemClock(), self._inboxes)
        self._loop = asyncio.get_running_loop()
        if clock is None:
            self.engine.start()
            if self._switch_interval is not None:
                sys.setswitchinterval(self._switch_interval)
        else:
            self.engine.start_inline()
        self.client = LocalClient(self.engine)
        self._program = FlowProgram(self.client, random.random)
        self.worker = Worker(self.client, self._program, self._config, self.now)
        self._inboxes.open(inbox_of(self._config.group, self._config.pid), self._hear)
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hand running tasks back, write what is queued, close the store."""
        if not self._open:
            return
        self._open = False
        await self.worker.stop()
        await self.client.close()
        if self.engine.is_inline:
            self.engine.stop()
        else:
            await self._loop.run_in_executor(None, self.engine.stop)

    def now(self) -> Millis:
        return self.engine.clock.now()

    # --- runs ----------------------------------------------------------------------------

    async def start(
        self,
        flow: Workflow,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: float | timedelta | None = None,
    ) -> Run:
        """Start a run and return at once. The same id is the same run, also after a restart."""
        self._check_open()
        self.register(flow)
        run_id = uuid.uuid4().hex if run_id is None else check_run_id(run_id)
        command = plan.plan(flow, run_id, context, self._config.group, self._until(deadline))
        reply = await self.worker.start_run(command)
        if not isinstance(reply.data, RunData):
            raise UsageError(f"run '{run_id}' cannot be started: {reply.data}")
        return Run(self, run_id)

    async def execute(
        self,
        flow: Workflow,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: float | timedelta | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - how long the caller waits
    ) -> Context:
        """Start and wait for the result."""
        run = await self.start(flow, context, run_id=run_id, deadline=deadline)
        return await run.result(timeout)

    def register(self, flow: Workflow) -> None:
        """Give this Runner a workflow's code, so that it takes tasks of runs started before."""
        self._check_open()
        if self._program.register(flow):
            self.worker.code_changed()

    async def get(self, run_id: str) -> Run:
        promise_id = plan.root_id(check_run_id(run_id))
        await self._promise(GetPromise(id=promise_id), f"run '{run_id}'")
        return Run(self, run_id)

    async def list(
        self, *, state: PromiseState | None = None, flow: str | None = None, limit: int = 100
    ) -> "list[Run]":
        """Runs by id, at most `limit`."""
        reply = await self._send(ListRuns(state=state, name=flow, limit=limit))
        assert isinstance(reply.data, RowPage)
        ids = (plan.parse_root_id(promise.id) for promise, _ in reply.data.rows)
        return [Run(self, run_id) for run_id in ids if run_id is not None]

    async def cancel(
        self, run_id: str, task: str | None = None, *, by: str = "", reason: str = ""
    ) -> None:
        """Cancel a run, or one task of it: running, parked or pending, at once."""
        cancel = CancelPromise(id=_id(run_id, task), by=by, reason=reason)
        await self._promise(cancel, _called(run_id, task))

    async def halt(self, run_id: str, task: str | None = None) -> None:
        """Stop a task (or every unsettled task of a run) until somebody continues it."""
        for promise_id in await self._unsettled(run_id, task):
            await self._send(HaltTask(id=promise_id))

    async def continue_(self, run_id: str, task: str | None = None) -> None:
        for promise_id in await self._unsettled(run_id, task):
            await self._send(ContinueTask(id=promise_id))

    async def resolve(self, promise_id: str, value: Any = None) -> None:
        """Settle a promise; one nobody has waited for yet comes into being settled."""
        resolve = ResolvePromise(id=promise_id, value=to_value(value))
        await self._promise(resolve, f"promise '{promise_id}'")

    async def reject(self, promise_id: str, error: str | BaseException) -> None:
        told = error if isinstance(error, BaseException) else Exception(error)
        value = encoding.error_value(told)
        reject = ResolvePromise(id=promise_id, value=value, state="rejected")
        await self._promise(reject, f"promise '{promise_id}'")

    def polling(self, task_execution_id: str) -> Polling | None:
        """What only this process knows of a parked task."""
        attempt = self.worker.attempts.get(task_execution_id)
        poll = None if attempt is None else attempt.poll
        if poll is None:
            return None
        return Polling(
            poll.polls, _millis(poll.next_poll_at, self._loop, self.now()), poll.last_error
        )

    # --- inside --------------------------------------------------------------------------

    def _hear(self, outgoing: Outgoing) -> None:
        """A message for this worker, on the writer's thread: a task is no longer ours."""
        message = outgoing.message
        self._loop.call_soon_threadsafe(self.worker.lost, message.id, message.version)

    async def _unsettled(self, run_id: str, task: str | None) -> "list[str]":
        if task is not None:
            return [plan.node_id(run_id, task)]
        status = await (await self.get(run_id)).status()
        open_tasks = [each for each in status.tasks.values() if each.settled_at is None]
        return [plan.root_id(run_id), *(each.task_execution_id for each in open_tasks)]

    async def _promise(self, command: Command, what: str) -> Promise:
        reply = await self._send(command)
        if not isinstance(reply.data, PromiseData):
            raise UsageError(f"{what}: {reply.data}")
        return reply.data.promise

    async def _send(self, command: Any) -> Reply:
        self._check_open()
        return await self.client.send(command)

    def _until(self, deadline: float | timedelta | None) -> Millis:
        if deadline is None:
            return NEVER
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        if seconds <= 0:
            raise UsageError(f"deadline must be positive, got {deadline!r}")
        return self.now() + round(seconds * 1000)

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("this Runner is not open: use it inside `async with Runner(...)`")


def _id(run_id: str, task: str | None) -> str:
    check_run_id(run_id)
    return plan.root_id(run_id) if task is None else plan.node_id(run_id, task)


def _called(run_id: str, task: str | None) -> str:
    return f"run '{run_id}'" if task is None else f"task '{task}' of run '{run_id}'"


def _millis(loop_time: float | None, loop: asyncio.AbstractEventLoop, now: Millis) -> Millis | None:
    return None if loop_time is None else now + round((loop_time - loop.time()) * 1000)
