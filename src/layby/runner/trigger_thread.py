"""Users' triggers run in a thread with an event loop of its own.

One that blocks the loop holds up no task, and when it does not stop, the others get a new thread.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from msgspec import Struct

from layby.trigger_manager.trigger_manager import TriggerManager

logger = logging.getLogger(__name__)

START_S: Final = 30.0
STOP_S: Final = 8.0

Opened = tuple[TriggerManager, Callable[[], Awaitable[None]]]
"""A manager that has started, and what closes it and its link."""


class BlockingTrigger(Struct, frozen=True):
    """The claim of a trigger that keeps its loop busy, and what is known about it."""

    id: str
    version: int
    told: str


class TriggerThread:
    """`open_manager` is called in the thread."""

    def __init__(self, open_manager: Callable[[], Awaitable[Opened]]) -> None:
        self._open = open_manager
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None
        """Since when the loop owes a sign of life."""
        self._is_abandoned = False
        self._started: asyncio.Future[TriggerManager] = asyncio.get_running_loop().create_future()
        self._own_loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.manager: TriggerManager | None = None
        self._thread = threading.Thread(target=self._run, name="layby-triggers", daemon=True)

    async def start(self) -> TriggerManager:
        self._thread.start()
        async with asyncio.timeout(START_S):
            self.manager = await self._started
        return self.manager

    async def stop(self) -> None:
        """Hand its triggers over. A loop that is blocked cannot, and is left alone."""
        self._call(self._ends.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._ended.wait()

    def silent_for(self) -> float:
        """Seconds that its loop has not turned for; asks it for a sign of life."""
        if self._asked_at is None:
            self._asked_at = monotonic()
            self._call(self._note_life)
        return monotonic() - self._asked_at

    def blocked_by(self) -> BlockingTrigger | None:
        """The trigger whose code runs in the loop now, if it is one's."""
        manager, loop = self.manager, self._loop
        current = None if loop is None else asyncio.current_task(loop)
        if manager is None or current is None:
            return None
        for held in list(manager.worker.attempts.values()):
            if held.body is not None and held.body.task is current:
                told = manager.worker.blocked_by or "it keeps the event loop of triggers busy"
                return BlockingTrigger(held.id, held.version, told)
        return None

    def abandon(self) -> None:
        """Its claims belong to others: when its loop goes on, it ends without saying anything."""
        self._is_abandoned = True
        self._call(self._ends.set)

    def _note_life(self) -> None:
        self._asked_at = None

    def _call(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function)

    # --- in the thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._tell(self._ended.set)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            manager, close = await self._open()
        except BaseException as error:  # noqa: BLE001 - raised where it was started
            self._tell(self._fail, error)
            return
        self._tell(self._succeed, manager)
        await self._ends.wait()
        if self._is_abandoned:
            await manager.abort()
        else:
            await close()

    def _succeed(self, manager: TriggerManager) -> None:
        if not self._started.done():
            self._started.set_result(manager)

    def _fail(self, error: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(error)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # whoever started it has ended
            self._own_loop.call_soon_threadsafe(function, *arguments)
