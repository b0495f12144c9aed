"""One POST to an address that a user named, and its outcome. Does not decide about retries."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from yarl import URL

from layby.client.outbound import Lookup, OutboundRefused, OutboundRules, look_up
from layby.errors import UsageError
from layby.server.push_outcome import PushOutcome, judge
from layby.server.push_queue import PushHost
from layby.server.push_token import TokenHosts
from layby.server.server_config import PushConfig

if TYPE_CHECKING:
    from layby.server.push_session import PushSession


class Poster:
    """`connected` is called once there is a connection; the answer may take minutes more."""

    def __init__(
        self, config: PushConfig, connected: Callable[[PushHost], None], lookup: Lookup = look_up
    ) -> None:
        self._config = config
        self._connected = connected
        self._lookup = lookup
        self._token_header = _token_header(config)
        self._token_hosts = TokenHosts(config.token_hosts)
        self._rules = OutboundRules(config.allow)
        self._session: PushSession | None = None

    async def post(self, url: URL, body: bytes, host: PushHost) -> PushOutcome:
        try:
            self._rules.check_literal(url.raw_host or "")
            return await self._post(url, body, host)
        except OutboundRefused as refusal:
            return PushOutcome(
                "forbidden", f"{refusal}; if it may be pushed to, add it to push.allow"
            )

    async def _post(self, url: URL, body: bytes, host: PushHost) -> PushOutcome:
        token = self._token_header if url in self._token_hosts else {}
        if token:
            url = url.with_user(None)  # aiohttp refuses two kinds of credentials
        session = self._session or await self._open_session()
        told = await session.post(url, body, token, host)
        if isinstance(told, PushOutcome):
            return told
        if told == 401 and self._token_header and not token:
            return PushOutcome("refused", "it answered 401, and is not in push.token_hosts")
        return judge(told)

    async def _open_session(self) -> "PushSession":
        """Loaded beside the event loop, which goes on meanwhile; whoever is first opens it."""
        loaded = await asyncio.to_thread(import_module, "layby.server.push_session")
        new: type[PushSession] = loaded.PushSession
        self._session = self._session or new(
            self._config, self._connected, self._rules, self._lookup
        )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _token_header(config: PushConfig) -> dict[str, str]:
    if config.auth == "none":
        return {}
    token = config.token.reveal() if config.token is not None else ""
    if not token or not (token.isascii() and token.isprintable()):
        raise UsageError(
            "push.auth is bearer: push.token must name a secret that fits into a header"
        )
    return {config.header: f"Bearer {token}"}
