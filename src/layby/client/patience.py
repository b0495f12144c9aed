"""What a worker does while the store does not answer: it retries, at increasing intervals."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from layby.client.interface import Client
from layby.client.lost_replies import recovered_reply
from layby.core.commands import Command
from layby.core.pauses import Pauses
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.errors import StoreError, StoreUnavailable
from layby.rate_limited_log import RateLimitedLog

_log = RateLimitedLog(
    "the store does not answer, trying again", logging.getLogger(__name__), logging.WARNING
)

PAUSES = Pauses(0.1, longest=5.0)
"""Between tries."""


def known(reply: Reply) -> Reply:
    """Treat a server that rejects our token as unavailable: it may accept the token later."""
    if reply.status == 401:
        raise StoreUnavailable(f"the server does not accept the token of this worker: {reply.data}")
    return reply


def tell_outage(failure: StoreError) -> None:
    """However many requests wait for the end of it, and however often each asks again."""
    _log.tell(str(failure))


async def send_until_answered(
    client: Client, request: Command | Query, *, is_unsure: bool = False
) -> Reply:
    """Send until the store answers. A batch that failed wrote nothing, or nobody can tell: if the
    request is refused then, the store is read to find out. `is_unsure`: it has failed before.
    """

    async def send() -> Reply:
        nonlocal is_unsure
        try:
            reply = await client.send(request)
        except StoreError:
            is_unsure = True
            raise
        is_doubtful = is_unsure and reply.status in (404, 409)
        return await recovered_reply(client.send, request, reply) if is_doubtful else reply

    return await until_answered(send)


async def until_answered(send: Callable[[], Awaitable[Reply]]) -> Reply:
    for pause in PAUSES:
        try:
            return known(await send())
        except StoreError as failure:
            tell_outage(failure)
        await asyncio.sleep(pause)
    raise AssertionError  # there is always another pause
