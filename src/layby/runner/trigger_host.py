"""The trigger managers of a process: what they take, and how they are linked to the engine.

There may be two. The one for layby's own polls shares the loop of its process, which it never
blocks. The one for users' triggers has a thread, because user code may.
"""

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from layby.clock import virtual_clock
from layby.core.commands import FailTask, FinishTask, LeaveWorker
from layby.core.waits import Polling
from layby.errors import LaybyError, TriggerError
from layby.runner.shared_database import SharedDatabaseLink
from layby.runner.trigger_thread import BlockingTrigger, OpenedManager, TriggerThread
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.trigger_manager.trigger_manager import CAPACITY, TriggerConfig, TriggerManager
from layby.trigger_manager.untaken_triggers import UntakenTriggers
from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import REGISTRY, TriggerRegistry
from layby.wire import json_values
from layby.worker.worker import WorkerConfig

if TYPE_CHECKING:
    from layby.runner.embedded import EngineLink
    from layby.runner.remote import RemoteLink

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
BLOCKED_S: Final = 5.0
"""A trigger that blocks the loop of its kind for longer has failed."""


class TriggerHost:
    """Without access, and without triggers of its users, it starts nothing: not even a holder.

    A Runner that has its store to itself may ask for anything. On a store that others can reach,
    the arguments of a trigger may be theirs, so there `access` says what it may ask for.
    """

    def __init__(
        self,
        link: "EngineLink | RemoteLink",
        config: WorkerConfig,
        access: TriggerAccess | None,
        registry: TriggerRegistry = REGISTRY,
        capacity: int = CAPACITY,
    ) -> None:
        self._link = link
        self._config = config
        self._is_alone = access is None and not link.is_shared
        """Then nobody else is expected to run what may not be polled here: it says so."""
        if access is None:
            access = TriggerAccess() if link.is_shared else TriggerAccess.everywhere()
        self._access = access
        self._registry = registry
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._is_virtual = virtual_clock.get() is not None
        self._opened: list[OpenedManager] = []
        self._thread: TriggerThread | None = None
        self._has_own = False
        self._place = 1
        self._own: TriggerManager | None = None
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._registry.on_change.append(self._registered)
        if self._access.kinds:
            self._opened.append(await self._open(TriggerRegistry(BUILT_IN), self._access, "polls"))
        if self._registry.own_code:
            await self._start_own()
        if isinstance(self._link, SharedDatabaseLink):  # else the server tells, or nobody has to
            untaken = UntakenTriggers(self._link.client.send, self._link.now)
            self._telling = self._loop.create_task(untaken.watch())

    async def close(self) -> None:
        """Hand all triggers over."""
        self._registry.on_change.remove(self._registered)
        for task in (self._starting, self._watching, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._thread is not None:
            await self._thread.stop()
        for opened in self._opened:
            await opened.close()

    @property
    def managers(self) -> list[TriggerManager]:
        own = [] if self._own is None else [self._own]
        return [*(opened.manager for opened in self._opened), *own]

    def polling(self, trigger_id: str) -> Polling | None:
        found = (manager.polling(trigger_id) for manager in self.managers)
        return next((each for each in found if each is not None), None)

    # --- starting ------------------------------------------------------------------------

    async def _open(
        self, registry: TriggerRegistry, access: TriggerAccess, name: str
    ) -> OpenedManager:
        """In the loop that the manager is to run in."""
        link = self._link.beside()
        config = TriggerConfig(
            pid=f"{self._config.pid}.{name}",
            incarnation=uuid.uuid4().hex,
            embedded=self._config.embedded,
            ttl=self._config.ttl,
            capacity=self._capacity,
            max_threads=self._config.max_threads,
        )
        manager = TriggerManager(
            link.client,
            config,
            link.now,
            link.elapsed,
            registry=registry,
            access=access,
            refuses=self._is_alone and access.kinds != (),
        )
        opened = OpenedManager(manager, _nothing if link is self._link else link.close)
        try:
            await link.join(manager.worker)
        except BaseException:
            await opened.abandon()
            raise
        manager.start()
        return opened

    async def _open_own(self) -> OpenedManager:
        number = "" if self._place == 1 else str(self._place)
        return await self._open(self._registry, TriggerAccess(), f"triggers{number}")

    async def _start_own(self) -> None:
        self._has_own = True
        if self._is_virtual:  # where nothing may happen beside the loop
            self._opened.append(await self._open_own())
            return
        self._thread = TriggerThread(self._open_own)
        self._own = await self._thread.start()
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())

    def _registered(self) -> None:
        """A class was registered while this was open; in whatever thread."""
        with suppress(RuntimeError):  # its loop has ended without closing it
            self._loop.call_soon_threadsafe(self._start_later)

    def _start_later(self) -> None:
        """A manager that runs hears of new classes by itself."""
        if not self._has_own and self._starting is None:
            self._starting = self._loop.create_task(self._try_to_start())

    async def _try_to_start(self) -> None:
        try:
            await self._start_own()
        except (LaybyError, TimeoutError) as failure:
            logger.error("this process cannot run triggers: %s", failure)  # noqa: TRY400 - it says why
        finally:
            self._starting = None

    # --- one that blocks or ends the loop ------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except (LaybyError, TimeoutError) as failure:
                logger.warning("triggers are still held up by one of them: %s", failure)
            except Exception:  # nobody else looks
                logger.exception("looking after triggers failed; it is done again in a second")

    async def _look(self) -> None:
        thread = self._thread
        if thread is not None and (thread.has_ended or thread.silent_for() > BLOCKED_S):
            await self._replace(thread)

    async def _replace(self, thread: TriggerThread) -> None:
        """The culprits fail; all others go on in a new thread, at once.

        Without a culprit, the next manager takes the place of this one, which is lost then: those
        that were new in it are suspects, as if their process had died.
        """
        manager, culprits = thread.manager, thread.blocked_by()
        for culprit in culprits:
            logger.error("%s is ended: %s", culprit.id, culprit.told)
            await self._link.client.send(_end_of(culprit))
        thread.abandon()
        if manager is not None and culprits:
            worker = manager.worker
            await self._link.client.send(
                LeaveWorker(pid=worker.config.pid, incarnation=worker.incarnation)
            )
            self._place += 1
        self._own = None
        await self._start_own()


def _end_of(culprit: BlockingTrigger) -> FailTask | FinishTask:
    """What it has found counts, however its `cleanup` goes."""
    if culprit.found is not None:
        return FinishTask(id=culprit.id, version=culprit.version, value=culprit.found)
    error = json_values.error_value(TriggerError(culprit.told))
    return FailTask(id=culprit.id, version=culprit.version, error=error)


async def _nothing() -> None:
    """Whose link it is closes it."""
