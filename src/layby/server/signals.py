"""How a server or worker process is told to stop."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import Final

SAME_SIGNAL_S: Final = 1.0
"""Signals within this time count as one: a terminal and a supervisor may both send it."""


def end_when_asked() -> None:
    """Until `stop_requested`: a process that loads code, or waits for its database, has begun
    nothing, and that may take long. Nor would its event loop hear a signal meanwhile.

    The first process of a container hears no signal that it does not handle.
    """
    for each in _signals():
        signal.signal(each, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # an exception could be swallowed by the code that is loaded


def stop_requested(on_stop: Callable[[], object]) -> asyncio.Event:
    """An event that the first signal to stop sets; `on_stop` is called then.

    Another signal, at least a second later, ends the process at once with exit code 128 plus its
    number, even if the event loop was blocked before the first and has not heard of it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_at: float | None = None

    def stop_once() -> None:
        if not stop.is_set():
            stop.set()
            on_stop()

    def exit_second_time(number: int, _: FrameType | None) -> None:
        nonlocal first_at
        first_at = first_at or monotonic()
        if monotonic() - first_at >= SAME_SIGNAL_S:
            os._exit(128 + number)

    for each in _signals():
        loop.add_signal_handler(each, stop_once)
        signal.signal(each, exit_second_time)  # the loop hears it all the same
    return stop


def _signals() -> Iterator[signal.Signals]:
    """Closing a terminal sends SIGHUP, which is honoured unless it is ignored (nohup)."""
    yield from (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP
