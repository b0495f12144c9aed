"""A process that is started, heard and ended, as often as needed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Self

PATIENCE_S = 100
"""Only what hangs needs it."""


class Process:
    """What it says, on both outputs, can be waited for."""

    is_detached = False
    """Whether Ctrl-C passes it by, and whoever started it ends it."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        """A program of this Python."""
        self._command = [sys.executable, *command]
        self._environment = os.environ | environment
        self.said: list[str] = []
        self._news = threading.Condition()
        self.start()

    def start(self) -> None:
        self._is_silent = False
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=self.is_detached,
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
            self._news.wait_for(lambda: heard() or self._is_silent, PATIENCE_S)
            if not heard():
                raise AssertionError(f"never said {part!r}: {self.tail}")
            return heard()[0]

    def tell(self, line: str) -> None:
        """Whoever wants to show what it says overrides this."""

    @property
    def tail(self) -> str:
        return "\n".join(self.said[-40:])

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait until it has ended; its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._hear(line.rstrip())
        with self._news:
            self._is_silent = True
            self._news.notify_all()

    def _hear(self, line: str) -> None:
        with self._news:
            self.said.append(line)
            self._news.notify_all()
        self.tell(line)
