"""Says where the tasks of a loop wait, so that a deadlock needs no debugger."""

import asyncio
from pathlib import Path
from types import FrameType
from typing import Any

from layby.errors import LaybyError

_SHOWN = 10


class VirtualDeadlock(LaybyError):
    """Nothing can happen any more, or virtual time has run past its limit."""


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """`2 tasks are waiting: main at test_it.py:12 in main, ...`."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    shown = [f"{task.get_name()} {_where(task)}" for task in tasks[:_SHOWN]]
    if len(tasks) > _SHOWN:
        shown.append(f"and {len(tasks) - _SHOWN} more")
    count = "1 task is" if len(tasks) == 1 else f"{len(tasks)} tasks are"
    return f"{count} waiting: {', '.join(shown)}"


def _where(task: asyncio.Task[Any]) -> str:
    frame = _last_known_frame(task.get_coro())
    if frame is None:
        return "in compiled code"
    code = frame.f_code
    return f"at {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"


def _last_known_frame(coroutine: Any) -> FrameType | None:
    """The innermost frame outside asyncio: the user's line that waits."""
    found = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and (found is None or not _is_asyncio(frame)):
            found = frame
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _is_asyncio(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).parent == Path(asyncio.__file__).parent
