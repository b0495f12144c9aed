"""JSON Web Tokens: which signatures are accepted, and what is read from a valid token.

The key decides which algorithms are accepted, never the token: one that names another (a shared
secret made of the public key, or none at all) is refused.
"""

import logging
from math import isfinite
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import Struct

from layby.core.model import Millis
from layby.errors import UsageError
from layby.rate_limited_log import RateLimitedLog
from layby.server.auth_config import AuthConfig

logger = logging.getLogger(__name__)

Key = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
Algorithms = tuple[str, ...]

UNCHECKED: Final = "none"
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_MIN_RSA_BITS: Final = 2048
_FAR_SECONDS: Final = 2**53 // 1000
_PEM: Final = "-----BEGIN"


class Claims(Struct, frozen=True):
    """The claims of a verified token, and when it expires."""

    by_name: dict[str, Any]
    expires_at: Millis


class TokenVerifier:
    """Verifies by the configured key; raises UsageError if the key cannot be used."""

    def __init__(self, public_key: str, issuer: str | None, audience: str | None) -> None:
        self._key: Key | str = ""
        self._algorithms: Algorithms = ()
        self._issuer = issuer
        self._audience = audience
        self._refused = RateLimitedLog("refused a token", logger, logging.INFO)
        if public_key == UNCHECKED:
            logger.warning(
                "auth.public_key is 'none': signatures are NOT checked and anybody can write a "
                "token that lets them in; this is for tests only"
            )
        else:
            self._key, self._algorithms = load_key(public_key)

    @classmethod
    def of(cls, config: AuthConfig) -> "TokenVerifier | None":
        if config.public_key is None:
            return None
        return cls(config.public_key, config.issuer, config.audience)

    def verify(self, token: str, now: Millis) -> Claims | None:
        """The claims, or None: the sender is not told what is wrong with the token."""
        try:
            claims = self._decoded(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            self._refused.tell(type(error).__name__)  # its text may quote the token
            return None
        expires_at = _instant(claims.get("exp"))
        if expires_at is None or expires_at <= now or not _has_begun(claims, now):
            self._refused.tell("not valid at this time")
            return None
        return Claims(claims, expires_at)

    def _decoded(self, token: str) -> dict[str, Any]:
        """Checks everything but the times, which are checked by our own clock."""
        return jwt.decode(
            token,
            self._key,
            self._algorithms,
            {
                "verify_signature": self._key != "",
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_sub": False,
                "verify_jti": False,
                "verify_iss": self._issuer is not None,
                "verify_aud": self._audience is not None,
            },
            issuer=self._issuer,
            audience=self._audience,
        )


def load_key(public_key: str) -> tuple[Key, Algorithms]:
    """The key in a PEM text or file, and the algorithms it is used with."""
    is_text = _PEM in public_key
    where = "auth.public_key" if is_text else f"auth.public_key ({_shown(public_key)})"
    pem = public_key if is_text else _read(public_key, where)
    if "PRIVATE KEY-----" in pem:
        raise UsageError(
            f"{where} is a private key: keep that where tokens are made, and give "
            "the public one (openssl pkey -in private.pem -pubout)"
        )
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{where} is not a public key in PEM form ('-----BEGIN PUBLIC KEY-----')"
        ) from error
    return _with_algorithms(key, where)


def _with_algorithms(key: object, where: str) -> tuple[Key, Algorithms]:
    match key:
        case RSAPublicKey():
            if key.key_size < _MIN_RSA_BITS:
                raise UsageError(
                    f"{where}: an RSA key of {key.key_size} bits can be broken; "
                    f"make one of {_MIN_RSA_BITS} or more"
                )
            return key, _RSA
        case EllipticCurvePublicKey(curve=SECP256R1()):
            return key, ("ES256",)
        case EllipticCurvePublicKey(curve=SECP384R1()):
            return key, ("ES384",)
        case Ed25519PublicKey():
            return key, ("EdDSA",)
        case _:
            raise UsageError(
                f"{where}: tokens are verified by an RSA key, an EC key on P-256 or "
                f"P-384, or an Ed25519 key; this one is {_kind_of(key)}"
            )


def _kind_of(key: object) -> str:
    if isinstance(key, EllipticCurvePublicKey):
        return f"an EC key on {key.curve.name}"
    return f"a {type(key).__name__}"


def _read(path: str, where: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(
            f"{where} is neither PEM text nor a file that can be read: {why}"
        ) from error


def _shown(path: str) -> str:
    """Shows only what looks like a path: anything else may be part of a key."""
    return repr(path) if len(path) < 200 and "\n" not in path else "a long text"


def _has_begun(claims: dict[str, Any], now: Millis) -> bool:
    if claims.get("nbf") is None:
        return True
    begins_at = _instant(claims["nbf"])
    return begins_at is not None and begins_at <= now


def _instant(claim: object) -> Millis | None:
    """Seconds since 1970 as milliseconds; None if it is not such a number."""
    if not isinstance(claim, int | float) or (isinstance(claim, float) and not isfinite(claim)):
        return None
    return int(max(-_FAR_SECONDS, min(claim, _FAR_SECONDS)) * 1000)
