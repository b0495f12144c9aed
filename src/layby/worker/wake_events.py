"""Events that make a wheel poll at once, watched without a thread for each.

An `asyncio.Event` is awaited without a task: we start its `wait()` ourselves, which adds a future
to its waiters at once, and watch that future. However many polls share the event, it is one future.

A `threading.Event` offers only a blocking wait, which would cost a thread each. Its `set()`
releases one lock per waiter, in the thread that sets it; we add an object to its waiters whose
`release()` calls the loop. That is private to `threading` (`_cond`, `_waiters`, the same in every
Python 3 so far) and tested on each version we support; patching `event.set` instead would miss
whoever took the bound method before, as `threading.Timer(1, event.set)` does.

Listeners are told once each time an event goes from clear to set. One that stays set is watched
again after the first poll that finds it clear.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Wake = asyncio.Event | threading.Event


class WakeEvents(Generic[T]):
    """Which listeners to call for which event."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[T], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._watched: dict[int, _WatchedEvent[T]] = {}

    def add(self, event: Wake, listener: T) -> None:
        watched = self._watched.get(id(event)) or self._watch(event)
        watched.listeners[listener] = None
        if event.is_set():
            self._tell(listener)
        watched.listen()

    def remove(self, event: Wake, listener: T) -> None:
        watched = self._watched.get(id(event))
        if watched is None:
            return
        watched.listeners.pop(listener, None)
        if not watched.listeners:
            watched.stop_listening()
            del self._watched[id(event)]

    def rearm(self, event: Wake) -> None:
        """Called after a poll: if the event is clear by now, watch it again."""
        if watched := self._watched.get(id(event)):
            watched.listen()

    def _watch(self, event: Wake) -> "_WatchedEvent[T]":
        watched = _WatchedEvent(event, _waiter_for(event, self._loop), self._tell)
        self._watched[id(event)] = watched
        return watched


def check_wake(event: object) -> None:
    if not isinstance(event, asyncio.Event | threading.Event | None):
        raise TypeError(f"wake must be an asyncio.Event or a threading.Event, got {event!r}")


def _waiter_for(
    event: Wake, loop: asyncio.AbstractEventLoop
) -> "_AsyncioWaiter | _ThreadingWaiter":
    if isinstance(event, asyncio.Event):
        return _AsyncioWaiter(event)
    return _ThreadingWaiter(loop, event)


class _WatchedEvent(Generic[T]):
    def __init__(
        self, event: Wake, waiter: "_AsyncioWaiter | _ThreadingWaiter", tell: Callable[[T], None]
    ) -> None:
        self.listeners: dict[T, None] = {}
        self._event = event
        self._waiter = waiter
        self._tell = tell
        self._is_listening = False

    def listen(self) -> None:
        if not self._is_listening and not self._event.is_set():
            self._is_listening = True
            self._waiter.open(self._was_set)

    def stop_listening(self) -> None:
        self._is_listening = False
        self._waiter.close()

    def _was_set(self) -> None:
        if not self._is_listening:
            return
        self.stop_listening()
        for listener in list(self.listeners):
            self._tell(listener)
        self.listen()


class _AsyncioWaiter:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._waiting: Coroutine[Any, Any, Any] | None = None

    def open(self, on_set: Callable[[], None]) -> None:
        self._waiting = self._event.wait()
        future: asyncio.Future[Any] = self._waiting.send(None)
        future.add_done_callback(lambda _: on_set())

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


class _ThreadingWaiter:
    def __init__(self, loop: asyncio.AbstractEventLoop, event: threading.Event) -> None:
        self._loop = loop
        self._event: Any = event
        self._condition = self._event._cond  # noqa: SLF001
        self._on_set: Callable[[], None] | None = None

    def open(self, on_set: Callable[[], None]) -> None:
        self._on_set = on_set
        with self._condition:
            if not self._event.is_set():
                self._condition._waiters.append(self)  # noqa: SLF001
                return
        self.release()

    def release(self) -> None:
        """Called where the event is set, in place of waking a thread."""
        if self._on_set is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_set)

    def close(self) -> None:
        self._on_set = None
        with self._condition, suppress(ValueError):
            self._condition._waiters.remove(self)  # noqa: SLF001
