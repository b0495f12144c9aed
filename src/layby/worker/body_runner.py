"""Runs the three forms of a body: on the loop, in a thread, in a process of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from layby.errors import ProcessFailed
from layby.executors import (
    ProcessTaskExecutor,
    ProcessTaskExecutorConfig,
    TaskCompletion,
)
from layby.worker.attempt import Attempt
from layby.worker.blocking_handle import BlockingHandle
from layby.worker.body_driver import BodyDriver
from layby.worker.child_body import Raised, run_in_child
from layby.worker.child_stack import EndedInChild
from layby.worker.exit_requests import ExitRequested
from layby.worker.handle import TaskHandle, enter_handle
from layby.worker.real_work import real_work
from layby.worker.shared_slot import SharedSlot, Slot
from layby.worker.thread_call import ThreadPlace, in_own_thread
from layby.worker.wheel import Wheel


class BodyRunner:
    """Threads and processes are started when the first body needs them."""

    def __init__(
        self, wheel: Wheel, max_threads: int, processes: int, give_up: Callable[[Attempt], None]
    ) -> None:
        self._wheel = wheel
        self._max_threads = max_threads
        self._process_count = processes
        self._give_up = give_up
        self._threads: ThreadPoolExecutor | None = None
        self._thread_permits = asyncio.Semaphore(max_threads)
        self._processes: ProcessTaskExecutor | None = None
        self._process_permits = asyncio.Semaphore(processes)
        self.threads = 0
        """How many bodies have a thread now, including those that wait in it."""

    def begin(self, attempt: Attempt, slot: Slot, context: Context) -> "asyncio.Task[Any]":
        """Run the body of an attempt that holds its slot, in a context of its own.

        Not a coroutine: its frame would stay in memory with every parked task.
        """
        is_async = attempt.loaded.mode == "async"
        shared = SharedSlot(slot, attempt, is_driven=is_async)
        handle = TaskHandle(shared, attempt, self._wheel)
        context.run(enter_handle, handle)
        attempt.begin()
        code: Any
        if is_async:
            attempt.has_begun = True
            code = self._on_loop(attempt, handle, shared, context)
        else:
            code = self._off_loop(attempt, handle, shared)
        # Not with the loop's task factory: an eager one would run user code right here.
        task = asyncio.Task(code, loop=asyncio.get_running_loop(), context=context)
        shared.set_main(task)
        return task

    def _on_loop(
        self, attempt: Attempt, handle: TaskHandle, shared: SharedSlot, context: Context
    ) -> Any:
        try:
            return BodyDriver(context.run(attempt.loaded.body(handle)), shared)
        except BaseException as error:  # noqa: BLE001 - reported as if raised a moment later
            attempt.error = error
            return _raise(error if isinstance(error, Exception) else ExitRequested())

    async def _off_loop(self, attempt: Attempt, handle: TaskHandle, shared: SharedSlot) -> Any:
        try:
            if attempt.loaded.mode == "thread":
                return await self._in_thread(attempt, handle, shared)
            return await self._in_process(attempt)
        except BaseException as error:
            attempt.error = error
            if isinstance(error, SystemExit | KeyboardInterrupt):  # in a thread: not Ctrl-C
                raise ExitRequested from error
            raise
        finally:
            shared.close()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.shutdown(timeout=0)

    # --- threads -------------------------------------------------------------------------

    async def _in_thread(self, attempt: Attempt, handle: TaskHandle, shared: SharedSlot) -> Any:
        """A thread cannot be cancelled: the slot stays held until it ends by itself."""
        async with self._thread_permits:
            self.threads += 1
            try:
                await attempt.hold_lease()  # it may have waited long for a thread
                return await self._in_own_thread(attempt, handle, shared)
            finally:
                self.threads -= 1

    async def _in_own_thread(self, attempt: Attempt, handle: TaskHandle, shared: SharedSlot) -> Any:
        work = real_work()
        shared.set_main_thread()
        blocking = BlockingHandle(handle, shared, asyncio.get_running_loop(), work)
        context = copy_context()
        context.run(enter_handle, blocking)
        call = attempt.loaded.body(blocking)
        attempt.has_begun = True
        work.begin()
        place = ThreadPlace()
        in_thread = self._thread_pool().submit(context.run, place.run, blocking.run, call)
        running = asyncio.wrap_future(in_thread)
        running.add_done_callback(lambda _: work.end())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.done():
                raise
            attempt.error = asyncio.CancelledError().with_traceback(place.traceback())
            if not blocking.interrupt():
                self._give_up(attempt)
            await _wait_for_end(running)
            raise

    def _thread_pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_threads, "layby-body")
        return self._threads

    # --- processes -----------------------------------------------------------------------

    async def _in_process(self, attempt: Attempt) -> Any:
        async with self._process_permits:
            await attempt.hold_lease()
            attempt.has_begun = True
            return await self._in_own_process(attempt, attempt.loaded.body(None))

    async def _in_own_process(self, attempt: Attempt, call: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def completed(completion: TaskCompletion) -> None:
            loop.call_soon_threadsafe(_settle, done, completion)

        with real_work().busy():
            executor = self._process_executor()
            submission = executor.submit(partial(run_in_child, call), completed)
            try:
                return await done
            except asyncio.CancelledError:
                is_late = attempt.reason == "timeout"
                stack = await _stack_in_child(executor, submission.task_id) if is_late else ""
                executor.cancel(submission.task_id)
                raise EndedInChild(stack) from None

    def _process_executor(self) -> ProcessTaskExecutor:
        """Bodies that find every process busy wait for one, and keep their slots."""
        if self._processes is None:
            count = self._process_count
            config = ProcessTaskExecutorConfig(
                max_inflight=count, max_workers=count, queue_capacity=2**31
            )
            self._processes = ProcessTaskExecutor(config, keep_completions=False)
        return self._processes


async def _stack_in_child(executor: ProcessTaskExecutor, task_id: int) -> str:
    """Asked in a thread: the process may be slow to answer."""
    told: list[str] = []
    asking = in_own_thread(lambda: told.append(executor.stack(task_id)))
    await _wait_for_end(asyncio.ensure_future(asking))
    return told[0] if told else ""


async def _raise(error: BaseException) -> None:
    raise error


async def _wait_for_end(running: "asyncio.Future[Any]") -> None:
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue  # cancelled again; the thread cannot be
    if not running.cancelled():
        running.exception()  # else asyncio logs that nobody retrieved it


def _settle(done: "asyncio.Future[Any]", completion: TaskCompletion) -> None:
    if done.done():
        return
    if not completion.ok:  # it could not be sent, or its process died
        done.set_exception(ProcessFailed(completion.error))
    elif isinstance(completion.payload, Raised):
        done.set_exception(completion.payload.as_error())
    else:
        done.set_result(completion.payload)
