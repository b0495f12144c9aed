"""The configuration of who may use a server, and how it is checked.

Secrets stay in the configuration: nothing here shows them when printed.
"""

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from layby.errors import UsageError

MIN_KEY_LENGTH: Final = 16
_KEY_MARK: Final = "layby_"
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


class ApiKey(Struct, frozen=True, forbid_unknown_fields=True):
    """Give the key itself or, better, its SHA-256 in hex; and `role = "admin"` or a `prefix`."""

    name: str
    key: str | None = None
    key_sha256: str | None = None
    role: str | None = None
    prefix: str | None = None
    groups: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ApiKey(name={self.name!r}, ...)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]

    @property
    def is_admin(self) -> bool:
        return self.role is not None and self.role.lower() == "admin"

    @property
    def digest(self) -> bytes:
        if self.key is not None:
            return digest_of(self.key)
        return bytes.fromhex(self.key_sha256 or "")


class AuthConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """If nothing is given, everybody may do everything."""

    public_key: str | None = None
    """PEM text, the path of a PEM file, or "none" to accept any signature (for tests)."""
    issuer: str | None = None
    audience: str | None = None
    api_keys: tuple[ApiKey, ...] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"AuthConfig({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Without the key: it may be a private one, put there by mistake."""
        return [
            ("public_key", None if self.public_key is None else "..."),
            ("issuer", self.issuer),
            ("audience", self.audience),
            ("api_keys", self.api_keys),
        ]


def new_api_key() -> tuple[str, str]:
    """A fresh key for its bearer, and the SHA-256 to put into the server's configuration."""
    key = _KEY_MARK + secrets.token_urlsafe(32)
    return key, digest_of(key).hex()


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def check(config: AuthConfig) -> None:
    """Raise for settings that would let in or lock out anybody by mistake; report all at once."""
    wrong = [*_problems(config), *_key_problems(config.api_keys)]
    if wrong:
        raise UsageError("; ".join(wrong))


def _problems(config: AuthConfig) -> Iterator[str]:
    for name in ("public_key", "issuer", "audience"):
        if getattr(config, name) == "":
            yield f"auth.{name} is empty: give a value, or remove it"
    if config.public_key is None:
        for name in ("issuer", "audience"):
            if getattr(config, name):
                yield f"auth.{name} protects nothing without auth.public_key: give both or none"


def _key_problems(keys: tuple[ApiKey, ...]) -> Iterator[str]:
    for number, key in enumerate(keys):
        where = f"auth.api_keys[{number}] ({key.name!r})"
        yield from (f"{where}: {problem}" for problem in _problems_of(key))
    for name, times in Counter(key.name for key in keys).items():
        if times > 1:
            yield f"auth.api_keys: {times} keys are named {name!r}: give each its own name"
    yield from _shared(keys)


def _problems_of(key: ApiKey) -> Iterator[str]:
    if not key.name:
        yield "name is empty: logs show it in place of the key"
    if (key.key is None) == (key.key_sha256 is None):
        yield "give either key or key_sha256"
    if key.key is not None and len(key.key) < MIN_KEY_LENGTH:
        yield f"key is shorter than {MIN_KEY_LENGTH} characters: use a long random one"
    if key.key_sha256 is not None and not _DIGEST.fullmatch(key.key_sha256):
        yield "key_sha256 must be 64 hexadecimal digits: the SHA-256 of the key"
    if key.role is not None and not key.is_admin:
        yield f'unknown role {key.role!r}: the only role is "admin"; others get a prefix'
    if key.role is None and key.prefix is None:
        yield 'allows nothing: give role = "admin", or a prefix ("" for every id)'


def _shared(keys: tuple[ApiKey, ...]) -> Iterator[str]:
    """One secret with two sets of rights would be ambiguous."""
    names: dict[bytes, str] = {}
    for key in keys:
        if any(_problems_of(key)):
            continue
        first = names.setdefault(key.digest, key.name)
        if first != key.name:
            yield f"auth.api_keys: {first!r} and {key.name!r} are the same key"
