"""Whose turn it is: messages wait by host, hosts take turns, and no host can take all the room.

A host may have as many messages under way as there is room left: the first gets half, the next
half of the rest, and so on. With room for 256, eight hosts have to hang with long queues before
a ninth finds none; when their requests time out, the room is shared evenly.

A host that cannot be reached rests. Then one message goes out as a probe, whatever else waits:
ten thousand messages for a dead host cost one connection a rest, and all follow when it is back.

Knows no sockets and no time.
"""

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from yarl import URL

from layby.core.model import Message, MessageKey, Promise


class PushHost:
    """All addresses of one scheme, host and port. Lives as long as a parcel for it does."""

    __slots__ = (
        "__weakref__",
        "failures",
        "is_backing_off",
        "origin",
        "probe",
        "queue",
        "under_way",
    )

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.queue: OrderedDict[MessageKey, PendingPush] = OrderedDict()
        self.under_way = 0
        self.failures = 0
        """How often in a row it could not be reached."""
        self.is_backing_off = False
        self.probe: PendingPush | None = None

    @property
    def is_ready(self) -> bool:
        return bool(self.queue) and not self.is_backing_off and self.probe is None


class PendingPush:
    """A message to one address, and how it fares."""

    __slots__ = ("failures", "host", "message", "promise", "sent_at", "timer", "url")

    def __init__(self, host: PushHost, url: URL, message: Message, promise: Promise | None) -> None:
        self.host = host
        self.url = url
        self.message = message
        self.promise = promise
        """What an unblock tells. Not kept while it waits: it is in the store."""
        self.failures = 0
        self.sent_at: float | None = None
        """While it is under way."""
        self.timer: asyncio.TimerHandle | None = None
        """While it waits for its next try."""


class PushQueue:
    def __init__(self, concurrency: int) -> None:
        self._room = concurrency
        self._hosts: WeakValueDictionary[str, PushHost] = WeakValueDictionary()
        self._ready_hosts: OrderedDict[PushHost, None] = OrderedDict()

    def host(self, origin: str) -> PushHost:
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = PushHost(origin)
        return host

    def add(self, pending: PendingPush) -> None:
        pending.host.queue[pending.message.key] = pending
        self._update_ready(pending.host)

    def remove(self, pending: PendingPush) -> None:
        if pending.host.queue.get(pending.message.key) is pending:
            del pending.host.queue[pending.message.key]
            self._update_ready(pending.host)

    def take(self) -> PendingPush | None:
        """The next to send; from now on it is under way."""
        host = self._next_host()
        if host is None:
            return None
        _, pending = host.queue.popitem(last=False)
        self._room -= 1
        host.under_way += 1
        host.probe = pending if host.failures else None
        self._ready_hosts.move_to_end(host)
        self._update_ready(host)
        return pending

    def finish(self, pending: PendingPush) -> None:
        """It is under way no more, however that went."""
        host = pending.host
        self._room += 1
        host.under_way -= 1
        if host.probe is pending:
            host.probe = None
        self._update_ready(host)

    def back_off(self, pending: PendingPush) -> bool:
        """Its host could not be reached. False when that is known, or a probe will tell."""
        host = pending.host
        if host.is_backing_off or host.probe not in (None, pending):
            return False
        host.failures += 1
        host.is_backing_off = True
        self._update_ready(host)
        return True

    def end_back_off(self, host: PushHost) -> None:
        host.is_backing_off = False
        self._update_ready(host)

    def mark_reached(self, host: PushHost) -> bool:
        """Whether that is news."""
        was_lost = host.failures > 0
        host.failures, host.is_backing_off, host.probe = 0, False, None
        self._update_ready(host)
        return was_lost

    def _update_ready(self, host: PushHost) -> None:
        if host.is_ready:
            self._ready_hosts.setdefault(host)
        else:
            self._ready_hosts.pop(host, None)

    def _next_host(self) -> PushHost | None:
        """Passes over no host that has nothing under way, so this ends soon."""
        if self._room <= 0:
            return None
        return next((host for host in self._ready_hosts if host.under_way < self._room), None)
