"""For code without an event loop: scripts, notebooks, plain pytest functions."""

import asyncio
import builtins  # `list` is a method here, for mypy in annotations as well
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from zoneinfo import ZoneInfo

from layby.client.open_approvals import OpenApproval
from layby.core.model import Millis
from layby.core.replies import LimitStanding
from layby.core.schedule_row import Overlap
from layby.errors import UsageError
from layby.runner.run import Run
from layby.runner.runner import MEMORY_GRACE_S, Runner
from layby.runner.runner_options import RunnerOptions
from layby.runner.schedule import Schedule
from layby.runner.settling import Settlement
from layby.workflow.context import Context
from layby.workflow.duration_checks import Duration
from layby.workflow.next_life import Checkpoints, From
from layby.workflow.outcome import RunFilter
from layby.workflow.status import RunStatus
from layby.workflow.workflow import AnyTask, Workflow

T = TypeVar("T")
C = TypeVar("C")
"""The class of a workflow's context."""


def run(
    flow: Workflow[C],
    context: C | Mapping[str, Any] | None = None,
    *,
    address: str | None = None,
    **options: Unpack[RunnerOptions],
) -> Context:
    """Run a workflow and block until its result. Without an address nothing is kept afterwards."""

    async def execute(where: str) -> Context:
        async with Runner(where, **options) as runner:
            return await runner.execute(flow, context)

    _refuse_inside_a_loop()
    if address is not None:
        return asyncio.run(execute(address))
    options.setdefault("grace", MEMORY_GRACE_S)  # nothing is kept, so nobody resumes it
    with tempfile.TemporaryDirectory(prefix="layby-") as folder:
        return asyncio.run(execute(f"sqlite:{Path(folder) / 'layby.db'}"))


class BlockingRunner:
    """A Runner on an event loop in its own thread. The same methods, but they block."""

    def __init__(self, address: str = "sqlite:layby.db", **options: Unpack[RunnerOptions]) -> None:
        self._runner = Runner(address, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="layby", daemon=True)

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise UsageError("a BlockingRunner can be entered only once: create another one")
        self._thread.start()
        try:
            self.wait(self._runner.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.wait(self._runner.close())
        finally:
            self._stop()

    def start(
        self,
        flow: Workflow[C] | str,
        context: C | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: Duration | None = None,
        priority: int = 0,
    ) -> "BlockingRun":
        started = self._runner.start(
            flow, context, run_id=run_id, deadline=deadline, priority=priority
        )
        return BlockingRun(self, self.wait(started))

    def execute(
        self,
        flow: Workflow[C] | str,
        context: C | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: Duration | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
    ) -> Context:
        return self.wait(
            self._runner.execute(
                flow,
                context,
                run_id=run_id,
                deadline=deadline,
                priority=priority,
                timeout=timeout,
            )
        )

    def get(self, run_id: str) -> "BlockingRun":
        return BlockingRun(self, self.wait(self._runner.get(run_id)))

    def list(
        self, *, state: RunFilter | None = None, flow: str | None = None, limit: int = 100
    ) -> "builtins.list[BlockingRun]":
        found = self.wait(self._runner.list(state=state, flow=flow, limit=limit))
        return [BlockingRun(self, each) for each in found]

    def cancel(
        self, run_id: str, task: str | None = None, *, by: str = "", reason: str = ""
    ) -> Settlement:
        return self.wait(self._runner.cancel(run_id, task, by=by, reason=reason))

    def halt(self, run_id: str, task: str | None = None, *, by: str = "", reason: str = "") -> None:
        self.wait(self._runner.halt(run_id, task, by=by, reason=reason))

    def continue_(self, run_id: str, task: str | None = None, *, code: bool = False) -> None:
        self.wait(self._runner.continue_(run_id, task, code=code))

    def wake(
        self,
        run_id: str,
        task: str | None = None,
        value: Any = None,
        *,
        error: str | BaseException | None = None,
        by: str = "",
        reason: str = "",
        wait: str = "",
    ) -> None:
        self.wait(
            self._runner.wake(run_id, task, value, error=error, by=by, reason=reason, wait=wait)
        )

    def extend(
        self,
        run_id: str,
        task: str | None,
        timeout: Duration | None,
        *,
        by: str = "",
        reason: str = "",
        wait: str = "",
    ) -> None:
        self.wait(self._runner.extend(run_id, task, timeout, by=by, reason=reason, wait=wait))

    def schedule(
        self,
        flow: Workflow[C] | str,
        cron: str,
        *,
        id: str | None = None,  # noqa: A002 - the word users know from @task
        context: C | Mapping[str, Any] | None = None,
        timezone: str | ZoneInfo = "UTC",
        catch_up: bool = False,
        deadline: Duration | None = None,
        overlap: Overlap = "allow",
        replace: bool = False,
        priority: int = 0,
    ) -> "BlockingSchedule":
        made = self._runner.schedule(
            flow,
            cron,
            id=id,
            context=context,
            timezone=timezone,
            catch_up=catch_up,
            deadline=deadline,
            overlap=overlap,
            replace=replace,
            priority=priority,
        )
        return BlockingSchedule(self, self.wait(made))

    def schedules(self) -> "builtins.list[BlockingSchedule]":
        return [BlockingSchedule(self, each) for each in self.wait(self._runner.schedules())]

    def unschedule(self, schedule_id: str) -> None:
        self.wait(self._runner.unschedule(schedule_id))

    def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int = 1,
        count_parked: bool = False,
    ) -> LimitStanding:
        made = self._runner.limit(
            name, concurrency=concurrency, rate=rate, burst=burst, count_parked=count_parked
        )
        return self.wait(made)

    def limits(self) -> "builtins.list[LimitStanding]":
        return self.wait(self._runner.limits())

    def delete_limit(self, name: str) -> None:
        self.wait(self._runner.delete_limit(name))

    def resolve(self, promise_id: str, value: Any = None) -> Settlement:
        return self.wait(self._runner.resolve(promise_id, value))

    def reject(self, promise_id: str, error: str | BaseException) -> Settlement:
        return self.wait(self._runner.reject(promise_id, error))

    def approvals(self, limit: int = 100) -> "builtins.list[OpenApproval]":
        return self.wait(self._runner.approvals(limit))

    def approve(
        self, approval_id: str, value: Any = None, *, by: str = "", reason: str = ""
    ) -> Settlement:
        return self.wait(self._runner.approve(approval_id, value, by=by, reason=reason))

    def deny(self, approval_id: str, *, by: str = "", reason: str = "") -> Settlement:
        return self.wait(self._runner.deny(approval_id, by=by, reason=reason))

    @property
    def blocked_by(self) -> str | None:
        """What blocks the Runner's event loop now, in words; None while it goes on."""
        return self._runner.blocked_by

    def register(self, code: Workflow | AnyTask) -> None:
        async def register() -> None:
            self._runner.register(code)

        self.wait(register())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the runner's loop and block until it is done."""
        self._check_can_wait(coroutine)
        asked = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return asked.result()
        except BaseException:
            asked.cancel()  # interrupted: nobody waits for it any more
            raise

    def _check_can_wait(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        problem = ""
        if not self._thread.is_alive():
            problem = "this BlockingRunner is not open: use it inside `with BlockingRunner(...)`"
        elif threading.current_thread() is self._thread:
            problem = "a BlockingRunner cannot be used by code on its own loop: use `async def`"
        if problem:
            coroutine.close()
            raise UsageError(problem)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class BlockingRun:
    """A run, for code without an event loop."""

    def __init__(self, runner: BlockingRunner, inner: Run) -> None:
        self._runner = runner
        self._run = inner
        self.id = inner.id
        self.is_new = inner.is_new

    def result(self, timeout: Duration | None = None, *, life: int | None = None) -> Context:
        return self._runner.wait(self._run.result(timeout, life=life))

    def context(self, *, life: int | None = None) -> Context:
        return self._runner.wait(self._run.context(life=life))

    def cleaned_up(self, timeout: Duration | None = None) -> RunStatus:
        return self._runner.wait(self._run.cleaned_up(timeout))

    def status(self, *, life: int | None = None) -> RunStatus:
        return self._runner.wait(self._run.status(life=life))

    def rerun(
        self,
        from_: From | Sequence[From] | None = None,
        checkpoints: Checkpoints = "keep",
        deadline: Duration | None = None,
    ) -> Self:
        self._runner.wait(self._run.rerun(from_, checkpoints, deadline))
        return self

    def cancel(self, *, by: str = "", reason: str = "") -> Settlement:
        return self._runner.wait(self._run.cancel(by=by, reason=reason))

    def halt(self, *, by: str = "", reason: str = "") -> None:
        self._runner.wait(self._run.halt(by=by, reason=reason))

    def continue_(self, *, code: bool = False) -> None:
        self._runner.wait(self._run.continue_(code=code))

    def __repr__(self) -> str:
        return repr(self._run)


class BlockingSchedule:
    """A schedule, for code without an event loop."""

    def __init__(self, runner: BlockingRunner, inner: Schedule) -> None:
        self._runner = runner
        self._schedule = inner
        self.id = inner.id
        self.flow = inner.flow
        self.cron = inner.cron
        self.timezone = inner.timezone
        self.catch_up = inner.catch_up
        self.overlap = inner.overlap
        self.priority = inner.priority
        self.last_run_at = inner.last_run_at
        self.skipped = inner.skipped

    @property
    def next_run_at(self) -> Millis | None:
        return self._schedule.next_run_at

    @property
    def paused_at(self) -> Millis | None:
        return self._schedule.paused_at

    def runs(self, limit: int = 100) -> list[BlockingRun]:
        found = self._runner.wait(self._schedule.runs(limit))
        return [BlockingRun(self._runner, each) for each in found]

    def pause(self) -> None:
        self._runner.wait(self._schedule.pause())

    def unpause(self) -> None:
        self._runner.wait(self._schedule.unpause())

    def start_now(self) -> BlockingRun:
        return BlockingRun(self._runner, self._runner.wait(self._schedule.start_now()))

    def delete(self) -> None:
        self._runner.wait(self._schedule.delete())

    def __repr__(self) -> str:
        return repr(self._schedule)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("layby.run() blocks: inside async code use `await runner.execute(...)`")
