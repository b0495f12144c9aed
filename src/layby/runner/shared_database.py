"""The links of workers whose database other processes use too, each with an engine of its own.

Nobody owns such a database, so nobody can tell from opening it who is gone: this process is a
holder with a lease, like a worker elsewhere, and renews it through its own engine.
"""

from contextlib import suppress
from functools import partial

from layby.clock import SystemClock
from layby.errors import EngineStopped, StoreUnavailable
from layby.local import LocalClient
from layby.runner.embedded import EmbeddedLink, EngineLink
from layby.worker.heartbeat_thread import HeartbeatThread
from layby.worker.server_clock import ServerClock
from layby.worker.worker import Worker


class SharedEngineLink(EngineLink):
    """A worker beside an engine that somebody else has opened."""

    is_embedded = False
    is_shared = True
    _hearts: tuple[HeartbeatThread, ...] = ()
    """One for each worker of this process."""

    async def join(self, worker: Worker) -> None:
        await self._register(worker)
        await super().join(worker)
        worker.on_new_incarnation = partial(self._start_over, worker)
        heart = HeartbeatThread(worker, self._own_client, ServerClock(SystemClock()))
        heart.start()
        self._hearts = (*self._hearts, heart)

    async def close(self) -> None:
        """All of them end, though whoever waits for the first one is cancelled."""
        for heart in self._hearts:
            heart.end()
        try:
            for heart in self._hearts:
                await heart.stop()
        finally:
            await super().close()

    def _beside(self) -> EngineLink:
        return SharedEngineLink(self.engine, self.router, LocalClient(self.engine), self._clock)

    def _own_client(self, within: float) -> LocalClient:
        """For the thread of the heartbeats."""
        del within  # the engine always answers
        return LocalClient(self.engine)

    def _start_over(self, worker: Worker) -> None:
        worker.spawn(self._register_again(worker))

    async def _register_again(self, worker: Worker) -> None:
        with suppress(StoreUnavailable, EngineStopped):  # else the next take registers it
            await self._register(worker)

    async def _register(self, worker: Worker) -> None:
        """Make this process a holder, and count its lease from here."""
        sent_at, incarnation = worker.lease.elapsed(), worker.incarnation
        reply = await self.client.send(worker.registration())
        if not reply.is_ok:
            raise StoreUnavailable(f"this worker was not registered: {reply.data}")
        self.engine.vouch(worker.config.pid, incarnation)
        worker.registered_as = incarnation
        worker.lease.renewed(sent_at, incarnation)


class SharedDatabaseLink(SharedEngineLink, EmbeddedLink):
    """Create it in the event loop it is used in."""
