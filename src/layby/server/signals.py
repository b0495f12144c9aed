"""How a process that serves or works is told to stop."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator


def asked_to_stop(heard: Callable[[], None]) -> asyncio.Event:
    """Set by the first signal that says so, when `heard` is called; a second ends all at once."""
    stop = asyncio.Event()

    def hear() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()
        heard()

    for number in _signals():
        asyncio.get_running_loop().add_signal_handler(number, hear)
    return stop


def _signals() -> Iterator[signal.Signals]:
    """A terminal that is closed says SIGHUP, unless it was told not to (nohup)."""
    yield from (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP
