"""What the worker does while the store does not answer: it tries again, ever less often."""

import asyncio
import logging

from layby.client.api import Client
from layby.core.commands import Command
from layby.core.pauses import Pauses
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.errors import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

PAUSES = Pauses(0.1, longest=5.0)
"""Between tries."""


def known(reply: Reply) -> Reply:
    """A server that does not know our token (any more) is as good as none: it may know it again."""
    if reply.status == 401:
        raise StoreUnavailable(f"the server does not accept the token of this worker: {reply.data}")
    return reply


async def patiently(client: Client, request: Command | Query) -> Reply:
    """Send until the store answers. A failed batch wrote nothing, so it may be sent again."""
    for pause in PAUSES:
        try:
            return known(await client.send(request))
        except StoreError as failure:
            logger.warning("the store does not answer, trying again: %s", failure)
        await asyncio.sleep(pause)
    raise AssertionError  # there is always another pause
