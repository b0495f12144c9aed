"""User code that a thread calls for an event loop, and what must not stand behind it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_thread_state = threading.local()


def thread_call(call: Callable[..., Any], *args: Any) -> Any:
    """A future takes no StopIteration, and who awaits it would wait for ever: as in a coroutine,
    it becomes a RuntimeError.
    """
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error


def set_loop_of_thread(loop: asyncio.AbstractEventLoop) -> None:
    """From now on this thread asks conditions for that loop."""
    _thread_state.loop = loop


def on_loop(call: Callable[[], object]) -> None:
    """Call it now, or, in a thread that asks conditions, soon and on the loop it asks for."""
    loop: asyncio.AbstractEventLoop | None = getattr(_thread_state, "loop", None)
    if loop is None:
        call()
    else:
        loop.call_soon_threadsafe(call)


async def in_own_thread(call: Callable[..., object], *args: Any) -> None:
    """The loop's own threads may all be held by user code that does not end."""
    thread = ThreadPoolExecutor(1)
    try:
        await asyncio.wrap_future(thread.submit(call, *args))
    finally:
        thread.shutdown(wait=False)
