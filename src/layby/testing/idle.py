"""Virtual time: a loop that would wait for its next timer jumps to it at once.

Three attributes of the running loop are replaced meanwhile, on the instance, and restored after:
`time`, `run_in_executor` (to count what is in flight), and `select` of its selector. Whenever the
loop has nothing ready, it asks the selector to wait until its next timer; we check whether
anything real may still come first, and if not, move the clock by exactly that wait.

Time is a whole number of microseconds. A loop timer is a float and may miss its instant by the
last bit, so the loop's resolution is half a microsecond meanwhile: a callback at T milliseconds
is called when `clock.now()` has reached T, never one early, which would spin.

Why not a loop of our own: users bring theirs (pytest plugins, `asyncio.run`), and what is tested
should run on the loop it will run on.
"""

# ruff: noqa: SLF001 - the loop's selector, timers and self-pipe have no public names

import asyncio
import logging
import os
import socket
import threading
import time
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from selectors import SelectorKey
from typing import Any

from layby.testing.deadlock import VirtualDeadlock, describe_tasks
from layby.testing.overrides import Overrides
from layby.testing.virtual_clock import MICROS, VirtualClock

logger = logging.getLogger(__name__)

Events = list[tuple[SelectorKey, int]]

_UNCOUNTED_THREADS_S = 1.0
"""Real seconds that an uncounted thread may take to wake a loop that has nothing else."""


class IdleWatch:
    """Replaces the selector's `select`, and decides whether to wait or to jump."""

    def __init__(
        self,
        loop: BaseSelectorEventLoop,
        clock: VirtualClock,
        limit: float,
        patience: float,
        io_grace: float,
    ) -> None:
        self._loop: Any = loop
        self._clock = clock
        self._limit = limit
        self._patience = patience
        self._io_grace = io_grace
        self._wait: Callable[[float | None], Events] = self._loop._selector.select
        self._run_in_executor = loop.run_in_executor
        self._real_time = loop.time
        self._overrides = Overrides()
        self._task = asyncio.current_task(loop)
        self._stuck_work = 0
        self._cancels = 0
        self._deadlock: VirtualDeadlock | None = None

    def install(self) -> None:
        self._overrides.set(self._loop._selector, "select", self.select)
        self._overrides.set(self._loop, "time", self._clock.time)
        self._overrides.set(self._loop, "run_in_executor", self.run_in_executor)
        self._overrides.set(self._loop, "_clock_resolution", 0.5 / MICROS)

    def remove(self) -> None:
        """Restore everything; a timer with ten seconds to go still has ten seconds to go."""
        self._overrides.undo()
        ahead = self._clock.time() - self._real_time()
        for timer in self._loop._scheduled:
            timer._when -= ahead

    def run_in_executor(self, *args: Any) -> asyncio.Future[Any]:
        future = self._run_in_executor(*args)
        self._clock.work.begin()
        future.add_done_callback(lambda _: self._clock.work.end())
        return future

    def select(self, timeout: float | None = None) -> Events:
        """Called once per turn of the loop; an empty answer makes it look again."""
        if timeout is not None and timeout <= 0:
            return self._wait(0)
        events = self._wait_for_outside(timeout)
        if events is not None:
            return events
        if self._clock.tell_idle():
            return []
        if timeout is None:
            return self._wait_for_foreign_wakeup()
        return self._jump(timeout)

    def _jump(self, timeout: float) -> Events:
        if self._clock.elapsed + timeout > self._limit:
            return self._give_up(f"virtual time would run past its limit of {self._limit:g} s")
        self._clock.jump(timeout)
        return []

    # --- what may still come from outside ------------------------------------------------

    def _wait_for_outside(self, timeout: float | None) -> Events | None:
        """Events from outside, perhaps after a wait; None when nothing is to be expected."""
        if self._is_work_under_way():
            return self._wait_for_work(timeout)
        return self._wait(self._io_grace if self._has_connections() else 0) or None

    def _is_work_under_way(self) -> bool:
        self._stuck_work = min(self._stuck_work, self._clock.work.count)
        return self._clock.work.count > self._stuck_work

    def _wait_for_work(self, timeout: float | None) -> Events:
        since = time.monotonic()
        events = self._wait(self._patience)
        is_silent = not events and time.monotonic() - since >= self._patience
        if is_silent and timeout is not None:
            self._ignore_stuck_work()
        return events

    def _ignore_stuck_work(self) -> None:
        self._stuck_work = self._clock.work.count
        logger.warning(
            "%d threads or processes have held virtual time for %g real seconds; it now goes on",
            self._stuck_work,
            self._patience,
        )

    def _has_connections(self) -> bool:
        return any(not _is_listening(fd) for fd in self._foreign_files())

    def _foreign_files(self) -> list[int]:
        """File descriptors registered besides the pipe by which the loop wakes itself."""
        files = self._loop._selector.get_map()
        own = self._loop._ssock.fileno()
        return [] if len(files) <= 1 else [fd for fd in files if fd != own]

    # --- when nothing can happen any more ------------------------------------------------

    def _wait_for_foreign_wakeup(self) -> Events:
        """No timer, no counted thread: only a foreign socket or thread can wake the loop."""
        if self._foreign_files():
            return self._wait(None)
        if threading.active_count() > 1 and (events := self._wait(_UNCOUNTED_THREADS_S)):
            return events
        return self._give_up("nothing can happen any more: no timer, no thread, no socket")

    def _give_up(self, why: str) -> Events:
        """Cancel the test, which is waiting somewhere; `__aexit__` raises the reason."""
        error = VirtualDeadlock(f"{why}; {describe_tasks(self._loop)}")
        if self._task is None or self._task.done() or self._cancels >= 100:
            raise error
        self._deadlock = self._deadlock or error
        self._cancels += 1
        self._task.cancel(str(error))
        return []

    def take_deadlock(self) -> VirtualDeadlock | None:
        """The error, unless the task has been cancelled by somebody else as well."""
        if self._task is None or self._deadlock is None:
            return None
        for _ in range(self._cancels):
            self._task.uncancel()
        return None if self._task.cancelling() else self._deadlock


def _is_listening(fd: int) -> bool:
    """A peer in this process that connects to it is counted or registered itself."""
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:  # not a socket
        return False
