"""The private socket of a file's owner: how other processes reach an embedded Runner."""

import asyncio
import importlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from layby.delivery.routing import Router
from layby.errors import StoreOpenHere, StoreOwned
from layby.local import LocalClient
from layby.store.ownership import is_served, socket_of

if TYPE_CHECKING:
    from layby.runner.embedded import EmbeddedLink
    from layby.runner.shared_file import SharedFileLink

logger = logging.getLogger(__name__)

GRACE_S: Final = 0.5
PATIENCE_S: Final = 3.0
LOOK_EVERY_S: Final = 0.05


class PrivateSocket:
    """Opens in the background, so that the first task does not wait for it."""

    def __init__(self, database: Path, client: LocalClient, router: Router) -> None:
        self.path = socket_of(database)
        self._client = client
        self._router = router
        self._front: Any = None
        self._opening = asyncio.create_task(self._open())

    async def opened(self) -> None:
        await asyncio.wait([self._opening])

    async def close(self) -> None:
        self._opening.cancel()
        try:
            await asyncio.wait([self._opening])
        finally:
            await self._close_front()

    async def _close_front(self) -> None:
        if self._front is None:
            return
        try:
            await self._front.close(GRACE_S)
        finally:
            with suppress(OSError):  # somebody else's file is in its place
                self.path.unlink(missing_ok=True)

    async def _open(self) -> None:
        """Loads the HTTP server in a thread, since that is slow."""
        loop = asyncio.get_running_loop()
        try:
            module = await loop.run_in_executor(None, importlib.import_module, "layby.server.front")
            self._front = module.Front(self._client, self._router)
            await self._front.listener.listen_on_path(self.path)
        except OSError as error:
            logger.warning("other processes cannot reach this one through %s: %s", self.path, error)


async def open_or_join(
    file: Path, open_file: "Callable[[], EmbeddedLink]", *, may_join: bool
) -> "EmbeddedLink | SharedFileLink":
    """Open the file, or talk to the process that owns it.

    An owner that has just opened the file needs a moment until it listens, and may end before that.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while True:
        try:
            return open_file()
        except StoreOwned as owned:
            if not may_join or isinstance(owned, StoreOpenHere) or loop.time() > until:
                raise
        if is_served(file):
            from layby.runner.shared_file import SharedFileLink  # noqa: PLC0415 - HTTP is slow to load

            return SharedFileLink(file, open_file)
        await asyncio.sleep(LOOK_EVERY_S)
