"""Calls of user code in threads on behalf of an event loop."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

_thread_state = threading.local()


def thread_call(call: Callable[..., Any], *args: Any) -> Any:
    """Call it, turning StopIteration into a RuntimeError, as a coroutine does: a future cannot
    hold a StopIteration, and whoever awaits it would wait for ever.
    """
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error


class ThreadPlace:
    """Where a call in another thread is now."""

    def __init__(self) -> None:
        self._ident: int | None = None

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        self._ident = threading.get_ident()
        return call(*args)

    def traceback(self) -> TracebackType | None:
        """As if it had raised there; None if it has not begun or has ended."""
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented
        frame = None if self._ident is None else frames.get(self._ident)
        found: TracebackType | None = None
        while frame is not None and frame.f_code is not ThreadPlace.run.__code__:
            found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno or 0)
            frame = frame.f_back
        return None if frame is None else found


def set_loop_of_thread(loop: asyncio.AbstractEventLoop) -> None:
    """From now on this thread evaluates conditions for that loop."""
    _thread_state.loop = loop


def on_loop(call: Callable[[], object]) -> None:
    """Call it now, or, in a thread that evaluates conditions, soon and on its loop."""
    loop: asyncio.AbstractEventLoop | None = getattr(_thread_state, "loop", None)
    if loop is None:
        call()
    else:
        loop.call_soon_threadsafe(call)


async def in_own_thread(call: Callable[..., object], *args: Any) -> None:
    """In a new thread: the loop's own may all be held by user code that does not end."""
    thread = ThreadPoolExecutor(1)
    try:
        await asyncio.wrap_future(thread.submit(call, *args))
    finally:
        thread.shutdown(wait=False)
