"""What a worker does while the store does not answer: it retries, at increasing intervals."""

import asyncio
import logging
from collections.abc import Iterator
from itertools import chain, repeat

from layby.client.interface import Client
from layby.core.commands import Command
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.errors import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)


def pauses() -> Iterator[float]:
    """Seconds between tries; the last one repeats."""
    return chain(PAUSES_S, repeat(PAUSES_S[-1]))


def known(reply: Reply) -> Reply:
    """Treat a server that rejects our token as unavailable: it may accept the token later."""
    if reply.status == 401:
        raise StoreUnavailable(f"the server does not accept the token of this worker: {reply.data}")
    return reply


async def send_until_answered(client: Client, request: Command | Query) -> Reply:
    """Send until the store answers. A failed batch wrote nothing, so resending is safe."""
    for pause in pauses():
        try:
            return known(await client.send(request))
        except StoreError as failure:
            logger.warning("the store does not answer, trying again: %s", failure)
        await asyncio.sleep(pause)
    raise AssertionError  # there is always another pause
