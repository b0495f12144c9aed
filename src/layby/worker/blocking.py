"""The handle for plain `def` bodies: the same calls, blocking the body's own thread."""

import asyncio
from typing import Any

from layby.worker.handle import Condition, Seconds, TaskHandle
from layby.worker.real_work import RealWork


class BlockingHandle:
    """Waits free the slot but keep the thread; prefer `async def` for long waits."""

    def __init__(self, handle: TaskHandle, loop: asyncio.AbstractEventLoop, work: RealWork) -> None:
        self._handle = handle
        self._loop = loop
        self._work = work

    def defer_until(
        self, condition: Condition, poll_interval: Seconds | None = None, **options: Any
    ) -> None:
        self._wait(self._handle.defer_until(condition, poll_interval, **options))

    def sleep(self, seconds: Seconds, **options: Any) -> None:
        self._wait(self._handle.sleep(seconds, **options))

    def wait_for(self, promise_id: str, timeout: Seconds | None = None, **options: Any) -> Any:
        return self._wait(self._handle.wait_for(promise_id, timeout, **options))

    def promise(self, name: str) -> "BlockingToken":
        token = self._wait(self._handle.promise(name))
        return BlockingToken(self, token.id)

    def checkpoint(self, key: str, fn: Any, *args: Any) -> Any:
        """`fn` runs on this thread; only its result travels."""
        found = self._handle.recalled(key, args)
        if found is not None:
            return found.value
        return self._wait(self._handle.keep(key, args, fn(*args)))

    def yield_slot(self) -> None:
        self._wait(self._handle.yield_slot())

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        self._loop.call_soon_threadsafe(self._handle.progress, fraction, text)

    def is_slot_held(self) -> bool:
        return self._handle.is_slot_held()

    @property
    def is_cancelled(self) -> bool:
        return self._handle.is_cancelled

    @property
    def try_number(self) -> int:
        return self._handle.try_number

    @property
    def task_execution_id(self) -> str | None:
        return self._handle.task_execution_id

    def _wait(self, coroutine: Any) -> Any:
        """Wait on the loop; meanwhile this thread does no real work."""
        asked = asyncio.run_coroutine_threadsafe(self._answered(coroutine), self._loop)
        self._work.end()
        return asked.result()

    async def _answered(self, coroutine: Any) -> Any:
        try:
            return await coroutine
        finally:
            self._work.begin()


class BlockingToken:
    def __init__(self, handle: BlockingHandle, promise_id: str) -> None:
        self._handle = handle
        self.id = promise_id

    def wait(self, timeout: Seconds | None = None) -> Any:
        return self._handle.wait_for(self.id, timeout, key=self.id)
