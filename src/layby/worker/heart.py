"""Heartbeats of a worker whose store is elsewhere, from a thread of their own.

User code that keeps the event loop busy does not cost the worker its leases; only when the loop
has not turned for `max_block` seconds do they stop, so that others may take what is stuck here.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from layby.client.api import Client
from layby.core.commands import HeartbeatWorker
from layby.core.replies import HeartbeatData, Reply
from layby.errors import LaybyError
from layby.worker.stock import Stock
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

MAX_BLOCK_S: Final = 60.0
BEATS_PER_LEASE: Final = 3
STOP_S: Final = 1.0


class Heart:
    """`connect` makes a client for the thread's own event loop."""

    def __init__(
        self, worker: Worker, connect: Callable[[], Client], max_block: float = MAX_BLOCK_S
    ) -> None:
        self._worker = worker
        self._connect = connect
        self._every = worker.config.ttl / 1000 / BEATS_PER_LEASE
        self._max_block = max_block
        self._stock = Stock(worker)
        self._loop = asyncio.get_running_loop()
        self._turned_at = monotonic()
        self._was_blocked = False
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="layby-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """The last beat may still be answered; a server that is gone is not waited for."""
        self._is_stopping = True
        if self._own_loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._own_loop.call_soon_threadsafe(self._stopping.set)
        await self._loop.run_in_executor(None, self._thread.join, STOP_S)

    # --- in its own thread ---------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._beat_on())

    async def _beat_on(self) -> None:
        self._own_loop = asyncio.get_running_loop()
        client = self._connect()
        try:
            while not await self._rested():
                if not self._is_blocked():
                    await self._beat(client)
        finally:
            await client.close()

    async def _rested(self) -> bool:
        """True when it is to stop."""
        if self._is_stopping:
            return True
        try:
            await asyncio.wait_for(self._stopping.wait(), self._every)
        except TimeoutError:
            return False
        return True

    async def _beat(self, client: Client) -> None:
        worker = self._worker
        incarnation = worker.incarnation
        beat = HeartbeatWorker(
            pid=worker.config.pid, incarnation=incarnation, held=len(worker.holds)
        )
        try:
            reply = await client.send(beat)
        except LaybyError as failure:
            logger.warning("a heartbeat was not answered: %s", failure)
            return
        self._call(self._heard, incarnation, reply)
        await self._beat_for_calls(client)

    async def _beat_for_calls(self, client: Client) -> None:
        """Their leases are their own."""
        try:
            for beat in self._worker.calls.beats():
                await client.send(beat)
        except LaybyError as failure:
            logger.warning("the leases of calls were not renewed: %s", failure)
        self._call(self._look_after_calls)

    def _is_blocked(self) -> bool:
        """Whether the worker's loop has not turned for too long; asks it to show that it does."""
        self._call(self._turned)
        blocked = monotonic() - self._turned_at
        is_blocked = blocked > self._max_block
        if is_blocked and not self._was_blocked:
            tasks = ", ".join(self._worker.running) or "no task of ours"
            logger.error(
                "the event loop has been blocked for %.0f s by one of: %s. Heartbeats stop, so "
                "that other workers can take over; make it `async`, or a plain `def`",
                blocked,
                tasks,
            )
        self._was_blocked = is_blocked
        return is_blocked

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- in the worker's loop ------------------------------------------------------------

    def _look_after_calls(self) -> None:
        self._worker.spawn(self._worker.calls.look_after())

    def _turned(self) -> None:
        self._turned_at = monotonic()

    def _heard(self, incarnation: str, reply: Reply) -> None:
        if reply.status == 409:
            self._worker.start_over(incarnation, reply)
            self._worker.credit_changed()
        elif isinstance(reply.data, HeartbeatData):
            for lost in reply.data.lost:
                self._worker.lost(lost.id, lost.version)
            if self._stock.is_wanted(agrees=reply.data.agrees):
                self._worker.spawn(self._stock.take())
        else:
            logger.warning("a heartbeat was refused with %s: %s", reply.status, reply.data)
