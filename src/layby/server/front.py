"""What stands between an engine and sockets. Lives in the event loop it is made in."""

from collections.abc import Awaitable, Callable

from layby.client.local import LocalClient
from layby.server.app import Application, Surface
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.listener import Limits, Listener
from layby.server.routing import Router
from layby.server.rpc import Count, Rpc


class Front:
    def __init__(
        self,
        client: LocalClient,
        router: Router,
        surface: Surface | None = None,
        *,
        gate: Gate | None = None,
        count: Count = lambda _kind, _status, _seconds: None,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        limits: Limits | None = None,
        debug: bool = False,
    ) -> None:
        gate = gate or Gate(AuthConfig())
        rpc = Rpc(client, gate, count, debug=debug)
        self.app = Application(client, router, rpc, gate, surface or Surface(), metrics)
        self.listener = Listener(self.app, limits)

    async def close(self, grace: float) -> None:
        """Answer what can be answered in `grace` seconds; the rest is told to come again."""
        self.app.drain()
        await self.listener.close(grace)
