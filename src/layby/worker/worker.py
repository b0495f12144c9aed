"""Takes by credit, runs bodies through the executor, reports how they end.

The pipeline of one claim: take → load → run → classify → report. Credit is the number of slots
that nothing claims: free ones, less the tasks that stand in line, are being loaded, or are asked
for by a report under way. One take always waits in the engine; when credit changes a new one
replaces it. A report may take one task as well, but only into room that no take has been offered,
so that the worker does not hold more tasks than it can run. (Only who starts a run may meet a
task that became ready in the same moment; that one then stands in line.)
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from layby.client.api import Client
from layby.core.commands import (
    FailTask,
    FinishTask,
    HeartbeatWorker,
    LeaveWorker,
    Released,
    ReleaseTasks,
    StartRun,
    Take,
    TaskVersion,
    Value,
)
from layby.core.model import Millis, Task
from layby.core.replies import (
    Claim,
    FailData,
    FinishData,
    Reply,
    RunData,
    TakeData,
)
from layby.errors import EngineStopped, StoreError, TaskTimeout, UsageError
from layby.executors import (
    AsyncTaskExecutor,
    HealthEvent,
    HealthEventSink,
    SlotPool,
    TaskCompletion,
    TaskExecutorConfig,
)
from layby.worker.attempt import Attempt
from layby.worker.bodies import Bodies
from layby.worker.callbacks import Callback, Callbacks
from layby.worker.calls import Calls
from layby.worker.encoding import error_text, error_value
from layby.worker.offers import Offers
from layby.worker.patience import patiently, pauses
from layby.worker.program import Program, Verdict
from layby.worker.records import recall
from layby.worker.sight import Sight
from layby.worker.wheel import Wheel

logger = logging.getLogger(__name__)

FOREVER_MS = 3_600_000
WAIT_MS = 30_000
"""How long a take waits at a server: what lies in between may lose the answer, and say nothing."""
LEAVE_S = 3.0
"""How long a worker that stops tries to hand its tasks back; later they are taken over anyway."""
REFUSED_S = 5.0
"""How long a worker that is refused waits before it asks for tasks again."""
UNACCEPTABLE = (400, 413)
"""Refusals of what was said, not of who says it or when."""
TURNS_TO_ASK = 3
"""Turns of the loop from a change of credit until the take that offers it has left."""


class WorkerConfig(Struct, frozen=True):
    slots: int = 4
    group: str = "default"
    pid: str = ""
    incarnation: str = ""
    embedded: bool = True
    ttl: Millis = 60_000
    max_parked: int = 250_000
    max_threads: int = 32
    processes: int = 2
    freeze_parked: bool = True
    """Whether parked tasks are taken out of the garbage collector's sight (`gc.freeze`)."""


class Worker:
    def __init__(
        self,
        client: Client,
        program: Program,
        config: WorkerConfig,
        now: Callable[[], Millis],
    ) -> None:
        self.client = client
        self.now = now
        self.config = config
        self.pool = SlotPool(config.slots)
        self.health = HealthEventSink()
        self.attempts: dict[str, Attempt] = {}
        self._program = program
        self._wheel = Wheel()
        self._sight = Sight(is_on=config.freeze_parked)
        self._bodies = Bodies(self._wheel, config.max_threads, config.processes, self.give_up)
        # Its own pool is its share; whatever is claimed is admitted, since credit bounds it.
        limits = TaskExecutorConfig(max_inflight=config.slots, queue_capacity=2**31)
        self._executor = AsyncTaskExecutor(
            limits, pool=self.pool, on_discard=self._discarded, keep_completions=False
        )
        self._on_completed = self._completed
        self._run_body = self._bodies.run
        """Bound once: a bound method for each parked task would be 64 bytes more."""
        self._context = copy_context()
        """What bodies start in: nothing that one of them sets reaches another."""
        self.incarnation = config.incarnation
        self.registered_as = ""
        """The incarnation that the store is known to know."""
        self.on_new_incarnation: Callable[[], None] = lambda: None
        """For whoever has told the store who this worker is."""
        self._by_number: dict[int, Attempt] = {}
        self._arriving: dict[str, int] = {}
        self.holds: dict[str, int] = {}
        """Versions of the tasks it has been given and not given back, as far as it knows."""
        self._stuck: dict[int, str] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._callbacks = Callbacks()
        self._loading = 0
        self._riding = 0
        self._offers = Offers(self._patiently, self._answered, self.spawn)
        self._asking = False
        self._stopping = False
        self._was_full = False
        self.calls = Calls(self, program, config.pid, config.ttl, beats=config.embedded)

    # --- life ----------------------------------------------------------------------------

    def start(self) -> None:
        self.credit_changed()

    async def stop(self, grace: float = 1.0) -> None:
        """Hand every task back at once; bodies get `grace` seconds to clean up."""
        self._stopping = True
        leased = self.calls.close()
        await asyncio.sleep(0)  # reports of bodies that have just ended leave first
        for attempt in list(self.attempts.values()):
            attempt.end("shutdown")
        await self._leave(leased)
        await asyncio.gather(self._executor.shutdown(timeout=grace), self._callbacks.finish(grace))
        self._wheel.close()
        self._bodies.close()
        self._sight.close()
        for task in list(self._background):
            task.cancel()

    async def _leave(self, leased: Sequence[TaskVersion]) -> None:
        leave = LeaveWorker(pid=self.config.pid, incarnation=self.incarnation)
        try:
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(self.client.send(leave), self.calls.release(leased))
        except (EngineStopped, StoreError, TimeoutError) as failure:
            why = str(failure) or "the store does not answer"
            logger.warning("the worker could not hand its tasks back: %s", why)

    def lost(self, task_id: str, version: int) -> None:
        """A task was taken away: cancelled, halted, timed out or settled by somebody else."""
        attempt = self.attempts.get(task_id)
        self._holds_no_more(task_id, version)
        if attempt is not None and attempt.version == version:
            attempt.end("lost")
        elif self._arriving.get(task_id) == version:
            del self._arriving[task_id]
            self._let_go(task_id, version)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def running(self) -> "list[str]":
        """Tasks whose bodies hold a slot now. May be asked from any thread."""
        return [each.id for each in list(self.attempts.values()) if not each.is_parked]

    @property
    def stuck(self) -> tuple[str, ...]:
        """Tasks that are over but whose bodies go on: each keeps its slot until it ends."""
        return tuple(self._stuck.values())

    @property
    def threads(self) -> int:
        """How many plain `def` bodies have a thread now, those that wait in it too."""
        return self._bodies.threads

    # --- credit --------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        return max(0, self._room())

    def _room(self) -> int:
        """Slots that nothing claims; below 0 while more stand in line than there are."""
        if self._stopping or self.why_not_park() is not None:
            return 0
        claimed = self.pool.held + self.pool.waiting + self._loading + self._riding
        return self.config.slots - claimed

    def why_not_park(self) -> str | None:
        """Why no task may be parked or taken now; None when one may."""
        is_full = self._executor.parked_count >= self.config.max_parked
        if not is_full:
            self._was_full = False
            return None
        reason = f"{self.config.max_parked} tasks are parked (max_parked), so it keeps its slot"
        if not self._was_full:
            self._was_full = True
            self._tell_health("parked_limit", "no new task is taken: max_parked is reached")
        return reason

    def credit_changed(self) -> None:
        """Look once for all that happens in a turn of the loop, after its reports have left."""
        if not self._asking and not self._stopping:
            self._asking = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._ask)

    def ride(self, slots: int) -> None:
        """Claim slots for calls that are being acquired, or give them back."""
        if slots:
            self._riding += slots
            self.credit_changed()

    async def is_slot_left(self) -> bool:
        """Whether there is a slot for what rides, once no take has been offered it as well."""
        await self._offers.at_most(self._room)
        return self._room() >= 0 and not self._stopping

    def code_changed(self) -> None:
        """The program knows more names now: ask for those too."""
        self.calls.code_changed()
        self.credit_changed()

    def take(self, free: int, wait_ms: int = 0) -> Take:
        config = self.config
        return Take(
            pid=config.pid,
            incarnation=self.incarnation,
            group=config.group,
            names=self._program.names,
            free=free,
            ttl=config.ttl,
            embedded=config.embedded,
            wait_ms=wait_ms,
        )

    def registration(self) -> Take:
        """Takes nothing: makes this worker a holder, or renews its lease."""
        return replace(self.take(0), names=())

    def heartbeat(self) -> HeartbeatWorker:
        """May be asked for from any thread."""
        return HeartbeatWorker(
            pid=self.config.pid, incarnation=self.incarnation, held=len(self.holds)
        )

    def _ask(self) -> None:
        """Give calls that wait here their share of the room, and offer the rest.

        While more calls wait, what there is for tasks of runs is asked for at once: a take that
        stands might keep a slot from them for ever.
        """
        self._asking = False
        self._sight.look(self._executor.parked_count)
        if self._stopping:
            return
        if not self._program.names:
            self.calls.begin(self.credit)
            return
        self.calls.begin(self.calls.share(self.credit))
        if self.calls.is_any_waiting and self.credit > 0:
            self.spawn(self._take_at_once(self.credit))
        wait_ms = FOREVER_MS if self.config.embedded else WAIT_MS
        self._offers.offer(self.take(self.credit, wait_ms))

    def _answered(self, take: Take, reply: Reply, is_latest: bool) -> None:  # noqa: FBT001
        if isinstance(reply.data, TakeData):
            self.begin(reply.data.claims)
        elif is_latest and reply.status != 409:
            self._be_refused(reply)
            return
        elif is_latest:
            self.start_over(take.incarnation, reply)
        self.credit_changed()

    def _be_refused(self, reply: Reply) -> None:
        """Asking again at once would be refused again, and again."""
        logger.error("this worker is given no tasks, and asks again later: %s", reply.data)
        asyncio.get_running_loop().call_later(REFUSED_S, self.credit_changed)

    def start_over(self, incarnation: str, reply: Reply) -> None:
        """The store gave this worker up: everything it held belongs to others now."""
        if incarnation != self.incarnation or self._stopping:
            return  # told before, or expected
        logger.error("the worker lost its lease and begins anew: %s", reply.data)
        self.incarnation = uuid.uuid4().hex
        held, self.holds = self.holds, {}
        self._arriving = {key: each for key, each in self._arriving.items() if key not in held}
        for attempt in list(self.attempts.values()):
            if attempt.id in held:
                attempt.end("lost")
        self.on_new_incarnation()
        self.credit_changed()

    # --- take and load -------------------------------------------------------------------

    async def start_run(self, command: StartRun) -> Reply:
        """Start a run and, with room for it, its first tasks in the same command."""
        first = sum(not node.after for node in command.nodes)
        free = min(self.credit, first) if command.name in self._program.names else 0
        self._riding += free
        try:
            self.credit_changed()
            # The waiting take is lowered before this one rides; without room too, for the order.
            for _ in range(TURNS_TO_ASK):
                await asyncio.sleep(0)
            take = self.take(free) if free else None
            reply = await self.client.send(replace(command, take=take))
        finally:
            self._riding -= free
        self._go_on(reply)
        return reply

    async def let_others_in(self) -> None:
        """Room was made: let what is ready in the store stand in line before this goes on."""
        await asyncio.gather(*self.calls.begin(self._room() - self._offers.offered))
        free = self._room() - self._offers.offered
        if free > 0:
            await self._take_at_once(free)

    def _take_at_once(self, free: int) -> "Coroutine[Any, Any, None]":
        """The slots are claimed now, not when the coroutine begins."""
        self._riding += free
        return self._taken_at_once(free)

    async def _taken_at_once(self, free: int) -> None:
        reply = None
        try:
            if await self.is_slot_left():
                reply = await self._patiently(self.take(free))
        finally:
            self._riding -= free
            self.credit_changed()
        if reply is not None and isinstance(reply.data, TakeData):
            await asyncio.gather(*self.begin(reply.data.claims))

    def begin(self, claims: Iterable[Claim]) -> "list[asyncio.Task[Any]]":
        """Start what was taken."""
        if self._stopping:
            return []  # handed back with everything else
        begun: list[asyncio.Task[Any]] = []
        for claim in claims:
            self._end_older(claim.task)
            self._loading += not claim.task.is_root
            self._arriving[claim.task.id] = claim.task.version
            if claim.task.is_ours:
                self.holds[claim.task.id] = claim.task.version
            begun.append(self.spawn(self._arrive(claim)))
        self.credit_changed()
        return begun

    def _end_older(self, task: Task) -> None:
        """A claim tells that an earlier one of ours is over, whether we have heard so or not."""
        older = self.attempts.get(task.id)
        if older is not None and older.version < task.version:
            older.end("lost")

    async def _arrive(self, claim: Claim) -> None:
        try:
            loaded = await self._load(claim)
        finally:
            self._loading -= not claim.task.is_root
            self.credit_changed()
        if self._arriving.get(claim.task.id) != claim.task.version:
            return  # taken away meanwhile
        del self._arriving[claim.task.id]
        if isinstance(loaded, Verdict):
            await self._settle(claim.task, loaded)
        elif loaded is not None:
            self._run(loaded)

    async def _load(self, claim: Claim) -> Attempt | Verdict | None:
        """None when the engine has been stopped; what cannot be loaded fails."""
        for pause in pauses():
            try:
                claim, records = await recall(self.client, claim)
                job = await self._program.load(claim)
                return job if isinstance(job, Verdict) else Attempt(self, claim, job, records)
            except EngineStopped:
                return None
            except StoreError as failure:
                logger.warning("%s cannot be loaded yet: %s", claim.task.id, failure)
            except Exception as error:
                logger.exception("%s cannot be loaded", claim.task.id)
                return Verdict("rejected", error_value(error))
            await asyncio.sleep(pause)
        raise AssertionError  # there is always another pause

    # --- run -----------------------------------------------------------------------------

    def _run(self, attempt: Attempt) -> None:
        if self._stopping:
            return
        submission = self._executor.submit(
            partial(self._run_body, attempt), self._on_completed, parks=True
        )
        attempt.task_number = submission.task_id
        self._by_number[submission.task_id] = attempt
        self.attempts[attempt.id] = attempt

    def cancel_body(self, attempt: Attempt) -> None:
        if attempt.task_number:
            self._executor.cancel(attempt.task_number)

    def give_up(self, attempt: Attempt) -> None:
        """The body goes on though it must not: report now, and let it keep its slot."""
        if attempt.task_number in self._stuck:
            return
        self._stuck[attempt.task_number] = attempt.id
        held = "without a slot" if attempt.is_parked else "and keeps its slot"
        told = f"{attempt.id} goes on after '{attempt.reason}' {held}"
        logger.warning(told)
        self._tell_health("stuck", told)
        self._report_end(attempt)

    def _completed(self, completion: TaskCompletion) -> None:
        self._ended(completion.task_id, completion)

    def _discarded(self, number: int, _reason: str) -> None:
        """The body was cancelled: by its clock, by the store, or by itself."""
        self._ended(number, None)

    def _ended(self, number: int, completion: TaskCompletion | None) -> None:
        attempt = self._by_number.pop(number, None)
        if attempt is None:
            return
        attempt.close()
        self._stuck.pop(number, None)
        if self.attempts.get(attempt.id) is attempt:
            del self.attempts[attempt.id]
        self._report_end(attempt, completion)
        if attempt.reason == "lost":
            self._let_go(attempt.id, attempt.version)
        self.credit_changed()

    def _let_go(self, task_id: str, version: int) -> None:
        """If it was halted, it is handed out again only when its body is known to have ended."""
        release = ReleaseTasks(
            pid=self.config.pid,
            incarnation=self.incarnation,
            tasks=(Released(task_id, version),),
        )
        self.spawn(self._patiently(release))

    # --- classify and report -------------------------------------------------------------

    def _report_end(self, attempt: Attempt, completion: TaskCompletion | None = None) -> None:
        """Once for each try; nothing of a task that is no longer ours."""
        if attempt.is_reported:
            return
        attempt.is_reported = True
        if attempt.reason == "timeout":
            self._report_failure(attempt, _too_long(attempt))
        elif attempt.reason is not None:
            self._holds_no_more(attempt.id, attempt.version)
        elif completion is not None and completion.ok:
            self._report_result(attempt, completion.payload)
        else:
            self._report_failure(attempt, attempt.error or asyncio.CancelledError("cancelled"))

    def _report_result(self, attempt: Attempt, result: Any) -> None:
        try:
            value = attempt.job.completed(result)
        except Exception as error:  # noqa: BLE001 - a result that cannot be stored is a failure
            self._report_failure(attempt, error)
            return
        self.spawn(self._finish(attempt, value))

    def _report_failure(self, attempt: Attempt, error: BaseException) -> None:
        failure = attempt.job.failed(error, attempt.failures + 1)
        delay = failure.delay
        retry_at = None if delay is None else self.now() + round(delay * 1000)
        attempt.job.history.failed(self.now(), error_text(error), retry_at)
        history = attempt.job.history.text
        again = "" if delay is None else f"; it is tried again in {delay:.1f} s"
        told = (attempt.id, attempt.try_number, error_text(error), again)
        logger.info("%s failed in try %d: %s%s", *told)
        then = attempt.job.callback(error)
        self.spawn(self._fail(attempt, failure.error, retry_at, history, then))

    async def _finish(self, attempt: Attempt, value: Value) -> None:
        """What the store does not take, a result that is too large for it, is a failure."""
        finish = FinishTask(
            id=attempt.id,
            version=attempt.version,
            state="resolved",
            value=value,
            history=attempt.job.history.completed(self.now()),
        )
        reply = await self._report_and_call(finish, attempt.job.callback(None))
        if reply is not None and reply.status in UNACCEPTABLE:
            error = UsageError(f"the result of {attempt.id} was refused: {reply.data}")
            self._report_failure(attempt, error)

    async def _settle(self, task: Task, verdict: Verdict) -> None:
        finish = FinishTask(
            id=task.id, version=task.version, state=verdict.state, value=verdict.value
        )
        self._go_on(await self._report(finish))

    async def _fail(
        self,
        task: Attempt,
        error: Value,
        retry_at: Millis | None,
        history: str,
        then: Callback | None,
    ) -> None:
        fail = FailTask(
            id=task.id, version=task.version, error=error, retry_at=retry_at, history=history
        )
        await self._report_and_call(fail, then)

    async def _report_and_call(
        self, command: FinishTask | FailTask, then: Callback | None
    ) -> Reply | None:
        reply = await self._report(command)
        self._go_on(reply)
        if then is not None and reply is not None and reply.is_ok:
            await self._callbacks.call(then, command.id)
        return reply

    async def _report(self, command: FinishTask | FailTask) -> Reply | None:
        """The slot that has just become free is offered in the same command."""
        is_room = self._room() > self._offers.offered
        free = 1 if is_room and self.calls.let_run_pass() else 0
        self._riding += free
        try:
            take = None if self._stopping else self.take(free)
            return await self._patiently(replace(command, take=take))
        finally:
            self._riding -= free
            self._holds_no_more(command.id, command.version)

    def _holds_no_more(self, task_id: str, version: int) -> None:
        self.calls.let_go(task_id, version)
        if self.holds.get(task_id) == version:
            del self.holds[task_id]

    def _go_on(self, reply: Reply | None) -> None:
        data = None if reply is None else reply.data
        if isinstance(data, FinishData | FailData) and not data.promise.is_pending:
            self._program.settled(data.promise)
        if isinstance(data, FinishData | FailData | RunData):
            self.begin(data.taken.claims)
        self.credit_changed()

    # --- small things --------------------------------------------------------------------

    async def _patiently(self, command: Any) -> Reply | None:
        """Send until the store answers; None when the engine has been stopped."""
        try:
            return await patiently(self.client, command)
        except EngineStopped:
            return None

    def _tell_health(self, kind: str, reason: str) -> None:
        event = HealthEvent(
            kind=kind,
            source="worker",
            reason=reason,
            depth=self._executor.parked_count,
            capacity=self.config.max_parked,
        )
        self.health.emit(event)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine, context=self._context)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if not isinstance(task.exception(), EngineStopped):
            logger.error("a bug in the worker", exc_info=task.exception())


def _too_long(attempt: Attempt) -> TaskTimeout:
    return TaskTimeout(
        f"{attempt.id} held its slot longer than its timeout of {attempt.job.timeout:g} s"
    )
