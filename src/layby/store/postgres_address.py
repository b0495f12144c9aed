"""Addresses of PostgreSQL as people may see them: without the password."""

import re
from typing import Final
from urllib.parse import unquote

SCHEMES: Final = ("postgresql", "postgres")
HIDDEN: Final = "***"

_USER = re.compile(r"(?<=://)([^/?#:@]*):([^/?#]*)@")
_QUERY = re.compile(r"(?<=[?&])((?:ssl)?password)=([^&]*)", re.IGNORECASE)


def is_postgres(address: str) -> bool:
    return address.partition(":")[0] in SCHEMES


def without_password(address: str) -> str:
    """The same text, whatever it is, for a message or a log."""
    return _QUERY.sub(rf"\1={HIDDEN}", _USER.sub(rf"\1:{HIDDEN}@", address))


def passwords_in(address: str) -> list[str]:
    """As they may appear in what a driver says of any such text."""
    found = [match.group(2) for match in (*_USER.finditer(address), *_QUERY.finditer(address))]
    return sorted({form for each in found for form in (each, unquote(each)) if form})
