"""Reads request bodies whole, unless one is too large or too much arrives at once.

The token is inside the body, so anybody could fill the memory with unfinished bodies.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from layby.core.replies import Reply, refuse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

ROOM: Final = 256 * 2**20
"""How many bytes all unfinished bodies may have together."""
ENDED_EARLY: Final = refuse(400, "The request ended early")
TOO_MUCH_AT_ONCE: Final = refuse(503, "Too many large requests at once: try again in a moment")


class BodyReader:
    def __init__(self, limit: int, room: int = ROOM, setting: str | None = None) -> None:
        """`setting` is what its owner would raise to allow more, if that can be."""
        self._limit = limit
        self._remedy = "store large values elsewhere and pass their address"
        if setting is not None:
            self._remedy += f", or raise {setting}"
        self._room = max(room, 4 * limit)

    async def read(self, scope: Scope, receive: Receive) -> bytes | Reply:
        refused = self._too_large(int(header(scope, b"content-length") or 0))
        body, held = bytearray(), 0
        try:
            while refused is None or not _can_be_refused_early(scope):
                message = await receive()
                if message["type"] == "http.disconnect":
                    return ENDED_EARLY
                body += message["body"]
                refused = refused or self._too_large(len(body))
                if refused is not None:
                    body.clear()
                if not message.get("more_body"):
                    break
                self._room -= len(body) - held
                held = len(body)
                if self._room < 0:
                    refused = refused or TOO_MUCH_AT_ONCE
        finally:
            self._room += held
        return refused or bytes(body)

    def _too_large(self, size: int) -> Reply | None:
        if size <= self._limit:
            return None
        return refuse(413, f"Request body is larger than {self._limit} bytes: {self._remedy}")


def header(scope: Scope, name: bytes) -> str | None:
    found: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if found else None


def _can_be_refused_early(scope: Scope) -> bool:
    """False if the connection ends with the answer: a peer still sending would not read it."""
    if header(scope, b"expect") is not None:
        return True
    closes = "close" in (header(scope, b"connection") or "").lower()
    return scope["http_version"] == "1.1" and not closes
