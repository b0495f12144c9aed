"""Owns what a driver does next: an epoch, a pause, or nothing more. The same for all drivers."""

import math
import time
from typing import TYPE_CHECKING

from layby.executors import TaskExecutor
from layby.graph.graph_errors import GraphError

if TYPE_CHECKING:
    from layby.graph.runtime import GraphRuntime

MAX_EPOCHS = 10_000
LOOK_S = 0.05
"""An executor tells of what completes, not of what it drops or cancels, so it is asked as well."""

UNDER_WAY = ("queue_depth", "active_count", "parked_count")
"""Of an executor's metrics; a foreign one may not have them all."""


class DriverProgress:
    def __init__(
        self, runtime: "GraphRuntime", timeout: float | None = None, max_epochs: int | None = None
    ) -> None:
        self._runtime = runtime
        self._max_epochs = max_epochs
        self._timeout = timeout
        self._ends_at = None if timeout is None else time.monotonic() + timeout
        self.epochs = 0

    def next_pause(self) -> float | None:
        """0: run an epoch now; seconds: wait for news, at most so long; None: it is idle."""
        runtime = self._runtime
        busy = [_is_busy(runtime, each) for each in runtime.executors()]  # all of them are drained
        if runtime.is_closed:
            return None
        has_work, due = runtime.has_work(), runtime.next_due()
        if not (has_work or any(busy)) and due is None:
            return None
        left = self._time_left()
        if has_work:
            self._count_epoch()
            return 0.0
        return min(left, LOOK_S if due is None else min(due, LOOK_S) or 1e-4)

    def _count_epoch(self) -> None:
        if self._max_epochs is not None and self.epochs >= self._max_epochs:
            raise GraphError(
                f"graph '{self._runtime.graph_name}' is not idle after {self.epochs} epochs: if "
                "its async edges form a loop without end, run epochs yourself, or give max_epochs"
            )
        self.epochs += 1

    def _time_left(self) -> float:
        left = math.inf if self._ends_at is None else self._ends_at - time.monotonic()
        if left <= 0:
            raise self.timed_out()
        return left

    def timed_out(self) -> TimeoutError:
        return TimeoutError(
            f"graph '{self._runtime.graph_name}' is not idle after {self._timeout} s; "
            f"what is left: {self._runtime.what_is_left() or 'work that still runs'}"
        )


def _is_busy(runtime: "GraphRuntime", executor: TaskExecutor) -> bool:
    """Asked before it is drained: what it still has may be about to publish.

    Draining runs the work of a deterministic executor, and makes room in the others.
    """
    under_way = _under_way(executor)
    is_busy = any(under_way) if under_way else runtime.outstanding > 0
    executor.run_ready()
    return is_busy


def _under_way(executor: TaskExecutor) -> list[int]:
    """What it says it has; a foreign one may not say, and then the graph's own count holds."""
    metrics = getattr(executor, "metrics", None)
    told = metrics() if callable(metrics) else None
    return [getattr(told, name) for name in UNDER_WAY if hasattr(told, name)]
