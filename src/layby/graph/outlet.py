"""Owns an output port while it runs: publishes on all of its edges, or on none of them."""

from typing import Any

from layby.graph.channel import Channel
from layby.graph.desk import Desk
from layby.graph.messages import (
    ACCEPTED,
    Failure,
    Lineage,
    PublicationRefused,
    PublishResult,
)
from layby.graph.names import Endpoint
from layby.graph.reasons import CLOSED


class ErrorReports:
    """What went wrong in one component and has nobody to answer to."""

    def __init__(self, desk: Desk, outlet: "Outlet | None" = None) -> None:
        self.outlet = outlet
        self._desk = desk
        self.published = self.unheard = 0

    def report(self, failure: Failure, lineage: Lineage) -> None:
        """On the error port if there is one. What happens to it there is not reported again."""
        outlet = self.outlet
        is_heard = (
            outlet is not None
            and bool(outlet.channels)
            and not self._desk.publish(outlet.channels, (failure, lineage))
        )
        with self._desk.lock:
            if is_heard:
                self.published += 1
            else:
                self.unheard += 1


class Outlet:
    def __init__(
        self, end: Endpoint, channels: tuple[Channel, ...], desk: Desk, errors: ErrorReports
    ) -> None:
        self.end = end
        self.channels = channels
        self._desk = desk
        self._errors = errors

    def publish(self, payload: Any, lineage: Lineage) -> PublishResult:
        reason = self._desk.publish(self.channels, (payload, lineage))
        trace = self._desk.trace
        if trace is not None:
            trace.add("refused" if reason else "published", str(self.end), reason)
        if not reason:
            return ACCEPTED
        if reason != CLOSED and self._errors.outlet is not self:
            refused = PublicationRefused(self.end.component, self.end.port, reason, payload)
            self._errors.report(refused, lineage)
        return PublishResult(accepted=False, reason=reason)


class QuickOutlet(Outlet):
    """With one async edge there is nothing to agree on: while it has room, append and be done."""

    def __init__(
        self, end: Endpoint, channels: tuple[Channel, ...], desk: Desk, errors: ErrorReports
    ) -> None:
        super().__init__(end, channels, desk, errors)
        [self._channel] = channels
        self._acquire, self._release = desk.lock.acquire, desk.lock.release

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


def new_outlet(
    end: Endpoint, channels: tuple[Channel, ...], desk: Desk, errors: ErrorReports
) -> Outlet:
    is_quick = len(channels) == 1 and channels[0].is_async
    if is_quick and not desk.at_once and desk.trace is None:
        return QuickOutlet(end, channels, desk, errors)
    return Outlet(end, channels, desk, errors)
