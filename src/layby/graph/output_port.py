"""Owns an output port while it runs: publishes on all of its edges, or on none of them."""

from itertools import count
from typing import Any

from layby.graph.channel import Channel
from layby.graph.endpoints import Endpoint
from layby.graph.messages import (
    ACCEPTED,
    Failure,
    Lineage,
    PublicationRefused,
    PublishResult,
)
from layby.graph.publisher import Publisher
from layby.graph.refusals import CLOSED, NOBODY


class ErrorReports:
    """What went wrong in one component and has nobody to answer to."""

    def __init__(self, publisher: Publisher, output_port: "OutputPort | None" = None) -> None:
        self.output_port = output_port
        self._publisher = publisher
        self.published = 0
        self.unheard = 0
        """Not published: there was no port, no edge or no room."""

    def report(self, failure: Failure, lineage: Lineage) -> str:
        """On the error port if there is one. What happens to it there is not reported again.

        Returns why it was not published; a runtime that is closed hears nothing any more.
        """
        channels = () if self.output_port is None else self.output_port.channels
        reason = self._publisher.publish(channels, (failure, lineage)) if channels else NOBODY
        if self._publisher.closed and not channels:
            reason = CLOSED
        if reason != CLOSED:
            self._count(is_published=not reason)
        return reason

    def _count(self, *, is_published: bool) -> None:
        with self._publisher.lock:
            if is_published:
                self.published += 1
            else:
                self.unheard += 1

    @property
    def lost(self) -> int:
        """Published, and then overwritten on every edge before anybody read it."""
        if self.output_port is None:
            return 0
        return min((each.reports_lost for each in self.output_port.channels), default=0)


class OutputPort:
    def __init__(
        self,
        end: Endpoint,
        channels: tuple[Channel, ...],
        publisher: Publisher,
        errors: ErrorReports,
    ) -> None:
        self.end = end
        self.channels = channels
        self._publisher = publisher
        self._errors = errors
        self._roots = count(1)

    def publish(self, payload: Any, lineage: Lineage) -> PublishResult:
        result = self.complete(payload, lineage)
        if result.reason == CLOSED:
            self._publisher.count_refused()
        return result

    def complete(self, payload: Any, lineage: Lineage) -> PublishResult:
        """As `publish`; one that comes after the end is counted by whoever it comes from."""
        if len(self.channels) > 1 and not lineage.correlation_id:
            # The messages on its edges begin one chain, not one each.
            lineage = lineage._replace(correlation_id=f"{self.end}#{next(self._roots)}")
        reason = self._publisher.publish(self.channels, (payload, lineage))
        trace = self._publisher.trace
        if trace is not None:
            trace.add("refused" if reason else "published", str(self.end), reason)
        if not reason:
            return ACCEPTED
        if reason != CLOSED and self._errors.output_port is not self:
            refused = PublicationRefused(self.end.component, self.end.port, reason, payload)
            self._errors.report(refused, lineage)
        return PublishResult(accepted=False, reason=reason)


class QuickOutputPort(OutputPort):
    """With one async edge there is nothing to agree on: while it has room, append and be done."""

    def __init__(
        self,
        end: Endpoint,
        channels: tuple[Channel, ...],
        publisher: Publisher,
        errors: ErrorReports,
    ) -> None:
        super().__init__(end, channels, publisher, errors)
        [self._channel] = channels
        self._acquire, self._release = publisher.lock.acquire, publisher.lock.release
        self._sleepers = publisher.sleepers

    def publish(self, payload: Any, lineage: Lineage) -> PublishResult:
        channel = self._channel
        self._acquire()
        try:
            if channel.room > 0:
                channel.room -= 1
                channel.next.append((payload, lineage))
                if not self._sleepers:
                    return ACCEPTED
                is_full = False
            else:
                is_full = True
        finally:
            self._release()
        if is_full:
            return super().publish(payload, lineage)
        self._publisher.wake()
        return ACCEPTED


def new_output_port(
    end: Endpoint, channels: tuple[Channel, ...], publisher: Publisher, errors: ErrorReports
) -> OutputPort:
    is_quick = len(channels) == 1 and channels[0].is_async
    if is_quick and not publisher.at_once and publisher.trace is None:
        return QuickOutputPort(end, channels, publisher, errors)
    return OutputPort(end, channels, publisher, errors)
