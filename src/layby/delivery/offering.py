"""Offers one receiver the messages in the outbox, page by page, as fast as it makes room for them.

If the receiver was full at some point, it may have missed messages, so everything is offered once
more; messages that are already under way are skipped cheaply.
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
    """Runs until the receiver has been offered everything while it had room."""

    def __init__(self, receiver: Receiver, client: LocalClient, turns: asyncio.Semaphore) -> None:
        """`turns`: whose pages are read now. Without, a command would wait for one of each
        receiver that has just connected, which may be thousands.
        """
        self._receiver = receiver
        self._client = client
        self._turns = turns
        self._made_room = asyncio.Event()
        self._times_full = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def resume(self) -> None:
        """The receiver has room again, and may have missed messages while it was full."""
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
            logger.warning("messages for %s will be delivered later: %s", who, failure)
        except EngineStopped:
            return

    async def _offer(self, page: OfferMessages | None) -> None:
        while page is not None:
            await self._wait_for_room()
            page = await self._offer_page(page)

    async def _wait_for_room(self) -> None:
        self._made_room.clear()
        while not self._receiver.has_room:
            await self._made_room.wait()
            self._made_room.clear()

    async def _offer_page(self, page: OfferMessages) -> OfferMessages | None:
        """Offer this page; returns the one after it, or None."""
        async with self._turns:
            after = (await self._client.send(page)).data
        return after if isinstance(after, OfferMessages) and after.after != FIRST_PAGE else None


def _addresses_of(receiver: Receiver) -> Iterator[OfferMessages]:
    """The ranges of addresses that reach it; messages to others in a range are not affected."""
    own, group = f"poll://uni@{receiver.group}/{receiver.id}", f"poll://any@{receiver.group}"
    yield OfferMessages.to(own, PAGE)
    yield OfferMessages(start=group, end=f"{group}0", limit=PAGE)  # "0" follows "/"
