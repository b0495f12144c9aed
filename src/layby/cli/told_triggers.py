"""Beside a server: says which triggers wait because no process may run them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module

from layby.core.queries import SearchTasks
from layby.core.replies import TaskPage
from layby.core.resumption import TRIGGER_GROUP
from layby.errors import LaybyError
from layby.server.server import Server

LOOK_S = 10.0
_SOME = SearchTasks(group=TRIGGER_GROUP, state="pending", limit=1)


@asynccontextmanager
async def told_triggers(server: Server) -> AsyncGenerator[None]:
    """The first look comes before anybody is served: what it opens belongs to the start."""
    has_some = await _has_some(server)
    watching = asyncio.create_task(_watch(server, has_some=has_some))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(server: Server, *, has_some: bool) -> None:
    while not has_some:
        await asyncio.sleep(LOOK_S)
        has_some = await _has_some(server)
    # Sentences about what waits: most servers need none of that code.
    await asyncio.to_thread(import_module, "layby.runner.untaken_triggers")
    from layby.runner.untaken_triggers import UntakenTriggers  # noqa: PLC0415 - see above

    await UntakenTriggers(server.client.send, server.engine.clock.now).watch()


async def _has_some(server: Server) -> bool:
    try:
        page = (await server.client.send(_SOME)).data
    except LaybyError:  # the store is away, which others tell
        return False
    return isinstance(page, TaskPage) and bool(page.tasks)
