"""How a worker stops: each task is handed back when its body has ended, and not before.

Coroutines are cancelled, after the function of a running checkpoint has ended. A plain `def` and a
body in a process of its own cannot be asked: they go on, with their leases, and their results
count, until `grace` is over. Then processes are killed. What still runs after that is handed back
anyway, and that is logged and counted: somebody else may begin it beside the old body.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from layby.worker.attempt import Attempt

END_S: Final = 1.0
"""How long bodies may take to end after `end_hard`."""
REPORT_S: Final = 3.0
"""How long reports, and answers that bring tasks, may take; what the store has not heard of by then
is taken over anyway.
"""
LISTED: Final = 5
"""How many tasks a log line names; the rest are counted."""


class StopHost(Protocol):
    """What stopping needs from the worker."""

    attempts: dict[str, Attempt]

    def hand_back(self, attempt: Attempt) -> None: ...

    def report_overlap(self, attempt: Attempt) -> None: ...

    @property
    def holds_nothing(self) -> bool: ...

    def are_answered(self, mark: int) -> bool:
        """Whether all requests are over that could have brought tasks, as of `mark`."""
        ...


class WorkerStop:
    """Call `changed` whenever a body has ended or something was reported."""

    def __init__(self, host: StopHost, grace: float, mark: int = 0) -> None:
        """`mark`: what was sent after it brings nothing."""
        self._host = host
        self._mark = mark
        self._grace = grace
        self._ends_at: float | None = None
        self._changed = asyncio.Event()

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Tasks whose bodies have not ended."""
        return tuple(each.id for each in self._host.attempts.values() if not each.is_reported)

    @property
    def seconds_left(self) -> float:
        if self._ends_at is None:
            return self._grace
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

    def changed(self) -> None:
        self._changed.set()

    async def end_bodies(self) -> None:
        """Return when every body has ended and is reported, or nothing more can be done."""
        self._ends_at = asyncio.get_running_loop().time() + self._grace
        for attempt in list(self._host.attempts.values()):
            attempt.ask_to_stop()
        try:
            if not await self._wait_until(self._have_ended, self._grace):
                await self._end_hard()
        finally:
            self._hand_back_the_rest()
        await self._wait_until(self._may_leave, REPORT_S)

    def _may_leave(self) -> bool:
        """What an answer brings now goes back as it came; later nobody knows that it was no try."""
        return self._host.holds_nothing and self._host.are_answered(self._mark)

    async def _end_hard(self) -> None:
        for attempt in list(self._host.attempts.values()):
            attempt.end_hard()
        await self._wait_until(self._have_ended, END_S)

    def _hand_back_the_rest(self) -> None:
        for attempt in list(self._host.attempts.values()):
            self._host.report_overlap(attempt)
            self._host.hand_back(attempt)

    def _have_ended(self) -> bool:
        return not self.waits_for

    async def _wait_until(self, condition: Callable[[], bool], within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True


def named(tasks: tuple[str, ...]) -> str:
    """Their ids, for a log line."""
    shown = ", ".join(tasks[:LISTED])
    return shown if len(tasks) <= LISTED else f"{shown} and {len(tasks) - LISTED} more"
