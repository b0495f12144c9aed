"""A Runner whose file another process owns: it speaks to that one, and succeeds it.

Whoever starts first owns the file, and nobody knows who will end first. When the owner is gone
one of its guests opens the file and listens where it did. All of them, the new owner's own worker
too, find it there by themselves: they only see a server that was away for a moment. A real server
has no successor: it will be back, and must find its file free.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from layby.errors import LaybyError, StoreOwned
from layby.runner.embedded import EmbeddedLink
from layby.runner.remote import RemoteLink
from layby.store.ownership import is_owned_by_server, is_served, socket_of
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1


class SharedFileLink(RemoteLink):
    """`open_file` opens the file, if nobody else has it."""

    def __init__(self, file: Path, open_file: Callable[[], EmbeddedLink]) -> None:
        super().__init__(f"unix:{socket_of(file)}", None)
        self._file = file
        self._open_file = open_file
        self._owned_link: EmbeddedLink | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def join(self, worker: Worker) -> None:
        self._waiting = asyncio.create_task(self._take_over())
        await super().join(worker)

    async def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
        await super().close()
        if self._owned_link is not None:
            await self._owned_link.close()

    async def _take_over(self) -> None:
        """Only while nothing is heard of the owner can the file be free."""
        is_server = is_owned_by_server(self._file)
        while self._owned_link is None:
            if self._inbox is not None and self._inbox.is_open.is_set():
                is_server = is_owned_by_server(self._file)
                await self._inbox.is_down.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            if not is_server and not is_served(self._file):
                self._try_to_take_over()

    def _try_to_take_over(self) -> None:
        try:
            self._owned_link = self._open_file()
        except StoreOwned:
            return  # it has not let go yet, or another guest was faster
        except LaybyError as failure:
            logger.warning("nobody owns %s, and it cannot be opened: %s", self._file, failure)
        else:
            logger.info("the owner of %s is gone: this process owns it now", self._file)
