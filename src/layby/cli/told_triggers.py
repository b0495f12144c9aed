"""Beside a server: says which triggers wait because no process may run them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from layby.server.server import Server
from layby.trigger_manager.untaken_triggers import UntakenTriggers


@asynccontextmanager
async def told_triggers(server: Server) -> AsyncGenerator[None]:
    """The first look comes before anybody is served: what it opens belongs to the start."""
    untaken = UntakenTriggers(server.client.send, server.engine.clock.now)
    await untaken.look()
    watching = asyncio.create_task(untaken.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
