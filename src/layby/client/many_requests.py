"""Many requests of one kind, such as one for each task of a run: sent in portions.

A client sends what is asked for at the same time together, so a portion is one request to a server,
and one transaction where nobody else writes. Portions are bounded: others get their turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from layby.core.commands import Command
from layby.core.replies import Reply

PORTION: Final = 500


async def send_all(
    send: Callable[[Command], Awaitable[Reply]], requests: Sequence[Command]
) -> list[Reply]:
    """The replies, in order."""
    replies: list[Reply] = []
    for at in range(0, len(requests), PORTION):
        replies += await asyncio.gather(*map(send, requests[at : at + PORTION]))
    return replies
