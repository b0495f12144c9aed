"""Decides which push is sent next: prefixes take turns, and so do the hosts of each.

No host can use all the capacity, and no prefix. A host may have as many messages under way as there
is capacity left: the first gets half, the next half of the rest, and so on. With a capacity of 256,
eight hosts with long queues have to hang before a ninth finds none; when their requests time out,
the capacity is shared evenly. Whoever has a token may name as many hosts as they like, so where
there are tokens the last quarter of the capacity is shared among their prefixes by the same rule:
one with much under way gets none of it, and one with nothing under way finds some.

A host that cannot be reached is backed off. After that one message goes out as a probe: ten
thousand messages for a dead host cost one connection per back-off, and all follow once it is back.

Contains no sockets and no clock.
"""

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from yarl import URL

from layby.core.model import Message, MessageKey, Promise


class PushShare:
    """What the ids of one prefix use of the capacity. Exists as long as one has a push pending."""

    __slots__ = ("__weakref__", "prefix", "ready_hosts", "under_way")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.ready_hosts: OrderedDict[PushHost, None] = OrderedDict()
        self.under_way = 0


class PushHost:
    """All addresses of one scheme, host and port, as the ids of one prefix use them.

    Exists as long as a push to it is pending.
    """

    __slots__ = (
        "__weakref__",
        "failures",
        "is_backing_off",
        "origin",
        "probe",
        "queue",
        "share",
        "under_way",
    )

    def __init__(self, origin: str, share: PushShare) -> None:
        self.origin = origin
        self.share = share
        self.queue: OrderedDict[MessageKey, PendingPush] = OrderedDict()
        self.under_way = 0
        self.failures = 0
        """Consecutive times it could not be reached."""
        self.is_backing_off = False
        self.probe: PendingPush | None = None

    @property
    def is_ready(self) -> bool:
        return bool(self.queue) and not self.is_backing_off and self.probe is None


class PendingPush:
    """A message to one address, and the state of its delivery."""

    __slots__ = ("failures", "host", "message", "promise", "sent_at", "timer", "url")

    def __init__(self, host: PushHost, url: URL, message: Message, promise: Promise | None) -> None:
        self.host = host
        self.url = url
        self.message = message
        self.promise = promise
        """The promise of an unblock. Not kept while it waits: it is in the store."""
        self.failures = 0
        self.sent_at: float | None = None
        """While it is under way."""
        self.timer: asyncio.TimerHandle | None = None
        """While it waits for its next try."""


class PushQueue:
    def __init__(self, concurrency: int, *, by_prefix: bool = False) -> None:
        self._room = concurrency
        self._shared = concurrency // 4 if by_prefix else 0
        """Capacity that no prefix can use alone."""
        self._hosts: WeakValueDictionary[tuple[str, str], PushHost] = WeakValueDictionary()
        self._shares: WeakValueDictionary[str, PushShare] = WeakValueDictionary()
        self._ready: OrderedDict[PushShare, None] = OrderedDict()

    def host(self, origin: str, prefix: str = "") -> PushHost:
        host = self._hosts.get((prefix, origin))
        if host is None:
            host = self._hosts[prefix, origin] = PushHost(origin, self._share(prefix))
        return host

    def add(self, pending: PendingPush) -> None:
        pending.host.queue[pending.message.key] = pending
        self._update_ready(pending.host)

    def remove(self, pending: PendingPush) -> None:
        if pending.host.queue.get(pending.message.key) is pending:
            del pending.host.queue[pending.message.key]
            self._update_ready(pending.host)

    def take(self) -> PendingPush | None:
        """The next push to send; from now on it is under way."""
        host = self._next_host()
        if host is None:
            return None
        _, pending = host.queue.popitem(last=False)
        self._room -= 1
        host.under_way += 1
        host.share.under_way += 1
        host.probe = pending if host.failures else None
        host.share.ready_hosts.move_to_end(host)
        self._ready.move_to_end(host.share)
        self._update_ready(host)
        return pending

    def finish(self, pending: PendingPush) -> None:
        """It is no longer under way, whatever the outcome."""
        host = pending.host
        self._room += 1
        host.under_way -= 1
        host.share.under_way -= 1
        if host.probe is pending:
            host.probe = None
        self._update_ready(host)

    def back_off(self, pending: PendingPush) -> bool:
        """Its host could not be reached. False if that is known, or a probe will show it."""
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
        """Returns whether the host was unreachable before."""
        was_unreachable = host.failures > 0
        host.failures, host.is_backing_off, host.probe = 0, False, None
        self._update_ready(host)
        return was_unreachable

    def _share(self, prefix: str) -> PushShare:
        share = self._shares.get(prefix)
        if share is None:
            share = self._shares[prefix] = PushShare(prefix)
        return share

    def _update_ready(self, host: PushHost) -> None:
        share = host.share
        if host.is_ready:
            share.ready_hosts.setdefault(host)
            self._ready.setdefault(share)
        else:
            share.ready_hosts.pop(host, None)
            if not share.ready_hosts:
                self._ready.pop(share, None)

    def _next_host(self) -> PushHost | None:
        """Stops at the first host with nothing under way, so this is quick."""
        if self._room <= 0:
            return None
        of_shares = (share.ready_hosts for share in self._ready if self._has_room_for(share))
        hosts = (host for ready in of_shares for host in ready)
        return next((host for host in hosts if host.under_way < self._room), None)

    def _has_room_for(self, share: PushShare) -> bool:
        return self._room > self._shared or share.under_way < self._room
