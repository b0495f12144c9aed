"""Calls `on_success` and `on_failure` when a try has ended.

They are called once the end is recorded, so none is called for an end that did not happen; a
process that dies in between calls none. They hold no slot, and nothing depends on them.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from layby.worker.real_work import real_work
from layby.worker.thread_call import thread_call

logger = logging.getLogger(__name__)

Callback = Callable[[], Any]
THREADS: Final = 4
"""How many plain functions are called at a time."""


class Callbacks:
    """Threads are started when the first plain function needs one."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None

    async def call(self, callback: Callback, task_execution_id: str) -> None:
        """Call a plain function in a thread. An error is logged, and changes nothing."""
        calling = asyncio.current_task()
        assert calling is not None
        self._under_way.add(calling)
        try:
            await self._call(callback)
        except (Exception, SystemExit):
            logger.exception("%s: a callback failed; the task stays as it is", task_execution_id)
        finally:
            self._under_way.discard(calling)

    async def finish(self, within: float) -> None:
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=within)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, callback: Callback) -> None:
        result = callback() if _is_async(callback) else await self._call_in_thread(callback)
        if inspect.isawaitable(result):
            await result

    async def _call_in_thread(self, callback: Callback) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "layby-callback")
        called = self._threads.submit(copy_context().run, thread_call, callback)
        with real_work().busy():
            return await asyncio.wrap_future(called)


def _is_async(callback: Callback) -> bool:
    function = callback.func if isinstance(callback, partial) else callback
    return inspect.iscoroutinefunction(function)
