"""Takes triggers by credit and name, runs them on one event loop, and tells the store what came of
them. There is no process of its own for that: a server, a Runner and a worker can each have one.

A trigger that needs code is a task in the group `triggers`, so a manager is a worker whose slots
are its capacity and whose program are triggers: leases, hand-over, fencing and reports are those
of every worker.
"""

import asyncio
import random as chance
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from layby.client.interface import WatchingClient
from layby.core.commands import Value
from layby.core.model import Millis
from layby.core.resumption import TRIGGER_GROUP
from layby.core.waits import Polling
from layby.errors import TriggerError
from layby.trigger_manager.access_checks import AccessChecks
from layby.trigger_manager.poll_reports import PollReports
from layby.trigger_manager.probation import Probation
from layby.trigger_manager.shared_polls import SharedPolls
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.trigger_manager.trigger_origin import Origin
from layby.trigger_manager.trigger_program import LoadedTrigger, LoadedTriggerCode, TriggerProgram
from layby.triggers.registry import REGISTRY, TriggerRegistry
from layby.worker.attempt import Attempt
from layby.worker.lease import Elapsed
from layby.worker.worker import Worker, WorkerConfig

CAPACITY: Final = 50_000
STOP_S: Final = 6.0
"""A little more than `cleanup` may take."""


class TriggerConfig(Struct, frozen=True, kw_only=True):
    """`capacity`: how many triggers run here at a time; more wait in the store, and are shown."""

    pid: str
    incarnation: str
    embedded: bool = True
    ttl: Millis = 60_000
    capacity: int = CAPACITY
    max_threads: int = 32
    """For plain `def poll`, FileExists and SqlPoll."""


class TriggerManager:
    """Create it in its event loop; `worker` is joined to a link like any other."""

    def __init__(
        self,
        client: WatchingClient,
        config: TriggerConfig,
        now: Callable[[], Millis],
        elapsed: Elapsed,
        *,
        registry: TriggerRegistry = REGISTRY,
        access: TriggerAccess | None = None,
        random: Callable[[], float] = chance.random,
        refuses: bool = False,
    ) -> None:
        checks = AccessChecks(TriggerAccess() if access is None else access)
        self._registry = registry
        self._polls = SharedPolls(checks, now, max_threads=config.max_threads, random=random)
        self._program = TriggerProgram(registry, checks, self._polls, refuses=refuses)
        worker_config = WorkerConfig(
            slots=config.capacity,
            group=TRIGGER_GROUP,
            pid=config.pid,
            incarnation=config.incarnation,
            embedded=config.embedded,
            ttl=config.ttl,
            max_threads=1,
            processes=1,
            freeze_parked=False,
        )
        self.worker = Worker(client, self._program, worker_config, now, elapsed)
        self.worker.task_beside = self._task_beside
        self._probation = Probation(self.worker, _sentence_of)
        self._program.gate = self._probation
        self._reports = PollReports(self.worker, self._polls)
        self._loop = asyncio.get_running_loop()
        registry.on_change.append(self._registered)

    def start(self) -> None:
        self.worker.start()

    async def abort(self) -> None:
        """It could not be started, or its triggers belong to others by now."""
        self._forget_registry()
        self._probation.close()
        self._reports.close()
        self.worker.close()
        await self._polls.close()

    async def stop(self) -> None:
        """Hand every trigger over at once; `cleanup` has a few seconds."""
        self._forget_registry()
        self._probation.close()
        self._reports.close()
        try:
            await self.worker.stop(STOP_S)
        finally:
            await self._polls.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The classes it takes."""
        return self._program.names

    @property
    def capacity(self) -> int:
        return self.worker.config.slots

    @property
    def running(self) -> int:
        return len(self.worker.attempts)

    @property
    def shared_polls(self) -> int:
        """How many different questions are asked for all of them."""
        return len(self._polls)

    def polling(self, trigger_id: str) -> Polling | None:
        """How often it was asked, when it is next, and what it raised last."""
        held = self.worker.attempts.get(trigger_id)
        loaded = None if held is None else held.loaded
        if not isinstance(loaded, LoadedTrigger) or loaded.poll is None:
            return None
        told = loaded.poll.report(self.worker.now(), self._loop.time())
        return Polling(told.polls, told.next_poll_at, told.last_error)

    def attempts_of(self, origin: Origin) -> list[Attempt]:
        """Who waits for what this code finds. May be called in any thread."""
        if isinstance(origin, str):
            held = self.worker.attempts.get(origin)
            return [] if held is None else [held]
        return [held for held in list(self.worker.attempts.values()) if _poll_key(held) == origin]

    def origin_of(self, task: "asyncio.Task[Any]") -> Origin | None:
        """Whose `run` or `poll` this is the Task of. May be called in any thread."""
        for held in list(self.worker.attempts.values()):
            if held.body is not None and held.body.task is task:
                return held.id
        return self._polls.asked_in(task)

    def _task_beside(self, task: "asyncio.Task[Any]") -> str | None:
        """One of those that share the poll."""
        origin = self.origin_of(task)
        held = [] if origin is None else self.attempts_of(origin)
        return held[0].id if held else None

    def _forget_registry(self) -> None:
        if self._registered in self._registry.on_change:
            self._registry.on_change.remove(self._registered)

    def _registered(self) -> None:
        """A module was loaded that has more triggers; in whatever thread."""
        with suppress(RuntimeError):  # its loop has ended without stopping it
            self._loop.call_soon_threadsafe(self._offer_more)

    def _offer_more(self) -> None:
        self._program.code_changed()
        self.worker.code_changed()


def kind_of(held: Attempt) -> str:
    return held.loaded.kind if isinstance(held.loaded, LoadedTriggerCode) else held.id


def found_by(held: Attempt) -> Value | None:
    """What a trigger has found whose `cleanup` has not ended; None if that cannot be stored."""
    loaded = held.loaded
    if not isinstance(loaded, LoadedTrigger) or loaded.found is None:
        return None
    with suppress(TriggerError):
        return loaded.completed(loaded.found)
    return None


def _poll_key(held: Attempt) -> Origin | None:
    poll = held.loaded.poll if isinstance(held.loaded, LoadedTrigger) else None
    return None if poll is None else poll.key


def _sentence_of(held: Attempt) -> str:
    loaded = held.loaded
    return f"waits for {loaded.sentence()}" if isinstance(loaded, LoadedTrigger) else "runs"
