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


class Host:
    """All addresses of one scheme, host and port. Lives as long as a parcel for it does."""

    __slots__ = ("__weakref__", "failures", "is_resting", "origin", "probe", "queue", "under_way")

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.queue: OrderedDict[MessageKey, Parcel] = OrderedDict()
        self.under_way = 0
        self.failures = 0
        """How often in a row it could not be reached."""
        self.is_resting = False
        self.probe: Parcel | None = None

    @property
    def has_turns(self) -> bool:
        return bool(self.queue) and not self.is_resting and self.probe is None


class Parcel:
    """A message to one address, and how it fares."""

    __slots__ = ("failures", "host", "message", "promise", "sent_at", "timer", "url")

    def __init__(self, host: Host, url: URL, message: Message, promise: Promise | None) -> None:
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


class Turns:
    def __init__(self, concurrency: int) -> None:
        self._room = concurrency
        self._hosts: WeakValueDictionary[str, Host] = WeakValueDictionary()
        self._line: OrderedDict[Host, None] = OrderedDict()

    def host(self, origin: str) -> Host:
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = Host(origin)
        return host

    def add(self, parcel: Parcel) -> None:
        parcel.host.queue[parcel.message.key] = parcel
        self._line_up(parcel.host)

    def remove(self, parcel: Parcel) -> None:
        if parcel.host.queue.get(parcel.message.key) is parcel:
            del parcel.host.queue[parcel.message.key]
            self._line_up(parcel.host)

    def take(self) -> Parcel | None:
        """The next to send; from now on it is under way."""
        host = self._next_host()
        if host is None:
            return None
        _, parcel = host.queue.popitem(last=False)
        self._room -= 1
        host.under_way += 1
        host.probe = parcel if host.failures else None
        self._line.move_to_end(host)
        self._line_up(host)
        return parcel

    def finish(self, parcel: Parcel) -> None:
        """It is under way no more, however that went."""
        host = parcel.host
        self._room += 1
        host.under_way -= 1
        if host.probe is parcel:
            host.probe = None
        self._line_up(host)

    def rest(self, parcel: Parcel) -> bool:
        """Its host could not be reached. False when that is known, or a probe will tell."""
        host = parcel.host
        if host.is_resting or host.probe not in (None, parcel):
            return False
        host.failures += 1
        host.is_resting = True
        self._line_up(host)
        return True

    def wake(self, host: Host) -> None:
        host.is_resting = False
        self._line_up(host)

    def reached(self, host: Host) -> bool:
        """Whether that is news."""
        was_lost = host.failures > 0
        host.failures, host.is_resting, host.probe = 0, False, None
        self._line_up(host)
        return was_lost

    def _line_up(self, host: Host) -> None:
        if host.has_turns:
            self._line.setdefault(host)
        else:
            self._line.pop(host, None)

    def _next_host(self) -> Host | None:
        """Passes over no host that has nothing under way, so this ends soon."""
        if self._room <= 0:
            return None
        return next((host for host in self._line if host.under_way < self._room), None)
