"""User code that a thread calls for an event loop, and what must not stand behind it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def thread_call(call: Callable[..., Any], *args: Any) -> Any:
    """A future takes no StopIteration, and who awaits it would wait for ever: as in a coroutine,
    it becomes a RuntimeError.
    """
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error


async def in_own_thread(call: Callable[..., object], *args: Any) -> None:
    """The loop's own threads may all be held by user code that does not end."""
    thread = ThreadPoolExecutor(1)
    try:
        await asyncio.wrap_future(thread.submit(call, *args))
    finally:
        thread.shutdown(wait=False)
