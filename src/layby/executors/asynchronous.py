"""Owns the executor whose work runs on the event loop, under a pool of slots it can park out of."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from layby.executors.async_job import ACTIVE, ENDED, PARKED, QUEUED, AsyncJob
from layby.executors.bells import Bell, BellQueue, LoopBell
from layby.executors.book import TaskBook
from layby.executors.cancellation import CancellationToken
from layby.executors.config import TaskExecutorConfig, shutdown_policy_of
from layby.executors.health import HealthEventSink
from layby.executors.herald import Herald
from layby.executors.metrics import TaskExecutorMetrics
from layby.executors.reasons import (
    PENDING_CANCELLED,
    POOL_CLOSED,
    SHUTDOWN_CANCELLED,
    TASK_CANCELLED,
    TOKEN_CANCELLED,
)
from layby.executors.records import (
    CompletionCallback,
    Discard,
    DiscardCallback,
    Ending,
    Metadata,
    TaskCompletion,
    TaskSubmission,
)
from layby.executors.room import submit_when_room_async
from layby.executors.slot_ledger import PoolClosed
from layby.executors.slots import SlotPool, SlotToken

AsyncWork = Callable[[], Any] | Callable[[SlotToken], Any]
"""A plain or `async` callable; submitted with `parks=True` it is given its token."""

GRACE = 1.0
"""Seconds that cancelled bodies get to clean up when a shutdown has run out of time."""


class AsyncTaskExecutor:
    """Runs each task as a coroutine that holds a slot, except while it is parked.

    Work submitted with `parks=True` gets its `SlotToken`: after `token.release()` it is parked,
    after `await token.reclaim()` it is active again, in one line with new work. Everything
    happens on one event loop, callbacks included, and all methods are to be called there.
    """

    def __init__(
        self,
        config: TaskExecutorConfig | None = None,
        *,
        pool: SlotPool | None = None,
        on_discard: DiscardCallback | None = None,
        keep_completions: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or TaskExecutorConfig()
        self.pool = pool or SlotPool(config.concurrency)
        # Of a pool of others it takes no more than its own share; its own pool is that share.
        self._most_active = None if pool is None else config.concurrency
        self._shutdown_policy = shutdown_policy_of(config)
        self._ledger = self.pool.ledger
        self._book = TaskBook[AsyncJob](config, keeps_completions=keep_completions)
        self._herald = Herald(on_discard)
        self._clock = clock
        self._jobs: dict[int, AsyncJob] = {}
        self._over_share: deque[AsyncJob] = deque()
        self._cancelled_for: dict[int, str] = {}
        self._waiting_for_room = BellQueue()
        self._waiting_for_idle = BellQueue()
        self.loop: asyncio.AbstractEventLoop

    # -- submitting

    def submit(
        self,
        work: AsyncWork | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
        *,
        parks: bool = False,
    ) -> TaskSubmission:
        self.loop = asyncio.get_running_loop()
        return self._admit(AsyncJob(self, self._ledger, work, completion, metadata, parks))

    async def submit_async(
        self,
        work: AsyncWork | None,
        completion: CompletionCallback | None = None,
        metadata: Metadata | None = None,
        *,
        parks: bool = False,
    ) -> TaskSubmission:
        """Submit, waiting for room unless the policy is `fail_fast`."""
        self.loop = asyncio.get_running_loop()
        job = AsyncJob(self, self._ledger, work, completion, metadata, parks)
        return await submit_when_room_async(partial(self._admit_or_queue, job), self._leave_queue)

    def _admit(self, job: AsyncJob) -> TaskSubmission:
        book = self._book
        submission = book.refuse(POOL_CLOSED) if self._ledger.closed else book.admit(job)
        if submission.accepted:
            self._jobs[job.task_id] = job
            self.seek_slot(job)
        if book.notices:
            self._settle()
        return submission

    def _admit_or_queue(self, job: AsyncJob, bell: Bell, *, first: bool) -> TaskSubmission | None:
        if not self._book.must_wait(job):
            return self._admit(job)
        self._waiting_for_room.join(bell, first=first)
        return None

    def _leave_queue(self, bell: Bell) -> None:
        self._waiting_for_room.leave(bell)
        self._settle()  # calls the next one, in case it was this bell that was rung

    # -- draining, cancelling, looking

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Drain records of tasks that ended. Runs nothing."""
        if cancel_token is not None and cancel_token.cancel_requested():
            self._book.cancellations_seen += 1
            self._book.cancel_pending(TOKEN_CANCELLED)
        drained = self._book.drain(max_tasks)
        self._settle()
        return drained

    def cancel(self, task_id: int) -> bool:
        """Cancel a task that is queued, or ask the body of one that runs or is parked to stop."""
        return self._cancel(task_id, TASK_CANCELLED)

    def cancel_pending(self) -> int:
        count = self._book.cancel_pending(PENDING_CANCELLED)
        self._settle()
        return count

    def metrics(self) -> TaskExecutorMetrics:
        return self._book.snapshot(callback_errors=self._herald.callback_errors)

    @property
    def parked_count(self) -> int:
        return self._book.parked

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._herald.sink = sink
        self._book.wants_events = sink is not None

    async def wait_for_idle(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - protocol
        """Wait until every accepted task has ended, the parked ones too."""
        if self._book.is_idle():
            return True
        bell = LoopBell()
        self._waiting_for_idle.join(bell)
        try:
            async with asyncio.timeout(timeout):
                await bell.wait()
        except TimeoutError:
            return self._book.is_idle()
        finally:
            self._waiting_for_idle.leave(bell)
        return True

    # -- ending

    async def shutdown(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - protocol
        """Refuse new work, finish or cancel what is pending by the policy, wait for the rest.

        False when that took too long: then everything left is cancelled, parked work too.
        """
        self._book.closing = True
        if self._shutdown_policy != "drain":
            self._book.cancel_pending(SHUTDOWN_CANCELLED)
        self._settle()
        if await self.wait_for_idle(timeout):
            return True
        for task_id in list(self._jobs):
            self._cancel(task_id, SHUTDOWN_CANCELLED)
        await self.wait_for_idle(GRACE)
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()

    # -- slots: what a job asks for, and what the ledger grants

    def seek_slot(self, job: AsyncJob) -> None:
        """Start a queued job, or let it stand in line."""
        try:
            self.seat(job)
        except PoolClosed:
            self._book.cancel(job.task_id, POOL_CLOSED)
            self._settle()

    def seat(self, job: AsyncJob) -> bool:
        """Make the job active if a slot can be had now; True when it is active."""
        if job.state is ACTIVE:
            return True
        if self._has_full_share() and not self._ledger.closed:
            self._over_share.append(job)
            return False
        if self._ledger.take(job) or self._ledger.request(job, job):
            self._activate(job)
        return job.state is ACTIVE

    def unseat(self, job: AsyncJob) -> None:
        """Take the job out of line, or its slot from it if that came in this very turn."""
        if job in self._over_share:
            self._over_share.remove(job)
        elif self._ledger.withdraw(job):
            self._call_heir()  # it may have stood there as the heir of a share
        elif not job.release():
            self._ledger.give_back(job)

    def granted(self, job: AsyncJob) -> bool:
        """Hear from the ledger that the job holds a slot. False turns it down."""
        if job.state is ACTIVE:
            return True
        if job.state is ENDED or not job.held:
            return False
        if self._has_full_share():
            self._over_share.append(job)
            return False
        self._activate(job)
        return True

    def park(self, job: AsyncJob) -> None:
        if self._book.budget:
            job.elapsed += self._clock() - job.since
        job.state = PARKED
        self._book.parked += 1
        self._book.active -= 1
        self._vacate(job)
        if self._waiting_for_room:
            self._settle()

    def _activate(self, job: AsyncJob) -> None:
        book = self._book
        if job.state is QUEUED:
            self._begin(job)
        else:
            book.parked -= 1
            if job.bell is not None:
                job.bell.ring()
        job.state = ACTIVE
        book.active += 1
        book.note_high_water()  # a task that resumes comes on top of what was admitted
        if book.budget:
            job.since = self._clock()

    def _vacate(self, job: AsyncJob) -> None:
        self._call_heir()
        self._ledger.give_back(job)

    def _call_heir(self) -> None:
        """Let one who waits only for this executor's share stand first in line for a slot."""
        if not self._over_share or self._has_full_share():
            return
        heir = self._over_share.popleft()
        try:
            if self._ledger.request(heir, heir, first=True):
                self._activate(heir)
        except PoolClosed:
            heir.look_again()  # and hear it there
            self._call_heir()

    def _has_full_share(self) -> bool:
        return self._most_active is not None and self._book.active >= self._most_active

    # -- the way of a body

    def _begin(self, job: AsyncJob) -> None:
        pending = self._book.pending
        if pending[0] is job:
            pending.popleft()
        else:
            pending.remove(job)
        # Not by the loop's task factory: an eager one would run user code inside `submit`.
        job.body = body = asyncio.Task(self._run(job), loop=self.loop, context=job.context)
        # A body cancelled before its first step runs nothing at all, not even `finally`.
        body.add_done_callback(job.ended_before_it_began)

    async def _run(self, job: AsyncJob) -> None:
        body = cast("asyncio.Task[None]", job.body)
        body.remove_done_callback(job.ended_before_it_began)
        try:
            payload: Any = job.work(job) if job.parks else job.work()
            if inspect.isawaitable(payload):
                payload = await payload
        except asyncio.CancelledError as error:
            ending = self._cancelled(job) if body.cancelling() else job.failed(error)
        except BaseException as error:
            ending = job.failed(error)
            if isinstance(error, KeyboardInterrupt):
                self._end(job, ending)
                raise
        else:
            ending = job.completed(payload)
        self._end(job, ending)

    def vanished(self, job: AsyncJob) -> None:
        self._end(job, self._cancelled(job))

    def _cancelled(self, job: AsyncJob) -> Discard:
        return Discard(job.task_id, self._cancelled_for.pop(job.task_id, TASK_CANCELLED))

    def _end(self, job: AsyncJob, ending: Ending) -> None:
        book = self._book
        if job.state is ACTIVE and book.budget:
            job.elapsed += self._clock() - job.since
        if job.completion is not None and isinstance(ending, TaskCompletion):
            self._herald.complete(job, ending)
        self._leave_gauge(job)
        if book.budget:
            book.note_elapsed(job.elapsed)
        if isinstance(ending, TaskCompletion):
            book.tally(ending)
            book.keep(ending)
        else:
            book.discard(ending)
        self._settle()

    def _leave_gauge(self, job: AsyncJob) -> None:
        was, job.state, job.body = job.state, ENDED, None
        del self._jobs[job.task_id]
        if was is ACTIVE:
            self._book.active -= 1
            self._vacate(job)
        else:
            self._book.parked -= 1
            self.unseat(job)

    def _cancel(self, task_id: int, reason: str) -> bool:
        job = self._jobs.get(task_id)
        if job is None:
            return False
        if job.body is not None:
            self._cancelled_for[task_id] = reason
            return job.body.cancel()
        found = self._book.cancel(task_id, reason)
        self._settle()
        return found

    # -- after every change

    def _settle(self) -> None:
        """Wake whom the change concerns and tell what there is to tell."""
        book = self._book
        if self._waiting_for_room:
            self._waiting_for_room.ring(book.room())
            if book.closing:
                self._waiting_for_room.ring_all()
        if self._waiting_for_idle and book.is_idle():
            self._waiting_for_idle.ring_all()
        if book.notices:
            self._tell()

    def _tell(self) -> None:
        notices = self._book.take_notices()
        for notice in notices:
            if isinstance(notice, Discard) and notice.task_id in self._jobs:
                self._forget_queued(self._jobs.pop(notice.task_id))
        self._herald.tell(notices)

    def _forget_queued(self, job: AsyncJob) -> None:
        job.state = ENDED
        self.unseat(job)
