"""Owns what a driver does next: an epoch, a pause, or nothing more. The same for all drivers."""

import time
from typing import TYPE_CHECKING

from layby.executors import TaskExecutor
from layby.graph.errors import GraphError

if TYPE_CHECKING:
    from layby.graph.runtime import GraphRuntime

MAX_EPOCHS = 10_000
LOOK_S = 0.05
"""An executor tells of what completes, not of what it drops or cancels, so it is asked as well."""

UNDER_WAY = ("queue_depth", "active_count", "parked_count")
"""Of an executor's metrics; a foreign one may not have them all."""


class Progress:
    def __init__(self, runtime: "GraphRuntime", timeout: float | None, max_epochs: int) -> None:
        self._runtime = runtime
        self._max_epochs = max_epochs
        self._timeout = timeout
        self._ends_at = None if timeout is None else time.monotonic() + timeout
        self.epochs = 0

    def next_pause(self) -> float | None:
        """0: run an epoch now; seconds: wait for news, at most so long; None: it is idle."""
        runtime = self._runtime
        busy = [_is_busy(each) for each in runtime.executors()]  # all of them are drained
        if runtime.is_closed:
            return None
        if runtime.has_work():
            self._check_count()
            self.epochs += 1
            return 0.0
        due = runtime.next_due()
        if not any(busy) and due is None:
            return None
        return self._within_time(LOOK_S if due is None else min(due, LOOK_S) or 1e-4)

    def _check_count(self) -> None:
        if self.epochs >= self._max_epochs:
            raise GraphError(
                f"graph '{self._runtime.graph_name}' is not idle after {self.epochs} epochs: if "
                "its async edges form a loop without end, run epochs yourself, or give max_epochs"
            )

    def _within_time(self, pause: float) -> float:
        if self._ends_at is None:
            return pause
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"graph '{self._runtime.graph_name}' is not idle after {self._timeout} s: "
                "work is still running, or the window of a trigger is open"
            )
        return min(pause, left)


def _is_busy(executor: TaskExecutor) -> bool:
    """Asked before it is drained: what it still has may be about to publish.

    Draining runs the work of a deterministic executor, and makes room in the others.
    """
    metrics = executor.metrics()
    executor.run_ready()
    return any(getattr(metrics, name, 0) for name in UNDER_WAY)
