"""Users' triggers run in a thread with an event loop of its own.

One that blocks the loop holds up no task, and when it does not stop, the others get a new thread.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from traceback import walk_tb
from typing import Final

from msgspec import Struct

from layby.core.commands import Value
from layby.trigger_manager.trigger_manager import TriggerManager, found_by, kind_of
from layby.trigger_manager.trigger_origin import origin_in
from layby.wire.json_values import error_text
from layby.worker.loop_watch import (
    frames_from,
    innermost_frame,
    is_users,
    shown_place,
    user_frame,
)

logger = logging.getLogger(__name__)

START_S: Final = 30.0
STOP_S: Final = 8.0
REMEDY: Final = "await something there, or call it with asyncio.to_thread"


class OpenedManager:
    """A manager that has started, and what closes its link, if that is its own."""

    def __init__(self, manager: TriggerManager, close_link: Callable[[], Awaitable[None]]) -> None:
        self.manager = manager
        self._close_link = close_link

    async def close(self) -> None:
        """Hand its triggers over."""
        try:
            await self.manager.stop()
        finally:
            await self._close_link()

    async def abandon(self) -> None:
        """Its triggers belong to others by now."""
        try:
            await self.manager.abort()
        finally:
            await self._close_link()


class BlockingTrigger(Struct, frozen=True):
    """The claim of a trigger that keeps its loop busy, and what is known about it."""

    id: str
    version: int
    told: str
    found: Value | None
    """Its payload, if only its `cleanup` does not end."""


class TriggerThread:
    """`open_manager` is called in the thread."""

    def __init__(self, open_manager: Callable[[], Awaitable[OpenedManager]]) -> None:
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

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def silent_for(self) -> float:
        """Seconds that its loop has not turned for; asks it for a sign of life."""
        asked_at = self._asked_at
        if asked_at is None:  # the answer may come before the next line
            asked_at = self._asked_at = monotonic()
            self._call(self._note_life)
        return monotonic() - asked_at

    def blocked_by(self) -> list[BlockingTrigger]:
        """Those whose code runs in the loop now: one, or all that share a poll, if it is theirs."""
        manager, loop, ident = self.manager, self._loop, self._thread.ident
        if manager is None or loop is None or ident is None or self.has_ended:
            return []
        innermost = innermost_frame(ident)
        frames = list(frames_from(innermost))
        current = asyncio.current_task(loop)
        origin = None if current is None else manager.origin_of(current)
        if origin is None and any(is_users(each) for each in frames):
            # Not without a frame of theirs: our own timers inherit contexts as well.
            origin = origin_in(frames)
        if origin is None or innermost is None:
            return []
        told = f"in {shown_place(user_frame(innermost))}: {REMEDY}"
        return [
            BlockingTrigger(
                each.id,
                each.version,
                f"{kind_of(each)} has blocked the event loop of triggers, {told}",
                found_by(each),
            )
            for each in manager.attempts_of(origin)
        ]

    def abandon(self) -> None:
        """Its claims belong to others: when its loop goes on, it ends without saying anything."""
        self._is_abandoned = True
        if self.manager is not None:
            self.manager.worker.has_left = True  # its heartbeats end, though its loop may not
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
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                main = loop.create_task(self._main())
                main.add_done_callback(lambda _: loop.stop())
                while not main.done():
                    self._turn(loop, main)
                main.result()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.warning("a trigger raised %s while its thread ended", error_text(error))
        finally:
            self._tell(self._ended.set)

    def _turn(self, loop: asyncio.AbstractEventLoop, main: "asyncio.Task[None]") -> None:
        """Until main has ended, or code beside a body or a poll wants to end everything.

        Asyncio has given that to whoever awaits the code, as it does with any error, and has lost
        nothing else: the loop goes on where it was. It does, too, when a trigger has stopped it.
        """
        try:
            loop.run_forever()
            if not main.done():
                logger.error("a trigger has stopped the event loop of triggers: it goes on")
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error(  # noqa: TRY400 - it says where
                "%s raised %s in a Task or callback of its own: that has ended, and triggers go on",
                self._who_raised(error),
                error_text(error),
            )

    def _who_raised(self, error: BaseException) -> str:
        origin = origin_in(frame for frame, _ in walk_tb(error.__traceback__))
        held = [] if origin is None or self.manager is None else self.manager.attempts_of(origin)
        return ", ".join(each.id for each in held) or "a trigger"

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            opened = await self._open()
        except BaseException as error:  # noqa: BLE001 - raised where it was started
            self._tell(self._fail, error)
            return
        self._tell(self._succeed, opened.manager)
        try:
            await self._ends.wait()
        except asyncio.CancelledError:  # nobody else does that to main
            logger.error(  # noqa: TRY400 - where it was cancelled says nothing
                "a trigger has cancelled all Tasks of the event loop of triggers: they begin again "
                "in a new one, and those that were new apart from others"
            )
            self._is_abandoned = True
        await (opened.abandon() if self._is_abandoned else opened.close())

    def _succeed(self, manager: TriggerManager) -> None:
        if not self._started.done():
            self._started.set_result(manager)

    def _fail(self, error: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(error)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # whoever started it has ended
            self._own_loop.call_soon_threadsafe(function, *arguments)
