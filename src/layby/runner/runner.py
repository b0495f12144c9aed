"""A Runner: an engine on its store, a worker with slots, and the methods users call for runs."""

import asyncio
import builtins  # `list` is a method here, for mypy in annotations as well
import logging
import os
import random
import socket
import uuid
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from layby.client.made_beside import made_beside
from layby.client.open_approvals import OpenApproval, answer, open_approvals
from layby.client.paging import pages
from layby.client.request_ids import new_request_id
from layby.clock import virtual_clock
from layby.core.address import OWN_GROUP
from layby.core.commands import (
    Command,
    ContinueBlocked,
    ContinueTask,
    ExtendWait,
    HaltTask,
    ResolvePromise,
    Value,
    WakeTask,
)
from layby.core.model import Millis, PromiseState
from layby.core.queries import GetRun, ListRuns, Query, SearchSchedules
from layby.core.replies import LimitStanding, Reply, RowPage, SettlementData
from layby.core.schedule_row import Overlap
from layby.core.settings import Settings
from layby.delivery.routing import Router
from layby.engine.engine import Engine
from layby.engine.opening import check_address, is_file, is_url, path_of, shown
from layby.engine.switch_interval import SWITCH_INTERVAL_S
from layby.errors import (
    EngineStopped,
    LaybyError,
    RunnerClosed,
    TriggerError,
    UsageError,
    WorkflowError,
    error_for,
)
from layby.runner import schedule as scheduling
from layby.runner import steering_calls as steering
from layby.runner.child_runs import ChildRuns
from layby.runner.embedded import EmbeddedLink, open_engine
from layby.runner.flow_directory import FlowDirectory, publish
from layby.runner.limit_calls import delete_limit, list_limits, set_limit, wanted_limit
from layby.runner.private_socket import open_or_join
from layby.runner.retention import Retention
from layby.runner.run import Run
from layby.runner.runner_options import check_durability, check_group, check_retention
from layby.runner.schedule import Schedule
from layby.runner.settling import Settlement, settlement_of
from layby.runner.shared_database import SharedDatabaseLink
from layby.runner.starting import RunStarts, root_of
from layby.store.postgres_address import is_postgres
from layby.store.sqlite import Durability
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.wire import json_values
from layby.wire.durations import limit_of, millis_of, seconds_of, whole_number
from layby.worker.worker import Worker, WorkerConfig
from layby.worker.worker_stop import WorkerStop
from layby.workflow import plan
from layby.workflow.code_names import check_version
from layby.workflow.context import Context
from layby.workflow.duration_checks import Duration
from layby.workflow.flow_program import FlowProgram
from layby.workflow.names import check_run_id, check_text
from layby.workflow.outcome import ROOT_STATES, RunFilter
from layby.workflow.status import Polling
from layby.workflow.task import TaskDefinition
from layby.workflow.turn_checks import check_fits
from layby.workflow.workflow import AnyTask, Workflow

if TYPE_CHECKING:
    from layby.runner.remote import RemoteLink
    from layby.runner.trigger_host import TriggerHost

logger = logging.getLogger(__name__)

Page = TypeVar("Page")
C = TypeVar("C")
"""The class of a workflow's context."""
PAGE = 1_000
EMBEDDED_TTL_MS = 60_000
CONNECT_TIMEOUT_S = 5.0
GRACE_S = 25.0
"""Less than the 30 s that Kubernetes waits before it kills a process."""
MEMORY_GRACE_S = 1.0
"""Nothing is kept, so nobody could resume it."""

_LISTS: dict[type[Query], str] = {
    ListRuns: "the list of runs",
    SearchSchedules: "the list of schedules",
}


class Runner:
    """`async with Runner("sqlite:layby.db", slots=4) as runner: …`

    `slots` bodies run here at a time. With `slots=0` none does, and the store does not know of this
    process: it starts, reads, settles and schedules, and others do the work.

    While Runners are open the interpreter switches threads every `switch_interval` seconds, so
    that a busy body does not keep the writer's thread waiting; None leaves the setting alone.
    With `freeze_parked`, thousands of parked tasks are hidden from the garbage collector
    (`gc.freeze`), which would otherwise stop everything to traverse them.

    A process that opens a file owns it. Others that open it talk to the owner through a private
    socket beside the file, unless `socket` is False; when the owner ends, one of them takes over.

    With the `http://…` address of a server, `token` is for that server, and the tasks of this
    process go to others when the server has not heard from it for `lease` seconds. Opening gives
    up when the server has not answered for `connect_timeout` seconds (None: never); once it has
    answered, it may be away for longer, and this process waits for it.

    `close` ends `async` bodies and waits at most `grace` seconds for plain `def` and process
    bodies: 25 seconds by default, or 1 for `memory:`.

    `version` names the code of this process, for tasks that other code cannot go on with; by
    default each workflow has a digest of the source files that define its tasks.

    `retention` says how long ended runs are kept; by default no run is ever deleted. It counts in
    the process that owns the file; a server has a setting of its own.

    `trigger_access` says what FileExists, HttpPoll and SqlPoll may reach from this process. By
    default a Runner that has its store to itself (a file, or memory) may look for any file and ask
    any host; on a store that is shared it runs none of the three.
    """

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
        freeze_parked: bool = True,
        token: str | None = None,
        lease: Duration = 15.0,
        connect_timeout: Duration | None = CONNECT_TIMEOUT_S,
        socket: bool = True,
        grace: Duration | None = None,
        version: str | None = None,
        retention: Retention | None = None,
        trigger_access: TriggerAccess | None = None,
    ) -> None:
        self._address = check_address(address)
        self._shown = shown(address)
        self._durability: Durability = check_durability(durability)
        self._settings = Settings(
            max_crashes=whole_number(max_crashes, "max_crashes", 1),
            retention=check_retention(retention, self._address),
        )
        self._switch_interval = switch_interval
        self._token = token
        self._connect_timeout = limit_of(
            connect_timeout, "connect_timeout of a Runner", positive=True
        )
        self._version = None if version is None else check_version(version)
        self._socket = socket
        self._lease_ms = max(
            1, millis_of(seconds_of(lease, "lease of a Runner", finite=True, positive=True))
        )
        if grace is None:
            grace = MEMORY_GRACE_S if self._address == "memory:" else GRACE_S
        self._grace = float(seconds_of(grace, "grace of a Runner", finite=True))
        self._config = WorkerConfig(
            slots=whole_number(slots, "slots", 0),
            group=check_group(group),
            max_parked=whole_number(max_parked, "max_parked", 1),
            max_threads=whole_number(max_threads, "max_threads", 1),
            processes=max(1, min(slots, os.cpu_count() or 1)),
            freeze_parked=freeze_parked,
        )
        self._state: Literal["new", "open", "closing", "closed"] = "new"
        self._worker: Worker | None = None
        self._triggers: TriggerHost | None = None
        self._opening_triggers: asyncio.Task[None] | None = None
        self._trigger_access = trigger_access

    # --- opening and closing -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state == "open":
            raise UsageError(f"this Runner on {self._shown!r} is already open: use it as it is")
        self._loop = asyncio.get_running_loop()
        self._link = await self._open_link()
        self.client = self._link.client
        self._worker = None
        self._program = FlowProgram(self.client, random.random, self._version)
        self.directory = FlowDirectory(
            self.send,
            self._shown,
            self._config.group,
            self._link.elapsed,
            self._program.flows if self._config.slots else None,
        )
        try:
            await (self._start_worker() if self._config.slots else self._link.greet())
        except BaseException:
            await self._link.close()
            raise
        self._starts = RunStarts(self, self._worker, self._config.group)
        self._state = "open"
        return self

    async def _open_link(self) -> "EmbeddedLink | RemoteLink":
        if is_url(self._address):
            return _remote_link(self._address, self._token, self._connect_timeout)
        if is_postgres(self._address):
            return await self._open_database()
        if not is_file(self._address):
            return self._open_file()
        file = path_of(self._address)
        return await open_or_join(file, self._open_file, may_join=self._socket)

    def _open_file(self) -> EmbeddedLink:
        router = Router()
        engine = self._open_engine(router)
        return EmbeddedLink(
            self._address, engine, router, self._switch_interval, socket=self._socket
        )

    async def _open_database(self) -> SharedDatabaseLink:
        """It may be silent, or another process may migrate it, for minutes: others go on here."""
        if virtual_clock.get() is not None:
            raise UsageError(
                f"Runner({self._shown!r}): virtual time is this process's own, and a database "
                "has a time that others share: use 'memory:' or a file"
            )
        router = Router()
        engine = await made_beside(partial(self._open_engine, router), Engine.leave)
        return SharedDatabaseLink(
            self._address, engine, router, self._switch_interval, socket=False
        )

    def _open_engine(self, router: Router) -> Engine:
        return open_engine(self._address, self._durability, self._settings, router)

    async def _start_worker(self) -> None:
        """A new holder each time: one that has left cannot come back."""
        self._config = replace(
            self._config,
            pid=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            incarnation=uuid.uuid4().hex,
            embedded=self._link.is_embedded,
            ttl=EMBEDDED_TTL_MS if self._link.is_embedded else self._lease_ms,
        )
        program = self._program
        worker = Worker(self.client, program, self._config, self.now, self._link.elapsed)
        self._worker = worker
        worker.starter = ChildRuns(self, self._found, self._config.group)
        await self._link.join(worker)
        reconnect = worker.on_new_incarnation

        def start_over() -> None:
            reconnect()
            publish(worker, program.flows.values())

        worker.on_new_incarnation = start_over
        self._opening_triggers = self._loop.create_task(self._open_triggers())
        if virtual_clock.get() is not None:
            await self._opening_triggers  # where nothing happens beside

    async def _open_triggers(self) -> None:
        """Beside the first task, and after the socket that other processes may wait for."""
        await self._link.opened()
        if virtual_clock.get() is None:  # loaded beside the event loop, which goes on meanwhile
            await asyncio.to_thread(import_module, "layby.runner.trigger_host")
        from layby.runner.trigger_host import TriggerHost  # noqa: PLC0415 - see above

        self._triggers = TriggerHost(self._link, self._config, self._trigger_access)
        try:
            await self._triggers.open()
        except (LaybyError, TimeoutError) as failure:
            logger.error("this process runs no triggers: %s", failure)  # noqa: TRY400 - it says why

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hand tasks back as their bodies end, write what is queued, close the store.

        Closing twice is harmless. Cancelling it only ends what it waits for just then.
        """
        if self._state != "open":
            return
        self._state = "closing"
        try:
            await self._stop_working()
        finally:
            self._state = "closed"
            await self._link.close()

    async def _stop_working(self) -> None:
        try:
            await self._close_triggers()
        finally:
            if self._worker is not None:
                await self._worker.stop(self._grace)

    async def _close_triggers(self) -> None:
        """Nothing is waited for if nothing has begun: the worker is to leave at once."""
        opening = self._opening_triggers
        if opening is not None:
            opening.cancel()
        if self._triggers is not None and opening is not None:
            try:
                await asyncio.wait([opening])
            finally:
                await self._triggers.close()

    @property
    def worker(self) -> Worker:
        """What runs bodies here."""
        if self._worker is None:
            told = (
                f"this Runner on {self._shown!r} has no slots, so it has no worker: give it slots="
            )
            raise UsageError(told)
        return self._worker

    @property
    def stopping(self) -> WorkerStop | None:
        """What closing waits for, while it does."""
        return None if self._worker is None else self._worker.stopping

    @property
    def engine(self) -> Engine:
        if not isinstance(self._link, EmbeddedLink):
            told = f"the engine of {self._shown!r} runs in another process: ask it by runner.client"
            raise UsageError(told)
        return self._link.engine

    def now(self) -> Millis:
        return self._link.now()

    # --- runs ----------------------------------------------------------------------------

    async def start(
        self,
        flow: Workflow[C] | str,
        context: C | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: Duration | None = None,
        priority: int = 0,
    ) -> Run:
        """Start a run and return at once. The same id is the same run, even after a restart.

        An existing run needs no context, and keeps the one it began with.
        A workflow may be given by its name, if it is registered here or a worker has published it.
        Of tasks that are ready, those of runs of higher `priority` begin first; what a task has of
        its own is added.
        """
        known = await self._found(flow)
        return await self._starts.start(known, context, run_id, deadline, priority)

    async def execute(
        self,
        flow: Workflow[C] | str,
        context: C | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        deadline: Duration | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - how long the caller waits
    ) -> Context:
        """Start and wait for the result."""
        run = await self.start(flow, context, run_id=run_id, deadline=deadline, priority=priority)
        return await run.result(timeout)

    def register(self, code: Workflow | AnyTask) -> None:
        """Add a workflow, to resume runs started earlier, or a task, to serve calls.

        Tasks of a workflow that have an `rpc` name serve calls as well.
        """
        if not isinstance(code, TaskDefinition):
            self._register_flow(code)
            return
        self._check_open()
        self._check_works()
        if self._program.register_function(check_can_serve(code, self._config.group)):
            self.worker.code_changed()

    def _register_flow(self, flow: Workflow) -> None:
        self._check_open()
        _check_is_workflow(flow)
        self._check_works()
        for definition in flow.tasks.values():
            if definition.rpc is not None:
                check_can_serve(definition, self._config.group)
        check_fits(flow, self._config.slots, self._config.group)
        if self._program.register(flow):
            self.worker.code_changed()
            if self._address != "memory:":  # which nobody else can see
                publish(self.worker, [flow])

    def _check_works(self) -> None:
        if not self._config.slots:
            raise UsageError(
                f"this Runner on {self._shown!r} has no slots: it starts runs, and runs none; "
                "register the code with a worker, or give slots="
            )

    async def _found(self, flow: Workflow | str) -> "Workflow | plan.Layout":
        """The workflow itself, registered if bodies run here; or what its name stands for."""
        self._check_open()
        if isinstance(flow, str):
            here = self._program.flows.get(flow)
            return await self.directory.find(flow) if here is None else here
        if self._config.slots:
            self._register_flow(flow)
        else:
            _check_is_workflow(flow)
        return flow

    async def get(self, run_id: str) -> Run:
        """The run with this id, which must exist."""
        await root_of(self, check_run_id(run_id))
        return Run(self, run_id)

    async def list(
        self, *, state: RunFilter | None = None, flow: str | None = None, limit: int = 100
    ) -> "builtins.list[Run]":
        """Runs by id, at most `limit`."""
        whole_number(limit, "limit", 1)
        if flow is not None:
            check_text(flow, "workflow")
        states: tuple[PromiseState | None, ...] = (None,) if state is None else _states(state)
        found = [each for wanted in states for each in await self._listed(wanted, flow, limit)]
        return [Run(self, run_id) for run_id in sorted(found)[:limit]]

    async def cancel(
        self, run_id: str, task: str | None = None, *, by: str = "", reason: str = ""
    ) -> Settlement:
        """Cancel a run or one of its tasks at once, whether running, parked or pending.

        The answer is true if this call did it; what has settled before stays as it is.
        """
        return await steering.cancel(self, run_id, task, by=by, reason=reason)

    async def halt(
        self, run_id: str, task: str | None = None, *, by: str = "", reason: str = ""
    ) -> None:
        """Stop a task (or every unsettled task of a run) until somebody continues it."""
        await steering.steer(self, run_id, task, partial(HaltTask, by=by, reason=reason))

    async def continue_(self, run_id: str, task: str | None = None, *, code: bool = False) -> None:
        """Continue a halted task (or every halted task of a run); Conflict if it is only blocked.

        With `code`, instead, tasks that are blocked because the code did not fit are offered to
        all workers again, and a pinned run is no longer pinned.
        """
        await steering.steer(self, run_id, task, ContinueBlocked if code else ContinueTask)

    async def wake(
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
        """End the wait of a task now: as if its trigger had fired with this value, its sleep were
        over, or its condition met. One that backs off after a failure is tried again.

        Without `task`, the only one of the run that waits. `wait`: which wait, by the `record_id`
        of what it is `waiting_on`, or of one of its `members`; Conflict if that is over.

        With `error` the wait fails: `TriggerError`, `PromiseRejected` or `ConditionError`. A
        promise that others may wait for as well is not settled by this. Conflict if the task does
        not wait, goes on already, or waits for something that has to be settled.
        """
        if error is not None and value is not None:
            raise UsageError("wake: give a value or an error, not both")
        if error is None:
            what = f"the payload for '{task or run_id}'"
            state, given = "resolved", json_values.to_value(value, what)
        else:
            raised = error if isinstance(error, BaseException) else TriggerError(error)
            state, given = "rejected", json_values.error_value(raised)
        exit_ = partial(WakeTask, state=state, value=given, by=by, reason=reason)
        await steering.end_wait(self, run_id, task, wait, exit_)

    async def extend(
        self,
        run_id: str,
        task: str | None,
        timeout: Duration | None,  # noqa: ASYNC109 - how long the task may wait
        *,
        by: str = "",
        reason: str = "",
        wait: str = "",
    ) -> None:
        """Move the deadline of a task's wait, or the end of its sleep: so long from now; None:
        never. `task` and `wait`: which, as for `wake`.
        """
        given = "timeout of extend()"
        length = None if timeout is None else millis_of(seconds_of(timeout, given))
        exit_ = partial(ExtendWait, timeout=length, by=by, reason=reason)
        await steering.end_wait(self, run_id, task, wait, exit_)

    async def schedule(
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
    ) -> Schedule:
        """Start a run at every occurrence of the cron rule, read in this time zone.

        Each run has the id `<id>-<milliseconds of its occurrence>`. The id is the workflow's name
        unless given; the same id is the same schedule, even after a restart. `deadline` counts
        from the occurrence. Of the occurrences missed while nothing was running, only the latest
        gets a run; with `catch_up` all of them do.

        An occurrence that comes while an earlier run has not ended gets its run all the same, or
        none (`overlap="skip"`), or one that waits for the earlier (`overlap="queue_one"`): if one
        waits already, it gets none.

        A different schedule of the same id is refused, unless `replace` says that this one takes
        its place: then only what starts from now on is different.
        """
        found = await self._found(flow)
        command = scheduling.command_for(
            found,
            cron,
            self._config.group,
            schedule_id=id,
            context=context,
            timezone=timezone,
            catch_up=catch_up,
            deadline=deadline,
            overlap=overlap,
            replace=replace,
            priority=priority,
        )
        return await scheduling.create(self, command)

    async def schedules(self) -> "builtins.list[Schedule]":
        """Every schedule of a workflow, by id."""
        return await scheduling.list_all(self)

    async def unschedule(self, schedule_id: str) -> None:
        """Delete a schedule. Runs it has started continue."""
        await scheduling.delete(self, schedule_id)

    async def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int = 1,
        count_parked: bool = False,
    ) -> LimitStanding:
        """Define a limit, or change it: it counts at once, on all machines.

        At most `concurrency` tasks with `@task(limit=name)` run at once, and `rate` of them begin
        in a time ("10/min"), `burst` of those at once. A task that waits in memory does not count,
        unless `count_parked` is true. Nobody who runs is stopped. A name that ends in `*` counts
        for every limit that begins so and is not defined itself.
        """
        command = wanted_limit(name, concurrency, rate, burst, count_parked=count_parked)
        self._check_open()
        return await set_limit(self.client, command)

    async def limits(self) -> "builtins.list[LimitStanding]":
        """Every limit that is defined or in use, by name."""
        self._check_open()
        return await list_limits(self.client)

    async def delete_limit(self, name: str) -> None:
        """Forget the numbers of a limit: tasks that name it wait until it is defined again."""
        self._check_open()
        await delete_limit(self.client, name)

    async def resolve(self, promise_id: str, value: Any = None) -> Settlement:
        """Settle a promise; one that does not exist yet is created settled.

        The answer is true if this call settled it. Otherwise it says what stands: the first
        outcome of a promise is the only one.
        """
        encoded = json_values.to_value(value, f"the value of promise '{promise_id}'")
        return await self._settle(promise_id, encoded, "resolved")

    async def reject(self, promise_id: str, error: str | BaseException) -> Settlement:
        """Settle a promise with an error, which is raised where somebody waits for it."""
        raised = error if isinstance(error, BaseException) else Exception(error)
        return await self._settle(promise_id, json_values.error_value(raised), "rejected")

    async def approvals(self, limit: int = 100) -> "builtins.list[OpenApproval]":
        """Questions of tasks that nobody has answered yet, by id, at most `limit`."""
        self._check_open()
        return await open_approvals(self.client, whole_number(limit, "limit", 1))

    async def approve(
        self, approval_id: str, value: Any = None, *, by: str = "", reason: str = ""
    ) -> Settlement:
        """Say yes, with a value that fits if the question wants one.

        The answer is true if this call settled it; the first answer is the only one.
        """
        return await self._answer(approval_id, value, by, reason, approved=True)

    async def deny(self, approval_id: str, *, by: str = "", reason: str = "") -> Settlement:
        """Say no."""
        return await self._answer(approval_id, None, by, reason, approved=False)

    async def _answer(
        self, approval_id: str, value: Any, by: str, reason: str, *, approved: bool
    ) -> Settlement:
        self._check_open()
        check_text(approval_id, "approval id")
        given = await answer(
            self.client, approval_id, approved=approved, value=value, by=by, reason=reason
        )
        return settlement_of(given)

    def polling(self, task_execution_id: str) -> Polling | None:
        """What only this process knows about a parked task."""
        held = None if self._worker is None else self._worker.attempts.get(task_execution_id)
        poll = None if held is None else held.poll
        if poll is None:
            return None if self._triggers is None else self._triggers.polling(task_execution_id)
        now = self.now()
        return Polling(
            poll.polls,
            _to_millis(poll.next_poll_at, self._loop, now),
            poll.last_error,
            _to_millis(poll.asked_at, self._loop, now),
        )

    def is_stuck(self, task_execution_id: str) -> bool:
        """Whether one of its bodies is still running in this process though the task has ended."""
        return self._worker is not None and task_execution_id in self._worker.stuck

    def runs_here(self, task_execution_id: str | None) -> bool:
        """Whether its body, running or parked, is in this process."""
        return self._worker is not None and task_execution_id in self._worker.attempts

    @property
    def blocked_by(self) -> str | None:
        """What blocks this Runner's event loop now, in words; None while it goes on.

        May be read in any thread: on the loop itself nothing can be asked while it is blocked.
        """
        return None if self._worker is None else self._worker.blocked_by

    async def send(self, request: Command | Query) -> Reply:
        """Send a request to the engine; refusals are replies."""
        self._check_open()
        try:
            return await self.client.send(request)
        except EngineStopped:
            raise RunnerClosed(
                f"the Runner on {self._shown!r} was closed before this was answered: "
                "open another one and ask again; runs continue where they stopped"
            ) from None

    async def page(self, query: Query, kind: type[Page]) -> Page:
        """The page a query finds; raises for a refusal."""
        reply = await self.send(query)
        if not isinstance(reply.data, kind):
            raise error_for(reply.status, f"{_words_for(query)} cannot be read: {reply.data}")
        return reply.data

    # --- internals -----------------------------------------------------------------------

    async def _listed(
        self, state: PromiseState | None, flow: str | None, limit: int
    ) -> "builtins.list[str]":
        found: list[str] = []
        query = ListRuns(state=state, name=flow, limit=min(limit, PAGE))
        async for page in pages(partial(self.page, kind=RowPage), query):
            ids = (plan.parse_root_id(promise.id) for promise, _ in page.rows)
            found += [run_id for run_id in ids if run_id is not None]
            if len(found) >= limit:
                break
        return found

    async def _settle(self, promise_id: str, value: Value, state: PromiseState) -> Settlement:
        """`Runner.send` repeats nothing: a copy that the link sends again has the same id."""
        settle = ResolvePromise(
            id=check_text(promise_id, "promise id"),
            value=value,
            state=state,
            settlement_id=new_request_id(),
        )
        reply = await self.send(settle)
        if not isinstance(reply.data, SettlementData):
            text = f"promise '{promise_id}': {reply.data}"
            raise error_for(reply.status, text, remedy=_remedy(reply))
        return settlement_of(reply.data)

    def _check_open(self) -> None:
        if self._state == "closed":
            raise RunnerClosed(f"this Runner on {self._shown!r} is closed: open another one")
        if self._state == "new":
            raise UsageError("this Runner is not open: use it inside `async with Runner(...)`")


def _remote_link(url: str, token: str | None, connect_timeout: float | None) -> "RemoteLink":
    from layby.runner.remote import RemoteLink  # noqa: PLC0415 - an HTTP client is slow to load

    return RemoteLink(url, token, connect_timeout)


def _check_is_workflow(flow: object) -> None:
    if not isinstance(flow, Workflow):
        raise WorkflowError(
            f"{flow!r} is not a Workflow: write Workflow('name', tasks=[...]) and start that"
        )


def check_can_serve(definition: AnyTask, group: str) -> AnyTask:
    """Raise unless the task can serve calls in this group."""
    if definition.rpc is None:
        raise UsageError(
            f"task '{definition.id}' does not serve calls: write @task(rpc='name'), "
            "or put it into a Workflow"
        )
    if group.startswith(OWN_GROUP):
        raise UsageError(
            f"task '{definition.id}' cannot serve calls in group '{group}': groups whose names "
            f"begin with '{OWN_GROUP}' are for runs; give the Runner another group="
        )
    return definition


def _words_for(query: Query) -> str:
    if isinstance(query, GetRun):
        return f"run '{plan.run_id_of(query.id)}'"
    return _LISTS.get(type(query), query.kind)


def _remedy(reply: Reply) -> str | None:
    return ": check the id, or start it first" if reply.status == 404 else None


def _states(state: RunFilter) -> tuple[PromiseState, ...]:
    if state not in ROOT_STATES:
        names = ", ".join(get_args(RunFilter))
        raise UsageError(f"runs cannot be listed by state {state!r}; it is one of {names}")
    return ROOT_STATES[state]


def _to_millis(
    loop_time: float | None, loop: asyncio.AbstractEventLoop, now: Millis
) -> Millis | None:
    return None if loop_time is None else now + round((loop_time - loop.time()) * 1000)
