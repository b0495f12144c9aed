"""Owns the way to wake one waiter, on a loop or in a thread, from wherever the news comes.

What is waited for, and in what order, is the business of whoever keeps the bell.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Bell(Protocol):
    def ring(self) -> bool:
        """Wake the waiter, now or as soon as it waits. False when nobody can hear it any more."""
        ...


class ThreadBell:
    """For one thread, again and again. Rung twice before it is heard, it was rung once."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> bool:
        with suppress(RuntimeError):  # rung before, and not yet heard
            self._silence.release()
        return True

    def nudge(self) -> None:
        self.ring()

    def wait(self, timeout: float | None = None) -> bool:
        return self._silence.acquire(timeout=-1 if timeout is None else max(timeout, 0))


class LoopBell:
    """For one coroutine of the running loop, again and again."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future = asyncio.get_running_loop().create_future()

    def ring(self) -> bool:
        return call_on(self._future.get_loop(), self._hear)

    def nudge(self) -> None:
        """Ring in the loop's own time, because the garbage collector may be the one who rings."""
        call_soon_on(self._future.get_loop(), self._hear)

    async def wait(self) -> None:
        await self._future
        self._future = self._future.get_loop().create_future()

    def _hear(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class BellQueue:
    """Bells in the order in which they joined. Whoever keeps it guards it."""

    __slots__ = ("_bells",)

    def __init__(self) -> None:
        self._bells: OrderedDict[Bell, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bells)

    def join(self, bell: Bell, *, first: bool = False) -> None:
        self._bells[bell] = None
        if first:
            self._bells.move_to_end(bell, last=False)

    def leave(self, bell: Bell) -> None:
        self._bells.pop(bell, None)

    def ring(self, count: int) -> None:
        while count > 0 and self._bells:
            bell, _ = self._bells.popitem(last=False)
            count -= bell.ring()

    def ring_all(self) -> None:
        self.ring(len(self._bells))


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    """Call now when the loop runs in this thread, else soon. False when the loop is closed."""
    if not is_running_here(loop):
        return call_soon_on(loop, callback)
    callback()
    return True


def call_soon_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True


def is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
