"""Owns the executor whose work runs on the event loop and can release its slot while it waits."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from layby.executors.async_job import ACTIVE, ENDED, PARKED, QUEUED, AsyncJob
from layby.executors.cancellation import CancellationToken
from layby.executors.deadline import Deadline
from layby.executors.executor_config import TaskExecutorConfig, config_of, shutdown_policy_of
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.executor_reasons import (
    PENDING_CANCELLED,
    POOL_CLOSED,
    SHUTDOWN_CANCELLED,
    TASK_CANCELLED,
    TOKEN_CANCELLED,
)
from layby.executors.executor_state import ExecutorState
from layby.executors.health import HealthEventSink
from layby.executors.notifier import Notifier
from layby.executors.slot_ledger import PoolClosed
from layby.executors.slots import SlotPool, SlotToken
from layby.executors.submit_wait import submit_when_room_async
from layby.executors.task_records import (
    CompletionCallback,
    Discard,
    DiscardCallback,
    Ending,
    Metadata,
    TaskCompletion,
    TaskSubmission,
)
from layby.executors.wakers import LoopWaker, Waker, WakerQueue

AsyncWork = Callable[[], Any] | Callable[[SlotToken], Any]
"""A plain or `async` callable; submitted with `parks=True` it is given its token."""

GRACE = 1.0
"""Seconds that cancelled bodies get to clean up when a shutdown has run out of time."""


class AsyncTaskExecutor:
    """Runs each task as a coroutine that holds a slot, except while it is parked.

    Work submitted with `parks=True` gets its `SlotToken`: after `token.release()` it is parked,
    after `await token.reclaim()` it is active again, in line with new work. Everything
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
        config = config_of(config, TaskExecutorConfig)
        self.pool = pool or SlotPool(config.concurrency)
        # Of a shared pool it uses at most its own concurrency; a pool of its own has that size.
        self._max_active = None if pool is None else config.concurrency
        self._shutdown_policy = shutdown_policy_of(config)
        self._ledger = self.pool.ledger
        self._state = ExecutorState[AsyncJob](config, keeps_completions=keep_completions)
        self._notifier = Notifier(on_discard)
        self._clock = clock
        self._jobs: dict[int, AsyncJob] = {}
        self._over_share: deque[AsyncJob] = deque()
        self._cancel_reasons: dict[int, str] = {}
        self._waiting_for_room = WakerQueue()
        self._waiting_for_idle = WakerQueue()
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
        state = self._state
        submission = state.refuse(POOL_CLOSED) if self._ledger.closed else state.admit(job)
        if submission.accepted:
            self._jobs[job.task_id] = job
            self.seek_slot(job)
        if state.notices or (self._waiting_for_room and state.is_giving_way()):
            self._settle()
        return submission

    def _admit_or_queue(self, job: AsyncJob, waker: Waker, *, first: bool) -> TaskSubmission | None:
        if not self._state.should_wait(job):
            return self._admit(job)
        self._waiting_for_room.join(waker, first=first)
        return None

    def _leave_queue(self, waker: Waker) -> None:
        self._waiting_for_room.leave(waker)
        self._settle()  # wakes the next one, in case this one had been woken

    # -- draining, cancelling, inspecting

    def run_ready(
        self, max_tasks: int = 0, cancel_token: CancellationToken | None = None
    ) -> list[TaskCompletion]:
        """Drain records of tasks that ended. Runs nothing."""
        if cancel_token is not None and cancel_token.cancel_requested():
            self._state.cancellations_seen += 1
            self._state.cancel_pending(TOKEN_CANCELLED)
        drained = self._state.drain(max_tasks)
        self._settle()
        return drained

    def cancel(self, task_id: int) -> bool:
        """Cancel a task that is queued, or ask the body of one that runs or is parked to stop."""
        return self._cancel(task_id, TASK_CANCELLED)

    def cancel_pending(self) -> int:
        count = self._state.cancel_pending(PENDING_CANCELLED)
        self._settle()
        return count

    def metrics(self) -> TaskExecutorMetrics:
        return self._state.snapshot(callback_errors=self._notifier.callback_errors)

    @property
    def parked_count(self) -> int:
        return self._state.parked

    def set_health_event_sink(self, sink: HealthEventSink | None) -> None:
        self._notifier.sink = sink
        self._state.wants_events = sink is not None

    async def wait_for_idle(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - protocol
        """Wait until every accepted task has ended, the parked ones too."""
        deadline = Deadline(timeout)
        if self._state.is_idle():
            return True
        waker = LoopWaker()
        self._waiting_for_idle.join(waker)
        try:
            async with asyncio.timeout(deadline.remaining()):
                await waker.wait()
        except TimeoutError:
            return self._state.is_idle()
        finally:
            self._waiting_for_idle.leave(waker)
        return True

    # -- ending

    async def shutdown(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - protocol
        """Refuse new work, finish or cancel what is pending by the policy, wait for the rest.

        False when that took too long: then everything left is cancelled, parked work too.
        """
        self._state.closing = True
        if self._shutdown_policy != "drain":
            self._state.cancel_pending(SHUTDOWN_CANCELLED)
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
        """Start a queued job, or put it in line."""
        try:
            self.seat(job)
        except PoolClosed:
            self._state.cancel(job.task_id, POOL_CLOSED)
            self._settle()

    def seat(self, job: AsyncJob) -> bool:
        """Make the job active if a slot is free now; True when it is active."""
        if job.state is ACTIVE:
            return True
        if self._has_full_share() and not self._ledger.closed:
            self._over_share.append(job)
            return False
        if self._ledger.take(job) or self._ledger.request(job, job):
            self._activate(job)
        return job.state is ACTIVE

    def unseat(self, job: AsyncJob) -> None:
        """Take the job out of line, or release a slot that was granted in this turn of the loop."""
        if job in self._over_share:
            self._over_share.remove(job)
        elif self._ledger.withdraw(job):
            self._request_for_next()  # it may have been in line for this executor's share
        elif not job.release():
            self._ledger.give_back(job)

    def granted(self, job: AsyncJob) -> bool:
        """Called by the ledger when the job holds a slot. False declines it."""
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
        if self._state.budget:
            job.elapsed += self._clock() - job.since
        job.state = PARKED
        self._state.parked += 1
        self._state.active -= 1
        self._release_slot(job)
        if self._waiting_for_room:
            self._settle()

    def _activate(self, job: AsyncJob) -> None:
        state = self._state
        if job.state is QUEUED:
            self._begin(job)
        else:
            state.parked -= 1
            if job.waker is not None:
                job.waker.wake()
        job.state = ACTIVE
        state.active += 1
        state.update_high_water()  # a task that resumes comes on top of what was admitted
        if state.budget:
            job.since = self._clock()

    def _release_slot(self, job: AsyncJob) -> None:
        self._request_for_next()
        self._ledger.give_back(job)

    def _request_for_next(self) -> None:
        """Put the next job that waits for this executor's share first in line for a slot."""
        if not self._over_share or self._has_full_share():
            return
        next_job = self._over_share.popleft()
        try:
            if self._ledger.request(next_job, next_job, first=True):
                self._activate(next_job)
        except PoolClosed:
            next_job.retry()  # it finds the pool closed
            self._request_for_next()

    def _has_full_share(self) -> bool:
        return self._max_active is not None and self._state.active >= self._max_active

    # -- running a body

    def _begin(self, job: AsyncJob) -> None:
        pending = self._state.pending
        if pending[0] is job:
            pending.popleft()
        else:
            pending.remove(job)
        # Not with the loop's task factory: an eager one would run user code inside `submit`.
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
        return Discard(job.task_id, self._cancel_reasons.pop(job.task_id, TASK_CANCELLED))

    def _end(self, job: AsyncJob, ending: Ending) -> None:
        state = self._state
        if job.state is ACTIVE and state.budget:
            job.elapsed += self._clock() - job.since
        if job.completion is not None and isinstance(ending, TaskCompletion):
            self._notifier.notify_completion(job, ending)
        self._mark_ended(job)
        if state.budget:
            state.check_budget(job.elapsed)
        if isinstance(ending, TaskCompletion):
            state.count_completion(ending)
            state.keep(ending)
        else:
            state.discard(ending)
        self._settle()

    def _mark_ended(self, job: AsyncJob) -> None:
        was, job.state, job.body = job.state, ENDED, None
        del self._jobs[job.task_id]
        if was is ACTIVE:
            self._state.active -= 1
            self._release_slot(job)
        else:
            self._state.parked -= 1
            self.unseat(job)

    def _cancel(self, task_id: int, reason: str) -> bool:
        job = self._jobs.get(task_id)
        if job is None:
            return False
        if job.body is not None:
            self._cancel_reasons[task_id] = reason
            return job.body.cancel()
        found = self._state.cancel(task_id, reason)
        self._settle()
        return found

    # -- after every change

    def _settle(self) -> None:
        """Wake everyone the change affects, and send the notices."""
        state = self._state
        if self._waiting_for_room:
            self._waiting_for_room.wake(state.openings())
            if state.closing:
                self._waiting_for_room.wake_all()
        if self._waiting_for_idle and state.is_idle():
            self._waiting_for_idle.wake_all()
        if state.notices:
            self._notify()

    def _notify(self) -> None:
        notices = self._state.take_notices()
        for notice in notices:
            if isinstance(notice, Discard) and notice.task_id in self._jobs:
                self._forget_queued(self._jobs.pop(notice.task_id))
        self._notifier.notify(notices)

    def _forget_queued(self, job: AsyncJob) -> None:
        job.state = ENDED
        self.unseat(job)
