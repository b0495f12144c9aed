"""The private socket of a file's owner: how other processes reach an embedded Runner."""

import asyncio
import importlib
import logging
import socket
from pathlib import Path
from typing import Any, Final

from layby.client.local import LocalClient
from layby.server.routing import Router
from layby.store.ownership import socket_of

logger = logging.getLogger(__name__)

GRACE_S: Final = 0.5
PATIENCE_S: Final = 3.0
"""An owner that has just opened the file needs a moment until it listens."""
LOOK_EVERY_S: Final = 0.05


class PrivateSocket:
    """Opens in the background: nobody's first task waits for it."""

    def __init__(self, database: Path, client: LocalClient, router: Router) -> None:
        self.path = socket_of(database)
        self._client = client
        self._router = router
        self._front: Any = None
        self._opening = asyncio.create_task(self._open())

    async def close(self) -> None:
        self._opening.cancel()
        await asyncio.wait([self._opening])
        if self._front is not None:
            await self._front.close(GRACE_S)
            self.path.unlink(missing_ok=True)

    async def _open(self) -> None:
        """What serves HTTP is slow to load, so a thread does that."""
        loop = asyncio.get_running_loop()
        module = await loop.run_in_executor(None, importlib.import_module, "layby.server.front")
        self._front = module.Front(self._client, self._router)
        try:
            await self._front.listener.listen_on_path(self.path)
        except OSError as error:
            logger.warning("other processes cannot reach this one: %s: %s", self.path, error)


async def owner_url(database: Path) -> str | None:
    """Where the owner of this file listens; None when it does not."""
    path = socket_of(database)
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while not _answers(path):
        if loop.time() > until:
            return None
        await asyncio.sleep(LOOK_EVERY_S)
    return f"unix:{path}"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
