"""A heartbeat before something begins when the worker's lease may have expired.

A process that was stopped, or whose machine slept, cannot know whether its tasks are still its own.
It asks before it goes on, once for everybody who wants to know: either the lease is renewed, or the
worker starts over and whoever asked is ended. Nothing is dropped, however long the answer takes.
"""

import asyncio
import logging
from typing import Any, Final, Protocol

from layby.client.interface import WatchingClient
from layby.client.patience import send_until_answered
from layby.core.commands import HeartbeatWorker
from layby.core.replies import HeartbeatData, Reply
from layby.worker.lease import LeaseTime

logger = logging.getLogger(__name__)

REFUSED_S: Final = 1.0
"""How long to wait when the store neither renews the lease nor says that it is lost."""


class RenewalHost(Protocol):
    """What a renewal needs from the worker whose lease it is."""

    client: WatchingClient
    lease: LeaseTime

    def heartbeat(self) -> HeartbeatWorker: ...

    def start_over(self, incarnation: str, reply: Reply) -> None: ...

    def lost(self, task_id: str, version: int) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class Renewal:
    def __init__(self, host: RenewalHost) -> None:
        self._host = host
        self._under_way: asyncio.Task[Any] | None = None

    async def renew(self) -> None:
        """Return when the store has answered; tasks that are lost have been ended by then."""
        if self._under_way is None:
            self._under_way = self._host.spawn(self._renew())
        await asyncio.shield(self._under_way)  # for the other callers

    async def _renew(self) -> None:
        lease = self._host.lease
        try:
            sent_at, beat = lease.elapsed(), self._host.heartbeat()
            reply = await send_until_answered(self._host.client, beat)
            if reply.is_ok:
                lease.renewed(sent_at, beat.incarnation)
            apply_heartbeat(self._host, beat.incarnation, reply)
            if not reply.is_ok and reply.status != 409:
                await asyncio.sleep(REFUSED_S)
        finally:
            self._under_way = None


def apply_heartbeat(host: RenewalHost, incarnation: str, reply: Reply) -> None:
    """Do what the answer to a heartbeat says: start over, or end what is lost."""
    if reply.status == 409:
        host.start_over(incarnation, reply)
    elif isinstance(reply.data, HeartbeatData):
        for lost in reply.data.lost:
            host.lost(lost.id, lost.version)
    else:
        logger.warning("a heartbeat was refused with %s: %s", reply.status, reply.data)
