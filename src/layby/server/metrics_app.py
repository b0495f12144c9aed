"""`/metrics` alone, for a port that only Prometheus reaches."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from layby.server.metrics import CONTENT_TYPE

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MetricsApp:
    def __init__(self, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._scrape = scrape

    async def __call__(self, scope: MutableMapping[str, Any], _receive: object, send: Send) -> None:
        is_known = scope["path"] == "/metrics" and scope["method"] == "GET"
        body = await self._scrape() if is_known else b"There is only GET /metrics here\n"
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(body))]
        status = 200 if is_known else 404
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
