"""Addresses of PostgreSQL as people may see them: without the password."""

import re
from typing import Final
from urllib.parse import unquote

SCHEMES: Final = ("postgresql", "postgres")
HIDDEN: Final = "***"

_USER = re.compile(r"(?<=://)([^/?#:@]*):(.*)@")
"""To the last @: libpq takes every character in a password but that one as it stands."""


def _spelt(word: str) -> str:
    """Any letter may stand there as a % and its code."""
    return "".join(f"(?:{each}|%{ord(each):x}|%{ord(each.upper()):x})" for each in word)


_QUERY = re.compile(
    rf"(?<![^?&\s])((?:{_spelt('ssl')})?{_spelt('password')})\s*=\s*('[^']*'|[^&\s]*)",
    re.IGNORECASE,
)
_WORDS = re.compile(
    r"(?=\s*\w+\s*=)(.*\s)?(host|hostaddr|port|dbname|user|(ssl)?password|service)\s*=",
    re.IGNORECASE | re.DOTALL,
)
"""It begins with a setting, of whatever name, and has one of these."""


def is_postgres(address: str) -> bool:
    return address.partition(":")[0] in SCHEMES


def is_words(address: str) -> bool:
    """Whether it is in libpq's other form, `host=… dbname=…`, and no path."""
    return _WORDS.match(address) is not None


def without_password(address: str) -> str:
    """The same text, whatever it is, for a message or a log."""
    if is_postgres(address) and "://" not in address and "@" in address:
        return f"{address.partition(':')[0]}:{HIDDEN}"
    return _QUERY.sub(rf"\1={HIDDEN}", _USER.sub(rf"\1:{HIDDEN}@", address))


def passwords_in(address: str) -> list[str]:
    """As they may appear in what a driver says of any such text."""
    found = [match.group(2) for match in (*_USER.finditer(address), *_QUERY.finditer(address))]
    return sorted({form for each in found for form in (each, unquote(each)) if form})
