"""Answers that are under way for a long time."""

import asyncio
from typing import Any

from layby.core.replies import Reply, TakeData
from layby.worker.worker import Worker


class LateAnswers:
    """A client for a worker. The next answer that brings a task is kept back."""

    def __init__(self, worker: Worker) -> None:
        self._client = worker.client
        self._has_come, self.may_go = asyncio.Event(), asyncio.Event()
        worker.client = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, request: Any) -> Reply:
        reply = await self._client.send(request)
        if isinstance(reply.data, TakeData) and reply.data.claims and not self._has_come.is_set():
            self._has_come.set()
            await self.may_go.wait()
        return reply

    async def come(self) -> None:
        await self._has_come.wait()
