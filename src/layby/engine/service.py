"""One life-cycle for every loop: start, started, stop. Stopping twice is harmless and waits."""

import threading
from collections.abc import Callable


class Service:
    """Runs `loop` on a thread of its own until told to stop."""

    def __init__(self, name: str, loop: Callable[[], None], wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.started = threading.Event()
        self.stopping = threading.Event()
        self.stopped = threading.Event()

    def start(self) -> None:
        self._thread.start()
        self.started.wait()

    def stop(self, timeout: float | None = None) -> bool:
        """True when the loop has ended (False: it is still busy after `timeout` seconds)."""
        self.stopping.set()
        self._wake()
        return self.stopped.wait(timeout)

    def _run(self) -> None:
        self.started.set()
        try:
            self._loop()
        finally:
            self.stopped.set()
