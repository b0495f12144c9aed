"""Processes of the command line, as a test starts, hears and ends them."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deploy.topology import process
from deploy.topology.process import PATIENCE_S


class Process(process.Process):
    """What a test does to it besides."""

    def pause(self, seconds: float) -> None:
        """It stands still and does not know it."""
        self.send(signal.SIGSTOP)
        threading.Event().wait(seconds)
        self.send(signal.SIGCONT)

    def stop(self) -> float:
        """Ask it to; how many seconds it took, and it must end well."""
        began = time.monotonic()
        self.send(signal.SIGTERM)
        assert self.end() == 0, self.tail
        return time.monotonic() - began


def until(condition: Callable[[], object], *processes: Process) -> None:
    """Look until it is true; the processes must live as long."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        for each in processes:
            assert each.is_alive, each.tail
        pause.wait(0.01)
    raise AssertionError("\n".join(each.tail for each in processes) or "it never came")


def layby(*arguments: str | Path, **environment: str) -> Process:
    return Process(["-m", "layby.cli", *map(str, arguments)], **environment)
