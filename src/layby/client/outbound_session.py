"""HTTP to addresses that users name: one session that obeys `outbound.py`, and bounds answers."""

from functools import partial
from typing import Any, Final

from aiohttp import ClientSession, DummyCookieJar, TCPConnector
from aiohttp.client_proto import ResponseHandler

from layby.client.outbound_resolver import OutboundResolver

_KEEP_ALIVE: Final = 4.0  # less than the 5 s after which common servers disconnect
_MAX_INTERIM: Final = 100
_PIECE_BYTES: Final = 4_096
"""An event loop reads up to 256 KiB at once: thousands of interim responses, or of header lines."""


def open_outbound_session(
    resolver: OutboundResolver, *, limit: int = 0, limit_per_host: int = 0, **options: Any
) -> ClientSession:
    """No cookies, no proxies, nothing unpacked. A limit of 0 is none."""
    return ClientSession(
        connector=_Connector(resolver, limit, limit_per_host),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        **options,
    )


class _Connector(TCPConnector):
    def __init__(self, resolver: OutboundResolver, limit: int, limit_per_host: int) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - aiohttp's own gap
            resolver=resolver,
            limit=limit,
            limit_per_host=limit_per_host,
            keepalive_timeout=_KEEP_ALIVE,
        )
        self._factory = partial(_BoundedResponseHandler, loop=self._loop)


class _BoundedResponseHandler(ResponseHandler):
    """Disconnects a host that sends endless interim responses (1xx), which are all buffered."""

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            super().data_received(data[start : start + _PIECE_BYTES])
            if self.transport is None or self.transport.is_closing():
                return
            if len(self) > _MAX_INTERIM:
                self.transport.abort()
                return
