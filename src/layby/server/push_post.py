"""One POST to an address that a user named, and its outcome. Does not decide about retries."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Final, Literal

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
from msgspec import Struct
from yarl import URL

from layby.client.outbound import Lookup, OutboundRefused, OutboundResolver, OutboundRules, look_up
from layby.errors import UsageError
from layby.server.push_queue import PushHost
from layby.server.push_token import TokenHosts
from layby.server.server_config import PushConfig

_RETRY_SOON: Final = frozenset({408, 425, 429})
_KEEP_ALIVE: Final = 4.0  # less than the 5 s after which common servers disconnect
_MAX_ANSWER: Final = 64 * 1024
_MAX_INTERIM: Final = 100
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "layby"}


class PushOutcome(Struct, frozen=True):
    """`refused`: the receiver rejects this message. `forbidden`: we may not send it there."""

    kind: Literal["arrived", "out of reach", "failed", "refused", "forbidden"]
    why: str = ""


ARRIVED: Final = PushOutcome("arrived")


class Poster:
    """`connected` is called once there is a connection; the answer may take minutes more."""

    def __init__(
        self, config: PushConfig, connected: Callable[[PushHost], None], lookup: Lookup = look_up
    ) -> None:
        self._config = config
        self._connected = connected
        self._token_header = _token_header(config)
        self._token_hosts = TokenHosts(config.token_hosts)
        self._rules = OutboundRules(config.allow)
        self._resolver = OutboundResolver(self._rules, lookup)
        self._session: ClientSession | None = None

    async def post(self, url: URL, body: bytes, host: PushHost) -> PushOutcome:
        try:
            self._rules.check_literal(url.raw_host or "")
            return await self._post(url, body, host)
        except OutboundRefused as refusal:
            return PushOutcome(
                "forbidden", f"{refusal}; if it may be pushed to, add it to push.allow"
            )
        except ConnectionTimeoutError:
            return PushOutcome("out of reach", "no connection in time")
        except ClientConnectorError as error:
            return PushOutcome("out of reach", str(error.os_error))
        except ValueError:  # for example a user name that does not fit into a header
            return PushOutcome("forbidden", "nothing can be posted to this address")
        except (ClientError, TimeoutError) as error:  # its text may contain secrets of the URL
            return PushOutcome("failed", f"no answer: {type(error).__name__}")

    async def _post(self, url: URL, body: bytes, host: PushHost) -> PushOutcome:
        self._session = self._session or self._open_session()
        token = self._token_header if url in self._token_hosts else {}
        if token:
            url = url.with_user(None)  # aiohttp refuses two kinds of credentials
        # A redirect would take our token to an address that was not checked.
        async with self._session.post(
            url, data=body, headers=token, allow_redirects=False, trace_request_ctx=host
        ) as response:
            await _read_to_end(response)
            return self._judge(response.status, has_token=bool(token))

    def _judge(self, status: int, *, has_token: bool) -> PushOutcome:
        if status == 401 and self._token_header and not has_token:
            return PushOutcome("refused", "it answered 401, and is not in push.token_hosts")
        return _judge(status)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _open_session(self) -> ClientSession:
        """No cookies, no proxies."""
        config = self._config
        trace = TraceConfig()
        trace.on_connection_create_end.append(self._obtained)
        trace.on_connection_reuseconn.append(self._obtained)
        return ClientSession(
            connector=_Connector(self._resolver),
            timeout=ClientTimeout(total=config.request_timeout, connect=config.connect_timeout),
            headers=_HEADERS,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[trace],
        )

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


def _token_header(config: PushConfig) -> dict[str, str]:
    if config.auth == "none":
        return {}
    token = config.token.reveal() if config.token is not None else ""
    if not token or not (token.isascii() and token.isprintable()):
        raise UsageError(
            "push.auth is bearer: push.token must name a secret that fits into a header"
        )
    return {config.header: f"Bearer {token}"}


def _judge(status: int) -> PushOutcome:
    if 200 <= status < 300:
        return ARRIVED
    if status >= 500 or status in _RETRY_SOON:
        return PushOutcome("failed", f"it answered {status}")
    return PushOutcome("refused", f"it answered {status}")


async def _read_to_end(response: ClientResponse) -> None:
    """Only the status counts. A short body is read so that the connection can be reused."""
    with suppress(ClientError, TimeoutError, asyncio.IncompleteReadError):
        await response.content.readexactly(_MAX_ANSWER)
