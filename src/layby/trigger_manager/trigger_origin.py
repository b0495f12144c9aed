"""Whose code runs: each trigger, and each poll, has a context that names it.

Tasks and callbacks that its code begins inherit that, so they are known as well.
"""

import asyncio
from collections.abc import Iterable
from contextvars import Context, ContextVar
from types import FrameType

Key = tuple[str, bytes, str, str | None]
"""Of a poll: the class of its trigger, the arguments as JSON, for whom it is asked, and the id of
the trigger if it is asked for that alone.
"""

Origin = str | Key
"""The id of a trigger, or the poll that some of them share."""

current_origin: ContextVar[Origin | None] = ContextVar("layby_trigger_origin", default=None)


def origin_in(frames: Iterable[FrameType]) -> Origin | None:
    """Of the callback that a loop runs in these frames; None where the loop is not asyncio's own.

    A Task does not tell its context before Python 3.12, but the handle of its step has it.
    """
    step = asyncio.Handle._run.__code__  # noqa: SLF001
    for frame in frames:
        if frame.f_code is step:
            context = getattr(frame.f_locals.get("self"), "_context", None)
            return context.get(current_origin) if isinstance(context, Context) else None
    return None
