"""What a link carries: which promise, until when, and a signature that only this store can make."""

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from layby.core.model import Millis
from layby.core.validate import MAX_ID_BYTES

MAX_TOKEN_CHARS: Final = 2 * MAX_ID_BYTES + 200
_PURPOSE: Final = b"layby link 1\0"
"""Signed too: the key could never be made to sign for anything else."""


class HookToken(Struct, frozen=True, array_like=True):
    promise_id: str
    expires_at: Millis


_read = msgspec.json.Decoder(HookToken).decode


def sign(token: HookToken, key: bytes) -> str:
    content = msgspec.json.encode(token)
    return f"{_text(content)}.{_text(_signature(content, key))}"


def verify(text: str, key: bytes) -> HookToken | None:
    """What was signed; None for anything else. Whether it has expired is not asked."""
    content, dot, signature = text.partition(".")
    if not dot or len(text) > MAX_TOKEN_CHARS:
        return None
    try:
        signed, given = _bytes(content), _bytes(signature)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(_signature(signed, key), given):
        return None
    try:
        return _read(signed)
    except msgspec.MsgspecError:
        return None


def _signature(content: bytes, key: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + content, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """One text for each value: of two that decode to the same, only what we write is accepted."""
    decoded = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    if _text(decoded) != text:
        raise ValueError("not in the form we write")
    return decoded
