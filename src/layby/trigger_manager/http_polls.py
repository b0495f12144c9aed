"""How HttpPoll is asked: one request, bounded in time and size, to hosts that are allowed.

Every host is checked by its name before it is looked up, and by its address when it is connected
to, redirects included. A secret goes only to the hosts it is for.
"""

from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from layby.client.outbound import OutboundRefused
from layby.client.outbound_resolver import OutboundResolver
from layby.client.outbound_session import open_outbound_session
from layby.core.model import Millis
from layby.errors import TriggerError
from layby.trigger_manager.access_checks import AccessChecks, AccessRefused, may_be_sent, reveal
from layby.trigger_manager.foreign_numbers import as_text
from layby.triggers.built_in import HttpPoll, SecretNamed, fits_header
from layby.triggers.polled import RetryAfter

MAX_UNDER_WAY: Final = 256
MAX_PER_HOST: Final = 64
MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_YET: Final = frozenset({404, 409, 425})
_BUSY: Final = frozenset({429, 503})
_NOT_ENCODED: Final = "identity"
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})


class HttpPolls:
    """Belongs to the loop of its first question."""

    def __init__(self, checks: AccessChecks) -> None:
        self._checks = checks
        self._max_answer = checks.access.max_answer
        self._resolver = OutboundResolver(checks.rules, checks.lookup)
        self._session: ClientSession | None = None

    async def ask(self, trigger: HttpPoll, now: Millis) -> dict[str, Any] | None:
        """What it answered, if that is what is waited for; None when not yet."""
        try:
            return await self._ask(trigger, now)
        except OutboundRefused as refusal:
            raise AccessRefused(f"{refusal}; add it to triggers.allow if it may be asked") from None
        except TimeoutError:
            raise TriggerError(f"no answer within {trigger.timeout:g} s") from None
        except ClientError as error:  # its text may contain secrets of the URL
            raise TriggerError(f"no answer: {type(error).__name__}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    async def _ask(self, trigger: HttpPoll, now: Millis) -> dict[str, Any] | None:
        url, method, json = trigger.url, str(trigger.method), trigger.json
        for _ in range(MAX_REDIRECTS + 1):
            async with self._open_session().request(
                method,
                self._checked(url),
                headers=self._headers(trigger, url),
                json=json,
                allow_redirects=False,
                timeout=ClientTimeout(total=trigger.timeout),
            ) as answer:
                goes_to = answer.headers.get("Location")
                if answer.status not in _REDIRECTS or goes_to is None:
                    return await self._judge(trigger, answer, now)
                if answer.status == 303:
                    method, json = "HEAD" if method == "HEAD" else "GET", None
                url = urljoin(url, goes_to)
        raise TriggerError(f"it redirects more than {MAX_REDIRECTS} times")

    def _checked(self, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TriggerError("it redirects to something that is not http:// or https://")
        self._checks.check_host(parts.hostname)
        return url

    def _headers(self, trigger: HttpPoll, url: str) -> dict[str, str]:
        """Credentials stay with the host they are for."""
        host = urlsplit(url).hostname or ""
        is_first = _origin(url) == _origin(trigger.url)
        sent = {"User-Agent": "layby", "Accept-Encoding": _NOT_ENCODED}
        for name, value in trigger.headers.items():
            if isinstance(value, SecretNamed):
                if (text := self._revealed(value, host, is_first=is_first)) is not None:
                    sent[name] = text
            elif is_first or name.lower() not in _CREDENTIALS:
                sent[name] = value
        return sent

    def _revealed(self, named: SecretNamed, host: str, *, is_first: bool) -> str | None:
        if is_first:
            found = self._checks.secret_for(named.secret, host)
        elif not may_be_sent(found := self._checks.secret(named.secret), host):
            return None
        text = reveal(found)
        if not fits_header(text):
            raise TriggerError(f"the secret {named.secret!r} does not fit into a header")
        return named.prefix + text

    def _open_session(self) -> ClientSession:
        if self._session is None:
            self._session = open_outbound_session(
                self._resolver, limit=MAX_UNDER_WAY, limit_per_host=MAX_PER_HOST
            )
        return self._session

    async def _judge(
        self, trigger: HttpPoll, answer: ClientResponse, now: Millis
    ) -> dict[str, Any] | None:
        is_good = 200 <= answer.status < 300
        if answer.status in trigger.status or (is_good and not trigger.status):
            body = _decoded(await self._read(answer))
            if trigger.until is None or trigger.until.holds(body):
                return {"status": answer.status, "body": as_text(body)}
            return None
        if answer.status in _BUSY and (asked := answer.headers.get("Retry-After")):
            raise RetryAfter(seconds_of_retry_after(asked, now))
        if is_good or answer.status in _NOT_YET or answer.status == 429:
            return None
        raise TriggerError(f"it answered {answer.status}")

    async def _read(self, answer: ClientResponse) -> bytes:
        read = bytearray()
        async for chunk in answer.content.iter_any():
            read += chunk
            if len(read) > self._max_answer:
                answer.close()
                raise TriggerError(
                    f"its answer is larger than {self._max_answer} bytes: ask for less"
                )
        encoding = answer.headers.get("Content-Encoding", _NOT_ENCODED)
        if read and encoding.lower() != _NOT_ENCODED:
            raise TriggerError(f"its answer is encoded ({encoding:.50}), which was not asked for")
        return bytes(read)


def seconds_of_retry_after(text: str, now: Millis) -> float:
    """Seconds, or a date as HTTP writes it; 0 when it is neither."""
    if text.strip().isdecimal():
        return float(text.strip()[:12])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now / 1000)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body.decode(errors="replace")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
