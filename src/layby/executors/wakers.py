"""Owns waking one waiter, on a loop or in a thread, from any thread.

What is waited for, and in what order, is up to the owner of the waker.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Waker(Protocol):
    def wake(self) -> bool:
        """Wake the waiter, now or as soon as it waits. False when it can no longer be woken."""
        ...


class ThreadWaker:
    """For one thread, reusable. Two wakes before a wait count as one."""

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> bool:
        with suppress(RuntimeError):  # woken before, and has not waited since
            self._asleep.release()
        return True

    def wake_soon(self) -> None:
        self.wake()

    def wait(self, timeout: float | None = None) -> bool:
        return self._asleep.acquire(timeout=-1 if timeout is None else max(timeout, 0))


class LoopWaker:
    """For one coroutine of the running loop, reusable."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future = asyncio.get_running_loop().create_future()

    def wake(self) -> bool:
        return call_on(self._future.get_loop(), self._wake)

    def wake_soon(self) -> None:
        """Wake in a callback of the loop: the garbage collector may be the caller."""
        call_soon_on(self._future.get_loop(), self._wake)

    async def wait(self) -> None:
        await self._future
        self._future = self._future.get_loop().create_future()

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class WakerQueue:
    """Bells in the order in which they joined. Its owner does the locking."""

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: OrderedDict[Waker, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._wakers)

    def join(self, waker: Waker, *, first: bool = False) -> None:
        self._wakers[waker] = None
        if first:
            self._wakers.move_to_end(waker, last=False)

    def leave(self, waker: Waker) -> None:
        self._wakers.pop(waker, None)

    def wake(self, count: int) -> None:
        while count > 0 and self._wakers:
            waker, _ = self._wakers.popitem(last=False)
            count -= waker.wake()

    def wake_all(self) -> None:
        self.wake(len(self._wakers))


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
