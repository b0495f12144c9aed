"""What waits in the outbox for one receiver, page by page, as fast as that makes room for it.

When there was no room for some of it, or something came while there was none, all is offered once
more; what is under way by then is passed over quickly.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from layby.core.queries import OfferMessages
from layby.delivery.assignments import Receiver
from layby.errors import EngineStopped, StoreError
from layby.local import LocalClient

logger = logging.getLogger(__name__)

FIRST_PAGE: Final = OfferMessages().after
PAGE: Final = 100


class Offering:
    """Runs until everything has been offered, and the receiver had room for it."""

    def __init__(self, receiver: Receiver, client: LocalClient) -> None:
        self._receiver = receiver
        self._client = client
        self._made_room = asyncio.Event()
        self._times_full = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def resume(self) -> None:
        """The receiver has room again; before, something may have passed it by."""
        self._times_full += 1
        self._made_room.set()

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        before = None
        try:
            while before != self._times_full:
                before = self._times_full
                for first in _addresses_of(self._receiver):
                    await self._offer(first)
        except StoreError as failure:  # the engine offers everything again now and then
            who = f"{self._receiver.group}/{self._receiver.id}"
            logger.warning("what waits for %s will be told later: %s", who, failure)
        except EngineStopped:
            return

    async def _offer(self, page: OfferMessages | None) -> None:
        while page is not None:
            await self._room()
            page = await self._next(page)

    async def _room(self) -> None:
        self._made_room.clear()
        while not self._receiver.has_room:
            await self._made_room.wait()
            self._made_room.clear()

    async def _next(self, page: OfferMessages) -> OfferMessages | None:
        """The page to offer after this one, or None."""
        told = (await self._client.send(page)).data
        return told if isinstance(told, OfferMessages) and told.after != FIRST_PAGE else None


def _addresses_of(receiver: Receiver) -> Iterator[OfferMessages]:
    """The ranges of addresses it can be reached at; who else is found there is left alone."""
    own, group = f"poll://uni@{receiver.group}/{receiver.id}", f"poll://any@{receiver.group}"
    yield OfferMessages(start=own, end=f"{own}\0", limit=PAGE)
    yield OfferMessages(start=group, end=f"{group}0", limit=PAGE)  # "0" follows "/"
