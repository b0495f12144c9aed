"""How the three forms of a body are run: on the loop, in a thread, in a process of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from layby.errors import LaybyError
from layby.executors import (
    ProcessTaskExecutor,
    ProcessTaskExecutorConfig,
    SlotToken,
    TaskCompletion,
)
from layby.worker.attempt import Attempt
from layby.worker.blocking import BlockingHandle
from layby.worker.handle import TaskHandle, enter_handle
from layby.worker.real_work import real_work
from layby.worker.wheel import Wheel


class ProcessFailed(LaybyError):
    """A body in a process of its own raised, or its process died."""


class Bodies:
    """Threads and processes are made when the first body needs them."""

    def __init__(self, wheel: Wheel, max_threads: int, processes: int) -> None:
        self._wheel = wheel
        self._max_threads = max_threads
        self._process_count = processes
        self._threads: ThreadPoolExecutor | None = None
        self._processes: ProcessTaskExecutor | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.stuck = 0
        """Threads that go on although their task is over: they keep their slots."""

    async def run(self, attempt: Attempt, slot: SlotToken) -> Any:
        """Run the body of an attempt that holds its slot."""
        handle = TaskHandle(slot, attempt, self._wheel)
        enter_handle(handle)
        attempt.start_clock()
        try:
            return await self._in_its_form(attempt, handle)
        except Exception as error:
            attempt.error = error
            raise

    async def _in_its_form(self, attempt: Attempt, handle: TaskHandle) -> Any:
        if attempt.job.mode == "async":
            return await attempt.job.body(handle)()
        if attempt.job.mode == "thread":
            return await self._in_thread(attempt, handle)
        return await self._in_process(attempt.job.body(None))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.shutdown(timeout=0)

    # --- threads -------------------------------------------------------------------------

    async def _in_thread(self, attempt: Attempt, handle: TaskHandle) -> Any:
        """A thread cannot be ended: the slot stays held until it ends by itself."""
        loop = asyncio.get_running_loop()
        work = real_work()
        call = attempt.job.body(BlockingHandle(handle, loop, work))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_threads, "layby-body")
        work.begin()
        running = loop.run_in_executor(self._threads, copy_context().run, call)
        running.add_done_callback(lambda _: work.end())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._outlive(running)
            raise

    async def _outlive(self, running: "asyncio.Future[Any]") -> None:
        self.stuck += 1
        try:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    continue  # asked again to end; it cannot
        finally:
            self.stuck -= 1
            if not running.cancelled():
                running.exception()  # nobody else will look at it

    # --- processes -----------------------------------------------------------------------

    async def _in_process(self, call: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def completed(completion: TaskCompletion) -> None:
            loop.call_soon_threadsafe(_settle, done, completion)

        with real_work().busy():
            executor = self._process_executor()
            submission = await loop.run_in_executor(None, executor.submit_wait, call, completed)
            try:
                return await done
            except asyncio.CancelledError:
                executor.cancel(submission.task_id)
                raise

    def _process_executor(self) -> ProcessTaskExecutor:
        if self._processes is None:
            count = self._process_count
            config = ProcessTaskExecutorConfig(max_inflight=count, max_workers=count)
            self._processes = ProcessTaskExecutor(config, keep_completions=False)
        return self._processes


def _settle(done: "asyncio.Future[Any]", completion: TaskCompletion) -> None:
    if done.done():
        return
    if completion.ok:
        done.set_result(completion.payload)
    else:
        done.set_exception(ProcessFailed(completion.error))
