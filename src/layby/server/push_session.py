"""The connections of pushes, as aiohttp makes them.

Loaded with the first message, since it takes as long as half of the rest of a server, and most
servers never push.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Final

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
    TraceConfig,
)
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from layby.client.outbound import Lookup, OutboundRules
from layby.client.outbound_resolver import OutboundResolver
from layby.server.push_outcome import PushOutcome
from layby.server.push_queue import PushHost
from layby.server.server_config import PushConfig

_KEEP_ALIVE: Final = 4.0  # less than the 5 s after which common servers disconnect
_MAX_ANSWER: Final = 64 * 1024
_MAX_INTERIM: Final = 100
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "layby"}


class PushSession:
    """`connected` is called once there is a connection; the answer may take minutes more.

    No cookies, no proxies.
    """

    def __init__(
        self,
        config: PushConfig,
        connected: Callable[[PushHost], None],
        rules: OutboundRules,
        lookup: Lookup,
    ) -> None:
        self._connected = connected
        self._resolver = OutboundResolver(rules, lookup)
        trace = TraceConfig()
        trace.on_connection_create_end.append(self._obtained)
        trace.on_connection_reuseconn.append(self._obtained)
        self._session = ClientSession(
            connector=_Connector(self._resolver),
            timeout=ClientTimeout(total=config.request_timeout, connect=config.connect_timeout),
            headers=_HEADERS,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[trace],
        )

    async def post(
        self, url: URL, body: bytes, headers: dict[str, str], host: PushHost
    ) -> int | PushOutcome:
        """The status of the answer, or why there is none."""
        try:
            # A redirect would take our token to an address that was not checked.
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=host
            ) as response:
                await _read_to_end(response)
                return response.status
        except ConnectionTimeoutError:
            return PushOutcome("out of reach", "no connection in time")
        except ClientConnectorError as error:
            return PushOutcome("out of reach", str(error.os_error))
        except ValueError:  # for example a user name that does not fit into a header
            return PushOutcome("forbidden", "nothing can be posted to this address")
        except (ClientError, TimeoutError) as error:  # its text may contain secrets of the URL
            return PushOutcome("failed", f"no answer: {type(error).__name__}")

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()

    async def _obtained(self, _: ClientSession, context: SimpleNamespace, __: object) -> None:
        self._connected(context.trace_request_ctx)


class _Connector(TCPConnector):
    """Without a limit: `PushQueue` limits the connections."""

    def __init__(self, resolver: OutboundResolver) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - aiohttp's own gap
            resolver=resolver, limit=0, keepalive_timeout=_KEEP_ALIVE
        )
        self._factory = partial(_BoundedResponseHandler, loop=self._loop)


class _BoundedResponseHandler(ResponseHandler):
    """Disconnects a host that sends endless interim responses (1xx), which are all buffered."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self) > _MAX_INTERIM and self.transport is not None:
            self.transport.abort()


async def _read_to_end(response: ClientResponse) -> None:
    """Only the status counts. A short body is read so that the connection can be reused."""
    with suppress(ClientError, TimeoutError, asyncio.IncompleteReadError):
        await response.content.readexactly(_MAX_ANSWER)
