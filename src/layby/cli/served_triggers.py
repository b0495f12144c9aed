"""The trigger manager of a server: it runs layby's own polling triggers, and no user code."""

import os
import socket
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from layby.clock import SystemClock
from layby.runner.embedded import EngineLink
from layby.runner.shared_database import SharedEngineLink
from layby.runner.trigger_host import TriggerHost
from layby.server.server import Server
from layby.server.trigger_config import TriggersConfig
from layby.store.postgres_address import is_postgres
from layby.trigger_manager.trigger_access import NamedSecret, TriggerAccess
from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import TriggerRegistry
from layby.worker.worker import WorkerConfig

TTL_MS: Final = 15_000


@asynccontextmanager
async def served_triggers(server: Server) -> AsyncGenerator[None]:
    """For a server whose configuration allows something to be polled."""
    config = server.config.triggers
    link = _link(server)
    worker = WorkerConfig(
        pid=f"{socket.gethostname()}-{os.getpid()}-server",
        incarnation=uuid.uuid4().hex,
        embedded=link.is_embedded,
        ttl=TTL_MS,
    )
    host = TriggerHost(link, worker, access_of(config), TriggerRegistry(BUILT_IN), config.capacity)
    await host.open()
    _watch(server, host)
    try:
        yield
    finally:
        await host.close()
        await link.close()


def access_of(config: TriggersConfig) -> TriggerAccess:
    return TriggerAccess(
        hosts=config.hosts,
        allow=config.allow,
        folders=config.folders,
        connections={each.name: each.url for each in config.connections},
        secrets=tuple(NamedSecret(each.name, each.value, each.hosts) for each in config.secrets),
    )


def _link(server: Server) -> EngineLink:
    link = SharedEngineLink if is_postgres(server.config.db) else EngineLink
    return link(server.engine, server.router, server.client, SystemClock())


def _watch(server: Server, host: TriggerHost) -> None:
    [manager] = host.managers
    server.watch("triggers_running", lambda: manager.running)
    server.watch("trigger_polls", lambda: manager.shared_polls)
    server.watch("triggers_capacity", lambda: manager.capacity)
