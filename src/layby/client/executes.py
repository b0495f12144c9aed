"""What the server has to tell a worker that serves calls: which tasks may be acquired."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from layby.client.stream import listen
from layby.client.transport import Transport
from layby.core.commands import Command, DeclineTask, Query
from layby.core.replies import Reply
from layby.errors import LaybyError
from layby.wire.answers import MessageEnvelope

logger = logging.getLogger(__name__)


class ExecuteStream:
    """Open, it is one of the receivers of its group, like a worker of any SDK."""

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
        self._declined: deque[DeclineTask] = deque()
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

    def decline(self, task_id: str, version: int, target: str) -> None:
        """One after the other: whoever declines is busy already."""
        self._declined.append(
            DeclineTask(id=task_id, version=version, target=target, pid=self._pid)
        )
        if self._declining is None or self._declining.done():
            self._declining = asyncio.create_task(self._decline())

    async def _decline(self) -> None:
        while self._declined:
            try:
                await self._send(self._declined.popleft())
            except LaybyError as failure:  # it is told again when nobody has taken it
                logger.warning("a call was not declined: %s", failure)

    def _hear(self, message: MessageEnvelope) -> None:
        task = message.data.task
        if message.kind == "execute" and task is not None:
            self._heard(task.id, task.version)
