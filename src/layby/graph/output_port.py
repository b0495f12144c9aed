"""Owns an output port while it runs: publishes on all of its edges, or on none of them."""

from typing import Any

from layby.graph.channel import Channel
from layby.graph.messages import (
    ACCEPTED,
    Failure,
    Lineage,
    PublicationRefused,
    PublishResult,
)
from layby.graph.names import Endpoint
from layby.graph.publisher import Publisher
from layby.graph.reasons import CLOSED


class ErrorReports:
    """What went wrong in one component and has nobody to answer to."""

    def __init__(self, publisher: Publisher, output_port: "OutputPort | None" = None) -> None:
        self.output_port = output_port
        self._publisher = publisher
        self.published = self.unheard = 0

    def report(self, failure: Failure, lineage: Lineage) -> None:
        """On the error port if there is one. What happens to it there is not reported again."""
        output_port = self.output_port
        is_heard = (
            output_port is not None
            and bool(output_port.channels)
            and not self._publisher.publish(output_port.channels, (failure, lineage))
        )
        with self._publisher.lock:
            if is_heard:
                self.published += 1
            else:
                self.unheard += 1


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

    def publish(self, payload: Any, lineage: Lineage) -> PublishResult:
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

    def publish(self, payload: Any, lineage: Lineage) -> PublishResult:
        channel = self._channel
        self._acquire()
        try:
            if channel.room > 0:
                channel.room -= 1
                channel.next.append((payload, lineage))
                return ACCEPTED
        finally:
            self._release()
        return super().publish(payload, lineage)


def new_output_port(
    end: Endpoint, channels: tuple[Channel, ...], publisher: Publisher, errors: ErrorReports
) -> OutputPort:
    is_quick = len(channels) == 1 and channels[0].is_async
    if is_quick and not publisher.at_once and publisher.trace is None:
        return QuickOutputPort(end, channels, publisher, errors)
    return OutputPort(end, channels, publisher, errors)
