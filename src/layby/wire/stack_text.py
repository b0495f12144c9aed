"""The traceback of an error as text: the user's frames without ours, and never very long."""

import asyncio
import concurrent.futures
import os
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from layby.errors import LaybyError

MAX_TRACEBACK_CHARS: Final = 8_000
ROOM_FOR_CUT: Final = 100
"""What says how much was left out counts as well."""

_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_MACHINERY: Final = (
    *(f"{Path(each).parent}{os.sep}" for each in (asyncio.__file__, concurrent.futures.__file__)),
    "<frozen ",  # modules of Python itself, such as the one with `dict.update` for mappings
)
"""What runs bodies for us, or is called by us. What user code calls of it is shown."""


def stack_text(error: BaseException) -> str:
    """As Python shows it, with the errors it was raised from; empty if it names no place.

    An error of another kind that never was in user code is a bug of ours: all of it is shown.
    """
    told = traceback.TracebackException.from_exception(error, lookup_lines=False)
    if isinstance(error, LaybyError) or any(map(_users, _chain(told))):
        for each in _chain(told):
            each.__context__ = _if_of_users(each.__context__)
            each.stack = _users(each)
    if not any(each.stack for each in _chain(told)) and not hasattr(error, "__notes__"):
        return ""
    return bounded("".join(told.format()).rstrip())


def place_text(frames: Iterable[traceback.FrameSummary], error: BaseException) -> str:
    """As if `error` had been raised in the last frame; empty if none of them is the user's."""
    stack = traceback.StackSummary.from_list(_frames_of_users(frames))
    last = "".join(traceback.format_exception_only(error))
    told = ["Traceback (most recent call last):\n", *stack.format(), last]
    return bounded("".join(told).rstrip()) if stack else ""


def bounded(text: str) -> str:
    """Both ends: the beginning says how it was called, the end what was raised.

    The end alone would be nothing but the message, if that is long.
    """
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = (MAX_TRACEBACK_CHARS - ROOM_FOR_CUT) // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def _users(told: traceback.TracebackException) -> traceback.StackSummary:
    return traceback.StackSummary.from_list(_frames_of_users(told.stack))


def _if_of_users(
    handled: traceback.TracebackException | None,
) -> traceback.TracebackException | None:
    """What we handled ourselves while we raised another error is not worth showing."""
    is_shown = handled is not None and (_users(handled) or not handled.stack)
    return handled if is_shown else None


def _frames_of_users(
    frames: Iterable[traceback.FrameSummary],
) -> Iterator[traceback.FrameSummary]:
    """A body is always called by us; what we call in turn is of no interest either."""
    is_ours = True
    for frame in frames:
        is_ours = frame.filename.startswith(_OURS) or (
            is_ours and frame.filename.startswith(_MACHINERY)
        )
        if not is_ours:
            yield frame


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The error, those it came from, and those of a group; a chain may be long."""
    waiting = [told]
    while waiting:
        each = waiting.pop()
        yield each
        others = (each.__cause__, each.__context__, *(each.exceptions or ()))
        waiting += [other for other in others if other is not None]
