"""Connects an engine to sockets: application, request handler and listener."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from layby.delivery.routing import Router
from layby.local import LocalClient
from layby.server.app import Application, HttpSettings
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.hooks import Hooks
from layby.server.listener import HttpListener, Limits
from layby.server.request_handler import Count, RequestHandler
from layby.wire.ask import INCARNATION

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HEADERS: Final = ("Origin", "Content-Length", "Content-Type", "Authorization", INCARNATION)


class Front:
    """Use it in the event loop it is created in."""

    def __init__(
        self,
        client: LocalClient,
        router: Router,
        settings: HttpSettings | None = None,
        *,
        gate: Gate | None = None,
        count: Count = lambda _kind, _status, _seconds, _why: None,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        limits: Limits | None = None,
        debug: bool = False,
        hooks: Hooks | None = None,
    ) -> None:
        gate, settings = gate or Gate(AuthConfig()), settings or HttpSettings()
        handler = RequestHandler(client, router, gate, count, hooks, debug=debug)
        self.app = Application(client, router, handler, gate, settings, metrics, hooks)
        self.listener = HttpListener(_with_cors(self.app, settings.origins), limits)

    async def close(self, grace: float) -> None:
        """Answer what can be answered in `grace` seconds; the rest is told to try again."""
        self.app.drain()
        await self.listener.close(grace)


def _with_cors(app: Any, origins: tuple[str, ...]) -> Any:
    """Let web pages of these origins call; `*` is any origin, with any method and header."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415 - few servers need it

    if "*" in origins:
        return CORSMiddleware(app, allow_origins="*", allow_methods="*", allow_headers="*")
    return CORSMiddleware(app, allow_origins=origins, allow_methods=METHODS, allow_headers=HEADERS)
