"""The link of a Runner whose engine is in another process: a server, or the owner of a file."""

from layby.client.executes import ExecuteStream
from layby.client.first_answer import FirstAnswer
from layby.client.http import HttpClient
from layby.client.inbox import Inbox
from layby.clock import SystemClock
from layby.core.model import Millis
from layby.errors import EngineStopped, NotAllowed, StoreUnavailable
from layby.worker.heartbeat_thread import HeartbeatThread
from layby.worker.server_clock import ServerClock
from layby.worker.worker import Worker


class RemoteLink:
    """Create it in the event loop it is used in."""

    is_embedded = False
    is_shared = True

    def __init__(self, url: str, token: str | None, connect_timeout: float | None) -> None:
        self._url = url
        self._token = token
        self._connect_timeout = connect_timeout
        self._own_clock = SystemClock()
        self._clock = ServerClock(self._own_clock)
        self.client = HttpClient(url, token, first=FirstAnswer(url, connect_timeout))
        self._inbox: Inbox | None = None
        self._heart: HeartbeatThread | None = None

    def now(self) -> Millis:
        return self._clock.now()

    def elapsed(self) -> Millis:
        return self._own_clock.elapsed()

    async def opened(self) -> None:
        """There is nothing to wait for."""

    def beside(self) -> "RemoteLink":
        """A link for another worker of this process: each has a stream and a heart of its own."""
        return RemoteLink(self._url, self._token, self._connect_timeout)

    async def greet(self) -> None:
        """For a process without a worker: is the server there, and does it accept the token?

        Such a process is not known to the server: each of its waits is a request of its own.
        """
        reply = await self._clock.read(self.client)
        if reply.status in (401, 403):
            why = f"the server at {self._url} refused this process: {reply.data}"
            raise NotAllowed(f"{why}: give a token that the server accepts")

    async def join(self, worker: Worker) -> None:
        """Make this worker known to the server, listen to it, and keep its leases."""
        await self._register(worker)
        await self._first_heartbeat(worker)
        config = worker.config
        self._inbox = Inbox(
            self.client.transport,
            self.client.send,
            config.group,
            config.pid,
            lambda: self._register(worker),
            worker.lost,
            worker.told,
        )
        self.client.inbox = self._inbox
        worker.on_new_incarnation = self._inbox.reopen
        self._inbox.start()
        worker.calls.source = ExecuteStream(
            self.client.transport,
            self.client.send,
            config.group,
            config.pid,
            worker.calls.on_execute,
        )
        self._heart = HeartbeatThread(worker, self._connect, self._clock)
        self._heart.start()

    async def close(self) -> None:
        try:
            if self._heart is not None:
                await self._heart.stop()
        finally:
            await self._close_connections()

    async def _close_connections(self) -> None:
        try:
            if self._inbox is not None:
                await self._inbox.close()
        finally:
            await self.client.close()

    async def _first_heartbeat(self, worker: Worker) -> None:
        sent_at, beat = worker.lease.elapsed(), worker.heartbeat()
        if (await self._clock.beat(self.client, beat)).is_ok:
            worker.lease.renewed(sent_at, beat.incarnation)

    def _connect(self, within: float) -> HttpClient:
        return HttpClient(self._url, self._token, patience=0, answer_within=within)

    async def _register(self, worker: Worker) -> str:
        """Register the worker as a holder, or renew its lease; returns its incarnation.

        If the server has given this holder up, it registers again under a new incarnation.
        """
        if worker.is_leaving:
            raise EngineStopped("this worker has left")
        incarnation = worker.incarnation
        reply = await self.client.send(worker.registration())
        if reply.status == 409:
            worker.start_over(incarnation, reply)
        if reply.status in (401, 403):
            remedy = (
                "give a token that the server accepts"
                if reply.status == 401
                else f"the token does not allow the group '{worker.config.group}'"
            )
            raise NotAllowed(
                f"the server at {self._url} refused this worker: {reply.data}: {remedy}"
            )
        if not reply.is_ok:
            raise StoreUnavailable(f"this worker was not registered: {reply.data}")
        worker.registered_as = incarnation
        if self._heart is not None:  # a stream is opened again: something may not have arrived
            self._heart.expect_lost_notices()
        return incarnation
