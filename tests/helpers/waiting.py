"""How these tests wait: for the thing itself, with a timeout that means failure."""

import asyncio
import threading
from collections.abc import Callable

PATIENCE = 90.0


class Gate:
    """Work that says when it has started and ends when it is told to."""

    def __init__(self, payload: object = None, error: BaseException | None = None) -> None:
        self.started = threading.Event()
        self.payload = payload
        self.error = error
        self._open = threading.Event()

    def __call__(self) -> object:
        self.started.set()
        assert self._open.wait(PATIENCE), "nobody opened the gate"
        if self.error is not None:
            raise self.error
        return self.payload

    def open(self) -> None:
        self._open.set()

    def wait_until_started(self) -> None:
        assert self.started.wait(PATIENCE), "the task never started: a wake-up was lost"


def eventually(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds. What other threads do next is not ours to order."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.001)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")


async def settled(turns: int = 12) -> None:
    """Let everything run that is ready to run; with no I/O about, these turns are enough."""
    for _ in range(turns):
        await asyncio.sleep(0)


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def assert_identities(metrics) -> None:
    """What must hold between the counters at every snapshot."""
    assert metrics.queued_count == metrics.submitted_count
    assert metrics.submitted_count == (
        metrics.completed_count
        + metrics.failed_count
        + metrics.cancelled_count
        + metrics.queue_depth
        + metrics.active_count
        + metrics.parked_count
    )
    assert metrics.cancellation_requested_count == metrics.cancellation_observed_count
    assert metrics.max_inflight_count <= metrics.max_outstanding_count
