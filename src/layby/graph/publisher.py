"""Owns publication: the one lock, all channels, and what has to be told after it is released.

Work may complete on any thread, so every publication goes through here. Nothing here calls a
component: publishing stages, barriers and epoch boundaries make visible.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from layby.executors import HealthEvent, HealthEventSink
from layby.graph.channel import Channel
from layby.graph.messages import Entry
from layby.graph.refusals import CLOSED
from layby.graph.trace import Trace

OVERWRITTEN = "oldest message dropped to make room"


class _Notice(NamedTuple):
    """Collected while the lock is held, told after it is released."""

    channel: Channel
    reason: str
    times: int = 1


class Publisher:
    """`at_once`: what is published is visible in the same call, as on a bare bus."""

    def __init__(
        self,
        channels: Iterable[Channel],
        *,
        at_once: bool = False,
        sink: HealthEventSink | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.channels = tuple(channels)
        self.async_channels = tuple(each for each in self.channels if each.is_async)
        self.staged: dict[Channel, None] = {}
        """Immediate channels with something for the next barrier."""
        self.at_once = at_once
        self.sink = sink
        self.trace = trace
        self.closed = False
        self.now = 0.0
        self.boundary = 0
        """Boundaries and barriers so far: what becomes visible together has the same number."""
        self.sleepers: list[Callable[[], object]] = []
        """Wakes the driver that waits, if one does. Set before it looks whether it must wait."""
        self.refused = self.unconnected = 0

    # -- publishing

    def publish(self, channels: tuple[Channel, ...], entry: Entry) -> str:
        """On all of these channels, or on none; then the reason, else empty."""
        notices: list[_Notice] = []
        self.lock.acquire()
        try:
            reason = self._admit(channels, entry, notices)
        finally:
            self.lock.release()
        self._tell(notices)
        if self.sleepers and not reason:
            self.wake()
        return reason

    def wake(self) -> None:
        """Something has come: whoever waits for it looks again. On any thread."""
        with suppress(IndexError):  # another thread was first
            while self.sleepers:
                self.sleepers.pop()()

    def count_refused(self) -> None:
        with self.lock:
            self.refused += 1

    def _admit(self, channels: tuple[Channel, ...], entry: Entry, notices: list[_Notice]) -> str:
        if self.closed:
            return CLOSED
        for channel in channels:
            if reason := channel.refusal():
                channel.count_refusal()
                self.refused += 1
                notices.append(_Notice(channel, reason))
                return reason
        if not channels:
            self.unconnected += 1
        for channel in channels:
            if channel.stage(entry):
                notices.append(_Notice(channel, OVERWRITTEN))
            if self.at_once:
                self.boundary += 1
                self._show(channel, notices)
            elif not channel.is_async:
                self.staged[channel] = None
        return ""

    # -- becoming visible

    def begin_epoch(self, now: float) -> None:
        """Everything that was ready becomes visible together."""
        notices: list[_Notice] = []
        self.lock.acquire()
        try:
            self.now = now
            self.boundary += 1
            for channel in self.async_channels:
                if channel.ready:
                    self._show(channel, notices)
        finally:
            self.lock.release()
        self._tell(notices)

    def end_epoch(self) -> None:
        self.lock.acquire()
        try:
            for channel in self.async_channels:
                channel.end_epoch()
        finally:
            self.lock.release()

    def commit_staged(self) -> None:
        """A barrier: what was published on immediate edges becomes visible."""
        notices: list[_Notice] = []
        self.lock.acquire()
        try:
            self.boundary += 1
            for channel in self.staged:
                self._show(channel, notices)
            self.staged.clear()
        finally:
            self.lock.release()
        self._tell(notices)

    def _show(self, channel: Channel, notices: list[_Notice]) -> None:
        arrived = channel.ready or channel.next
        if self.trace is not None:
            self.trace.add("visible", channel.id, str(len(arrived)))
        if dropped := channel.commit(arrived, self.now, self.boundary):
            notices.append(_Notice(channel, OVERWRITTEN, dropped))

    def close(self) -> None:
        """From here on everything is refused; what is in flight stays where it is."""
        with self.lock:
            self.closed = True
            for channel in self.channels:
                channel.close()

    def _tell(self, notices: list[_Notice]) -> None:
        if self.sink is None:
            return
        for channel, reason, times in notices:
            policy = channel.edge.policy
            if not policy.health_events:
                continue
            self.sink.emit(
                HealthEvent(
                    "channel_overflow",
                    source="channel",
                    component_id=channel.edge.source.component,
                    channel_id=channel.id,
                    edge_id=channel.id,
                    policy=policy.overflow,
                    reason=reason,
                    sequence=channel.sequence,
                    depth=len(channel.waiting) + channel.inflight,
                    capacity=channel.capacity,
                    occurrence_count=times,
                )
            )
