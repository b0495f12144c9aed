"""Owns how a submitter waits for room: in a thread, and in a coroutine.

The executor gives a function that tries once (None: there is no room, and the waker is in its
queue) and one that leaves that queue; it wakes the waiter when there is room again.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from layby.executors.deadline import Deadline
from layby.executors.task_records import TaskSubmission
from layby.executors.wakers import LoopWaker, ThreadWaker, Waker


class TrySubmit(Protocol):
    def __call__(self, waker: Waker, *, first: bool) -> TaskSubmission | None:
        """`first`: it was woken, but came too late, and goes back to the head of the queue."""
        ...


def submit_when_room(
    try_submit: TrySubmit, submit_anyway: Callable[[Waker], TaskSubmission], timeout: float | None
) -> TaskSubmission:
    deadline = Deadline(timeout)
    waker, woken = ThreadWaker(), False
    while (submission := try_submit(waker, first=woken)) is None:
        woken = waker.wait(deadline.remaining())
        if not woken:
            return submit_anyway(waker)
    return submission


async def submit_when_room_async(
    try_submit: TrySubmit, leave_queue: Callable[[Waker], None]
) -> TaskSubmission:
    waker, woken = LoopWaker(), False
    while (submission := try_submit(waker, first=woken)) is None:
        try:
            await waker.wait()
        except asyncio.CancelledError:
            leave_queue(waker)
            raise
        woken = True
    return submission
