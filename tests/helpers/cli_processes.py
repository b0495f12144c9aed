"""Processes of the command line, as a test starts, hears and ends them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

PATIENCE_S = 100
"""Only a test that hangs needs it."""


class Process:
    """What it says, on both outputs, can be waited for."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self._command = [sys.executable, *command]
        self._environment = os.environ | environment
        self.said: list[str] = []
        self._news = threading.Condition()
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def hear(self, part: str, after: int = 0) -> str:
        """A line that has this part, of those after so many; waits for it."""

        def heard() -> list[str]:
            return [each for each in self.said[after:] if part in each]

        with self._news:
            self._news.wait_for(lambda: heard() or not self._reader.is_alive(), PATIENCE_S)
            assert heard(), f"never said {part!r}: {self.tail}"
            return heard()[0]

    @property
    def tail(self) -> str:
        return "\n".join(self.said[-40:])

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

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

    def end(self) -> int:
        code = self._process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._hear(line.rstrip())
        self._hear("")

    def _hear(self, line: str) -> None:
        with self._news:
            self.said.append(line)
            self._news.notify_all()


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
