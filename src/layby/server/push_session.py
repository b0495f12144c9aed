"""The connections of pushes, as aiohttp makes them.

Loaded with the first message, since it takes as long as half of the rest of a server, and most
servers never push.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Final

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    TraceConfig,
)
from yarl import URL

from layby.client.outbound import Lookup, OutboundRules
from layby.client.outbound_resolver import OutboundResolver
from layby.client.outbound_session import open_outbound_session
from layby.server.push_outcome import PushOutcome
from layby.server.push_queue import PushHost
from layby.server.server_config import PushConfig

_MAX_ANSWER: Final = 64 * 1024
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "layby"}


class PushSession:
    """`connected` is called once there is a connection; the answer may take minutes more."""

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
        self._session = open_outbound_session(  # without a limit: `PushQueue` has one
            self._resolver,
            timeout=ClientTimeout(total=config.request_timeout, connect=config.connect_timeout),
            headers=_HEADERS,
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


async def _read_to_end(response: ClientResponse) -> None:
    """Only the status counts. A short body is read so that the connection can be reused."""
    with suppress(ClientError, TimeoutError, asyncio.IncompleteReadError):
        await response.content.readexactly(_MAX_ANSWER)
