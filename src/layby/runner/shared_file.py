"""The link of a Runner whose file another process owns: it talks to the owner, and may take over.

The process that starts first owns the file, and any of them may end first. When the owner is gone,
one of the others opens the file and listens on the same socket. All of them, including the new
owner's own worker, reconnect there: to them it looks like a server that was away for a moment.
Nobody takes over from a real server: it will be back, and needs its file.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from layby.client.http import PATIENCE_S
from layby.errors import LaybyError, StoreGone, StoreOwned
from layby.runner.embedded import EmbeddedLink
from layby.runner.remote import RemoteLink
from layby.store.own_file import identity
from layby.store.ownership import is_owned_by_server, is_served, socket_of
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
LOOK_WITHOUT_STREAM_S: Final = 1.0


class SharedFileLink(RemoteLink):
    """`open_file` opens the file if no other process owns it."""

    is_shared = False

    def __init__(self, file: Path, open_file: Callable[[], EmbeddedLink]) -> None:
        super().__init__(f"unix:{socket_of(file)}", None, PATIENCE_S)
        self._file = file
        self._identity = identity(file)
        self._open_file = open_file
        self._owned_link: EmbeddedLink | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._look_every = LOOK_EVERY_S

    async def greet(self) -> None:
        """Without a worker there is no stream whose end would tell that the owner is gone."""
        self._look_every = LOOK_WITHOUT_STREAM_S
        self._waiting = asyncio.create_task(self._take_over())
        await super().greet()

    async def join(self, worker: Worker) -> None:
        self._waiting = asyncio.create_task(self._take_over())
        await super().join(worker)

    async def close(self) -> None:
        try:
            await self._close_guest()
        finally:
            if self._owned_link is not None:
                await self._owned_link.close()

    async def _close_guest(self) -> None:
        try:
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])
        finally:
            await super().close()

    async def _take_over(self) -> None:
        """Wait until the owner is gone. The file can only be free while the stream is down."""
        is_server = is_owned_by_server(self._file)
        while self._owned_link is None:
            if self._inbox is not None and self._inbox.is_open.is_set():
                is_server = is_owned_by_server(self._file)
                await self._inbox.is_down.wait()
            await asyncio.sleep(self._look_every)
            if is_served(self._file):
                is_server = is_owned_by_server(self._file)
            elif not is_server:
                self._try_to_take_over()

    def _try_to_take_over(self) -> None:
        """Only of the file that was shared: another one, or a new one, knows none of its runs."""
        try:
            if identity(self._file) != self._identity:
                raise StoreGone("it was deleted or replaced; put the original back")
            self._owned_link = self._open_file()
        except StoreOwned:
            return  # the owner still has it, or another process was faster
        except LaybyError as failure:
            logger.warning("no process owns %s, but it cannot be opened: %s", self._file, failure)
        else:
            logger.info("the owner of %s is gone: this process owns it now", self._file)
