"""Who asks, and whether they may. Knows tokens and requests, and nothing of HTTP.

A token is a JWT or an API key. What it may do is the same for both: an admin and the empty
prefix everything; another prefix what can be said of ids that begin with it, and the worker
groups it was granted; without a prefix nothing.
"""

import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from layby.clock import Clock, SystemClock
from layby.core.address import OWN_GROUP
from layby.core.commands import Command
from layby.core.model import NEVER, Millis
from layby.core.queries import Query
from layby.core.replies import Reply, refuse
from layby.server import auth_config, reach
from layby.server.auth_config import ApiKey, AuthConfig, digest_of
from layby.server.known_prefixes import KnownPrefixes

if TYPE_CHECKING:
    from layby.server.tokens import TokenVerifier

UNAUTHORIZED: Final = refuse(401, "Unauthorized")
FORBIDDEN: Final = refuse(403, "Forbidden")
MAX_TOKEN_LENGTH: Final = 8_192
LONGEST_STAY_S: Final = 365 * 86_400.0
_REMEMBERED: Final = 4_096

Body = TypeVar("Body", bound=Command | Query | Reply)


class Identity(Struct, frozen=True):
    """Who asks. `subject` is a name for logs, never a secret."""

    subject: str
    is_admin: bool = False
    prefix: str | None = None
    groups: frozenset[str] = frozenset()
    """Granted worker groups. They count only for whom is bounded: others could acquire anyway."""
    expires_at: Millis = NEVER

    @property
    def is_bounded(self) -> bool:
        return not self.is_admin and self.prefix != ""


ANYONE: Final = Identity("anyone", is_admin=True)


class Gate:
    """Owned by one event loop: what it remembers has no lock."""

    def __init__(self, config: AuthConfig, clock: Clock | None = None) -> None:
        auth_config.check(config)
        self.is_open = config.public_key is None and not config.api_keys
        self._clock = clock or SystemClock()
        self._keys = [(key.digest, _of_key(key)) for key in config.api_keys]
        self._verifier = None if config.public_key is None else _verifier(config)
        self._remembered = _Remembered()
        self.prefixes = KnownPrefixes()
        """The prefixes of the tokens that were used."""
        for _, who in self._keys:
            self.prefixes.note(who.prefix)

    def identify(self, token: str | None) -> Identity | Reply:
        if self.is_open:
            return ANYONE
        if not token or len(token) > MAX_TOKEN_LENGTH:
            return UNAUTHORIZED
        digest, now = digest_of(token), self._clock.now()
        return (
            self._remembered.get(digest, now)
            or self._of_api_key(digest)
            or self._of_jwt(token, digest, now)
            or UNAUTHORIZED
        )

    def seconds_left(self, who: Identity) -> float:
        """Seconds for which this identity may keep a stream or a waiting request open."""
        left = (who.expires_at - self._clock.now()) / 1000
        return min(max(left, 0.0), LONGEST_STAY_S)

    def permit(self, who: Identity, kind: str, body: object) -> Reply | None:
        """None when they may. A body that could not be read is judged by its kind alone."""
        if not who.is_bounded:
            return None
        if who.prefix is None or not reach.is_within(kind, body, who.prefix, who.groups):
            return FORBIDDEN
        return None

    def permit_poll(self, who: Identity, group: str) -> Reply | None:
        """A grant of `g` is for `/poll/g` as for `/poll/layby.g`, where our own workers listen."""
        if not who.is_bounded:
            return None
        if who.prefix is None or group.removeprefix(OWN_GROUP) not in who.groups:
            return FORBIDDEN
        return None

    def bounded(self, who: Identity, body: Body) -> Body:
        """The request as it may be carried out: takes hand out only what the token may touch."""
        if not who.is_bounded or who.prefix is None:
            return body
        return reach.bounded(body, who.prefix)

    def _of_api_key(self, digest: bytes) -> Identity | None:
        """Looks at every key, so that the time it takes tells nothing."""
        found = [who for stored, who in self._keys if hmac.compare_digest(stored, digest)]
        return found[0] if found else None

    def _of_jwt(self, token: str, digest: bytes, now: Millis) -> Identity | None:
        claims = self._verifier.verify(token, now) if self._verifier is not None else None
        if claims is None:
            return None
        who = replace(_of_claims(claims.by_name), expires_at=claims.expires_at)
        self.prefixes.note(who.prefix)
        self._remembered.add(digest, who)
        return who


def _verifier(config: AuthConfig) -> "TokenVerifier | None":
    from layby.server.tokens import TokenVerifier  # noqa: PLC0415 - few need signatures

    return TokenVerifier.of(config)


def bearer(header: str | None) -> str | None:
    """The token in an `Authorization` header."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class _Remembered:
    """Tokens whose signatures were good, until they expire; the least used is forgotten first."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[bytes, Identity] = OrderedDict()

    def get(self, digest: bytes, now: Millis) -> Identity | None:
        who = self._by_digest.get(digest)
        if who is None:
            return None
        if who.expires_at <= now:
            del self._by_digest[digest]
            return None
        self._by_digest.move_to_end(digest)
        return who

    def add(self, digest: bytes, who: Identity) -> None:
        self._by_digest[digest] = who
        if len(self._by_digest) > _REMEMBERED:
            self._by_digest.popitem(last=False)


def _of_key(key: ApiKey) -> Identity:
    return Identity(f"key:{key.name}", key.is_admin, key.prefix, frozenset(key.groups))


def _of_claims(claims: dict[str, Any]) -> Identity:
    """A claim of another type than it should have counts as absent: it grants nothing."""
    subject, role, prefix = (claims.get(name) for name in ("sub", "role", "prefix"))
    return Identity(
        subject if isinstance(subject, str) else "a token without sub",
        is_admin=isinstance(role, str) and role.lower() == "admin",
        prefix=prefix if isinstance(prefix, str) else None,
        groups=_groups(claims.get("groups")),
    )


def _groups(claim: object) -> frozenset[str]:
    names = cast("list[object]", claim) if isinstance(claim, list) else []
    return frozenset(each for each in names if isinstance(each, str))
