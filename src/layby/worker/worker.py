"""Takes by credit, runs bodies through the executor, reports how they end.

The pipeline of one claim: take → load → run → classify → report. Credit is the number of slots
that nothing claims: free ones, less the tasks that stand in line, are being loaded, or are asked
for by a report under way. One take always waits in the engine; when credit changes a new one
replaces it, so that the worker never holds more tasks than it can run.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from layby.client.api import Client
from layby.core.commands import (
    FailTask,
    FinishTask,
    LeaveWorker,
    SearchPromises,
    StartRun,
    Take,
    Value,
)
from layby.core.model import Millis, Promise
from layby.core.replies import (
    Claim,
    FailData,
    FinishData,
    PromisePage,
    Reply,
    RunData,
    TakeData,
)
from layby.errors import EngineStopped, StoreError, TaskTimeout
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
from layby.worker.program import Failure, Program, Verdict
from layby.worker.wheel import Wheel

logger = logging.getLogger(__name__)

FOREVER_MS = 3_600_000
RETRY_S = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries to report while the store does not answer; the last one repeats."""


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
        self._bodies = Bodies(self._wheel, config.max_threads, config.processes)
        # Its own pool is its share; whatever is claimed is admitted, since credit bounds it.
        limits = TaskExecutorConfig(max_inflight=config.slots, queue_capacity=2**31)
        self._executor = AsyncTaskExecutor(
            limits, pool=self.pool, on_discard=self._discarded, keep_completions=False
        )
        self._by_number: dict[int, Attempt] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._loading = 0
        self._riding = 0
        self._standing: int | None = None
        self._asking = False
        self._stopping = False

    # --- life ----------------------------------------------------------------------------

    def start(self) -> None:
        self.credit_changed()

    async def stop(self, grace: float = 1.0) -> None:
        """Hand every task back at once; bodies get `grace` seconds to clean up."""
        self._stopping = True
        for attempt in list(self.attempts.values()):
            attempt.end("shutdown")
        leave = LeaveWorker(pid=self.config.pid, incarnation=self.config.incarnation)
        await self.client.send(leave)
        await self._executor.shutdown(timeout=grace)
        self._wheel.close()
        self._bodies.close()
        for task in list(self._background):
            task.cancel()

    def lost(self, task_id: str, version: int) -> None:
        """A task was taken away: cancelled, halted, timed out or settled by somebody else."""
        attempt = self.attempts.get(task_id)
        if attempt is not None and attempt.version == version:
            attempt.end("lost")

    # --- credit --------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        if self._stopping or not self.may_park():
            return 0
        claimed = self.pool.held + self.pool.waiting + self._loading + self._riding
        return max(0, self.config.slots - claimed)

    def may_park(self) -> bool:
        if self._executor.parked_count < self.config.max_parked:
            return True
        self.health.emit(
            HealthEvent(
                kind="parked_limit",
                source="worker",
                reason=f"{self.config.max_parked} tasks are parked: no new task is taken",
                capacity=self.config.max_parked,
            )
        )
        return False

    def credit_changed(self) -> None:
        """Look once per turn of the loop, whatever has happened in it."""
        if not self._asking and not self._stopping:
            self._asking = True
            asyncio.get_running_loop().call_soon(self._ask)

    def take(self, free: int, wait_ms: int = 0) -> Take:
        config = self.config
        return Take(
            pid=config.pid,
            incarnation=config.incarnation,
            group=config.group,
            names=self._program.names,
            free=free,
            ttl=config.ttl,
            embedded=config.embedded,
            wait_ms=wait_ms,
        )

    def _ask(self) -> None:
        self._asking = False
        if self._standing != self.credit and not self._stopping and self._program.names:
            self._standing = self.credit
            self.spawn(self._stand(self.take(self.credit, FOREVER_MS)))

    def code_changed(self) -> None:
        """The program knows more names now: ask for those too."""
        self._standing = None
        self.credit_changed()

    async def _stand(self, take: Take) -> None:
        """The one take that waits. Answered with nothing, a newer one has replaced it."""
        reply = await self._patiently(take)
        if reply is None:
            return
        claims = reply.data.claims if isinstance(reply.data, TakeData) else ()
        if claims:
            self._standing = None
            self.begin(claims)
        elif reply.status >= 400 and not self._stopping:
            logger.error("the worker is no longer known to the store: %s", reply.data)

    # --- the pipeline --------------------------------------------------------------------

    async def start_run(self, command: StartRun) -> Reply:
        """Start a run and, with room for it, its first tasks in the same command."""
        first = sum(not node.after for node in command.nodes)
        free = min(self.credit, first) if self._knows(command) else 0
        take = self.take(free) if free else None
        self._riding += free
        try:
            reply = await self.client.send(replace(command, take=take))
        finally:
            self._riding -= free
        self._go_on(reply)
        return reply

    def _knows(self, command: StartRun) -> bool:
        return command.name in self._program.names

    def begin(self, claims: Any) -> None:
        """Start what was taken."""
        for claim in claims:
            self._loading += not claim.task.is_root
            self.spawn(self._load(claim))
        self.credit_changed()

    async def _load(self, claim: Claim) -> None:
        try:
            job = await self._program.load(claim)
            if isinstance(job, Verdict):
                await self._settle(claim, job.state, job.value)
                return
            attempt = Attempt(self, claim, job)
            if claim.task.version > 1:
                attempt.replay.load(await self._records(claim.task.id))
        finally:
            self._loading -= not claim.task.is_root
            self.credit_changed()
        self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        attempt.job.history.started(self.now())
        submission = self._executor.submit(
            lambda slot: self._bodies.run(attempt, slot), self._completed, parks=True
        )
        attempt.task_number = submission.task_id
        self._by_number[submission.task_id] = attempt
        self.attempts[attempt.id] = attempt

    def _completed(self, completion: TaskCompletion) -> None:
        attempt = self._by_number.pop(completion.task_id)
        self._close(attempt)
        if attempt.reason in ("lost", "shutdown"):
            self.credit_changed()
            return
        if attempt.reason == "timeout":
            self._report_failure(attempt, self._too_long(attempt))
        elif completion.ok:
            self._report_result(attempt, completion.payload)
        else:
            self._report_failure(attempt, attempt.error or RuntimeError(completion.error))

    def _discarded(self, number: int, reason: str) -> None:
        """The body was cancelled: by its clock, by the store, or by itself."""
        attempt = self._by_number.pop(number, None)
        if attempt is None:
            return
        self._close(attempt)
        if attempt.reason == "timeout":
            self._report_failure(attempt, self._too_long(attempt))
        elif attempt.reason is None:
            self._report_failure(attempt, asyncio.CancelledError(reason))
        self.credit_changed()

    def cancel_body(self, attempt: Attempt) -> None:
        if attempt.task_number:
            self._executor.cancel(attempt.task_number)

    def _close(self, attempt: Attempt) -> None:
        attempt.close()
        if self.attempts.get(attempt.id) is attempt:
            del self.attempts[attempt.id]

    # --- classify and report -------------------------------------------------------------

    def _report_result(self, attempt: Attempt, result: Any) -> None:
        try:
            value = attempt.job.completed(result)
        except Exception as error:  # noqa: BLE001 - a result that cannot be stored is a failure
            self._report_failure(attempt, error)
            return
        attempt.job.history.completed(self.now())
        history = attempt.job.history.text
        self.spawn(self._settle(attempt.claim, "resolved", value, history))

    def _report_failure(self, attempt: Attempt, error: BaseException) -> None:
        failures = attempt.claim.task.failures + 1
        failure = attempt.job.failed(error, failures)
        delay = failure.delay
        retry_at = None if delay is None else self.now() + round(delay * 1000)
        attempt.job.history.failed(self.now(), f"{type(error).__name__}: {error}", retry_at)
        self.spawn(self._fail(attempt, failure, retry_at))

    async def _settle(
        self, claim: Claim, state: str, value: Value, history: str | None = None
    ) -> None:
        task = claim.task
        self._riding += 1
        try:
            finish = FinishTask(
                id=task.id,
                version=task.version,
                state=state,
                value=value,
                history=history,
                take=self._riding_take(),
            )
            reply = await self._patiently(finish)
        finally:
            self._riding -= 1
        self._go_on(reply)

    async def _fail(self, attempt: Attempt, failure: Failure, retry_at: Millis | None) -> None:
        self._riding += 1
        try:
            fail = FailTask(
                id=attempt.id,
                version=attempt.version,
                error=failure.error,
                retry_at=retry_at,
                history=attempt.job.history.text,
                take=self._riding_take(),
            )
            reply = await self._patiently(fail)
        finally:
            self._riding -= 1
        self._go_on(reply)

    def _riding_take(self) -> Take | None:
        return None if self._stopping else self.take(min(1, self.credit + 1))

    def _go_on(self, reply: Reply | None) -> None:
        data = None if reply is None else reply.data
        if isinstance(data, FinishData | FailData) and not data.promise.is_pending:
            self._program.settled(data.promise)
        if isinstance(data, FinishData | FailData | RunData):
            self.begin(data.taken.claims)
        self.credit_changed()

    async def _patiently(self, command: Any) -> Reply | None:
        """Send until the store answers; None when the engine has been stopped."""
        for attempt in range(10_000):
            try:
                return await self.client.send(command)
            except EngineStopped:
                return None
            except StoreError as failure:
                logger.warning("the store does not answer, trying again: %s", failure)
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
        return None

    async def _records(self, task_id: str) -> list[Promise]:
        found: list[Promise] = []
        cursor: str | None = None
        while True:
            query = SearchPromises(prefix=f"{task_id}.", limit=1000, cursor=cursor)
            page = (await self.client.send(query)).data
            assert isinstance(page, PromisePage)
            found += page.promises
            cursor = page.cursor
            if cursor is None:
                return found

    @staticmethod
    def _too_long(attempt: Attempt) -> TaskTimeout:
        return TaskTimeout(
            f"{attempt.id} held its slot longer than its timeout of {attempt.job.timeout:g} s"
        )

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a bug in the worker", exc_info=task.exception())
