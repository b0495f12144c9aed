"""The stream of `execute` messages for a worker that serves calls: tasks it may acquire."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from layby.client.stream import listen
from layby.client.transport import Transport
from layby.core.commands import Command
from layby.core.queries import DeclineTasks, Execute, Query
from layby.core.replies import Reply
from layby.errors import LaybyError
from layby.wire.records import MessageRecord

logger = logging.getLogger(__name__)

DECLINED_AT_ONCE: Final = 500


class ExecuteStream:
    """While open, it is a receiver of its group, like a worker of any SDK."""

    def __init__(
        self,
        transport: Transport,
        send: Callable[[Command | Query], Awaitable[Reply]],
        group: str,
        pid: str,
        heard: Callable[[str, int], None],
    ) -> None:
        self._transport = transport
        self._send = send
        self._group = group
        self._pid = pid
        self._heard = heard
        self._listening: asyncio.Task[None] | None = None
        self._declined: deque[Execute] = deque()
        self._declining: asyncio.Task[None] | None = None

    def open(self) -> None:
        events = self._transport.events
        self._listening = asyncio.create_task(
            listen(lambda: events(self._group, self._pid, ""), self._hear)
        )

    def close(self) -> None:
        for task in (self._listening, self._declining):
            if task is not None:
                task.cancel()

    def decline(self, task: Execute) -> None:
        """Queued, and sent together with others that are declined in the meantime."""
        self._declined.append(task)
        if self._declining is None or self._declining.done():
            self._declining = asyncio.create_task(self._decline())

    async def _decline(self) -> None:
        while self._declined:
            count = min(len(self._declined), DECLINED_AT_ONCE)
            tasks = tuple(self._declined.popleft() for _ in range(count))
            try:
                await self._send(DeclineTasks(pid=self._pid, tasks=tasks))
            except LaybyError as failure:  # the server sends them again if nobody takes them
                logger.warning("could not decline calls: %s", failure)

    def _hear(self, message: MessageRecord) -> None:
        task = message.data.task
        if message.kind == "execute" and task is not None:
            self._heard(task.id, task.version)
