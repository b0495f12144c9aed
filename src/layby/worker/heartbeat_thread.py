"""Heartbeats of a remote worker, from a thread of their own.

User code that keeps the event loop busy does not cost the worker its leases. Only when the loop has
been blocked for `max_block` seconds do heartbeats stop, so that others may take what is stuck here.

A heartbeat that is not answered soon is not given up, because a slow answer renews the lease all
the same; the next one goes through a connection of its own, because that answer may never come.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from layby.client.interface import Client
from layby.core.replies import HeartbeatData, Reply
from layby.errors import LaybyError
from layby.worker.reconciliation import Reconciler
from layby.worker.renewal import apply_heartbeat
from layby.worker.server_clock import ServerClock
from layby.worker.thread_call import in_own_thread
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

MAX_BLOCK_S: Final = 60.0
BEATS_PER_LEASE: Final = 3
LOOKS_PER_BLOCK: Final = 3
STOP_S: Final = 2.0


class HeartbeatThread:
    """`connect` makes a client for the thread's own event loop, with the timeout it is given."""

    def __init__(
        self,
        worker: Worker,
        connect: Callable[[float], Client],
        clock: ServerClock,
        max_block: float = MAX_BLOCK_S,
    ) -> None:
        self._worker = worker
        self._connect = connect
        self._clock = clock
        self._lease = worker.config.ttl / 1000
        self._every = min(self._lease / BEATS_PER_LEASE, max_block / LOOKS_PER_BLOCK)
        self._max_block = max_block
        self._reconciler = Reconciler(worker)
        self._loop = asyncio.get_running_loop()
        self._loop_ran_at = monotonic()
        self._was_blocked = False
        self._is_answered = True
        self._is_stopping = False
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._beat_task: asyncio.Task[None] | None = None
        self._client: Client
        self._late: dict[asyncio.Task[None], asyncio.Task[bool]] = {}  # who closes after which beat
        self._thread = threading.Thread(target=self._run, name="layby-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Does not wait for a beat that is under way."""
        self.end()
        await in_own_thread(self._thread.join, STOP_S)

    def end(self) -> None:
        """Nobody waits for it."""
        self._is_stopping = True
        if self._own_loop is not None and self._beat_task is not None:
            with suppress(RuntimeError):  # it has ended on its own
                self._own_loop.call_soon_threadsafe(self._beat_task.cancel)

    # --- in its own thread ---------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        """`stop` cancels beats, never the closing of their connections."""
        self._client = self._connect(self._lease)
        self._beat_task = asyncio.create_task(self._beat_forever())
        self._own_loop = asyncio.get_running_loop()
        await asyncio.wait([self._beat_task])
        for beat in self._late.values():
            beat.cancel()
        await asyncio.gather(self._client.close(), *self._late, return_exceptions=True)

    async def _beat_forever(self) -> None:
        pause = self._every
        while not self._is_stopping:
            await asyncio.sleep(pause)
            is_heard = self._is_blocked() or await self._is_answered_soon()
            pause = self._every if is_heard else self._every / 4

    async def _is_answered_soon(self) -> bool:
        beat = asyncio.create_task(self._beat_is_answered(self._client))
        try:
            await asyncio.wait([beat], timeout=self._every / 2)
        except asyncio.CancelledError:
            beat.cancel()
            raise
        if beat.done():
            return beat.result()
        self._let_finish(beat, self._client)
        self._client = self._connect(self._lease)
        return False

    def _let_finish(self, beat: "asyncio.Task[bool]", client: Client) -> None:
        """Wait for an answer that is late, for as long as it can still renew the lease."""
        late = asyncio.create_task(_close_after(beat, client))
        self._late[late] = beat
        late.add_done_callback(self._late.pop)

    async def _beat_is_answered(self, client: Client) -> bool:
        try:
            await self._beat(client)
        except LaybyError as failure:
            if self._is_answered:  # logged once, however long it lasts
                logger.warning("heartbeats are not answered: %s", failure)
            self._is_answered = False
        except Exception:
            logger.exception("a heartbeat failed")
            self._is_answered = False
        else:
            if not self._is_answered:
                logger.info("heartbeats are answered again")
                self._call_worker_loop(self.expect_lost_notices)
            self._is_answered = True
        return self._is_answered

    async def _beat(self, client: Client) -> None:
        worker = self._worker
        beat = worker.heartbeat()
        if beat.incarnation == worker.registered_as:  # else it would be refused
            sent_at = worker.lease.elapsed()
            reply = await self._clock.beat(client, beat)
            if reply.is_ok:
                worker.lease.renewed(sent_at, beat.incarnation)
            self._call_worker_loop(self._handle_reply, beat.incarnation, reply)
        for call_beat in worker.calls.beats():  # calls have leases of their own
            sent_at = worker.lease.elapsed()
            if (await client.send(call_beat)).is_ok:
                worker.calls.renewed(call_beat, sent_at)
        self._call_worker_loop(lambda: worker.spawn(worker.calls.check_leases()))

    def _is_blocked(self) -> bool:
        """Whether the worker's loop has been blocked for too long; asks for a sign of life."""
        self._call_worker_loop(self._note_loop_runs)
        blocked = monotonic() - self._loop_ran_at
        is_blocked = blocked > self._max_block
        if is_blocked and not self._was_blocked and not self._worker.has_left:
            tasks = ", ".join(self._worker.running) or "no task of ours"
            logger.error(
                "the event loop has been blocked for %.0f s by one of: %s. Heartbeats stop, so "
                "that other workers can take over; make it `async`, or a plain `def`",
                blocked,
                tasks,
            )
        self._was_blocked = is_blocked
        return is_blocked

    def _call_worker_loop(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- in the worker's loop ------------------------------------------------------------

    def expect_lost_notices(self) -> None:
        """An answer to a heartbeat, or the stream, was lost, and with it what it said."""
        self._reconciler.expect_lost_notices()

    def _note_loop_runs(self) -> None:
        self._loop_ran_at = monotonic()

    def _handle_reply(self, incarnation: str, reply: Reply) -> None:
        apply_heartbeat(self._worker, incarnation, reply)
        if isinstance(reply.data, HeartbeatData) and self._reconciler.is_due(
            agrees=reply.data.agrees
        ):
            self._worker.spawn(self._reconciler.reconcile())


async def _close_after(beat: "asyncio.Task[bool]", client: Client) -> None:
    try:
        await beat
    finally:
        await client.close()
