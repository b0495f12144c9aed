"""Owns how a patient submitter waits for room: as a thread, and as a coroutine.

The executor says how to try once (None: there is no room, and the bell stands in its queue) and
how to leave that queue; it rings when there is room again.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from layby.executors.bells import Bell, LoopBell, ThreadBell
from layby.executors.deadline import Deadline
from layby.executors.records import TaskSubmission


class Attempt(Protocol):
    def __call__(self, bell: Bell, *, first: bool) -> TaskSubmission | None:
        """`first`: who was called before, and came too late, goes back to the head."""
        ...


def submit_when_room(
    attempt: Attempt, last_attempt: Callable[[Bell], TaskSubmission], timeout: float | None
) -> TaskSubmission:
    deadline = Deadline(timeout)
    bell, called = ThreadBell(), False
    while (submission := attempt(bell, first=called)) is None:
        called = bell.wait(deadline.remaining())
        if not called:
            return last_attempt(bell)
    return submission


async def submit_when_room_async(attempt: Attempt, leave: Callable[[Bell], None]) -> TaskSubmission:
    bell, called = LoopBell(), False
    while (submission := attempt(bell, first=called)) is None:
        try:
            await bell.wait()
        except asyncio.CancelledError:
            leave(bell)
            raise
        called = True
    return submission
