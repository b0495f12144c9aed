"""Hands tasks back to the store together: one command for each turn of the loop.

A task of a run is handed back when its body has ended, not before; for a halted task this says that
its body has ended. The store silently skips what we no longer hold, so nothing here needs to know
why a task was taken away.
"""

import asyncio
import logging
from typing import Any, Final, Protocol

from layby.client.interface import WatchingClient
from layby.client.patience import send_until_answered
from layby.core.commands import Released, ReleaseTasks
from layby.errors import EngineStopped

logger = logging.getLogger(__name__)

BATCH: Final = 500
"""How many tasks one command hands back."""
OLD_BODY_MS: Final = 1_000
"""How long nobody takes a task while an old body of it is still running here."""


class ReleaseHost(Protocol):
    """What handing back needs from the worker."""

    client: WatchingClient
    incarnation: str

    @property
    def is_over(self) -> bool: ...

    def let_go(self, task_id: str, version: int) -> None: ...

    def dispatch(self) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class Releases:
    def __init__(self, host: ReleaseHost, pid: str) -> None:
        self._host = host
        self._pid = pid
        self._waiting: list[Released] = []
        self._under_way: set[tuple[str, int]] = set()
        """Claims of which the store has not been told yet."""

    def add(self, released: Released) -> None:
        """It is sent at the end of this turn of the loop, with all others. A claim may come twice
        before the store has heard of it: what comes first counts, since it says rightly whether a
        body had begun.
        """
        claim = (released.id, released.version)
        if claim in self._under_way:
            return
        self._under_way.add(claim)
        self._waiting.append(released)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._host.is_over:
            return
        for start in range(0, len(waiting), BATCH):
            self._host.spawn(self._send(tuple(waiting[start : start + BATCH])))

    async def _send(self, released: tuple[Released, ...]) -> None:
        host = self._host
        command = ReleaseTasks(pid=self._pid, incarnation=host.incarnation, tasks=released)
        try:
            reply = await send_until_answered(host.client, command)
        except EngineStopped:
            return
        finally:
            self._under_way.difference_update((each.id, each.version) for each in released)
        if not reply.is_ok:
            logger.error("tasks could not be handed back: %s", reply.data)
        for each in released:
            host.let_go(each.id, each.version)
        host.dispatch()
