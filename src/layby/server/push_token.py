"""Which hosts get the token of a push: the address may name anybody's host."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from msgspec import Struct
from yarl import URL

FORMS: Final = "a host such as hooks.example.org, *.example.org, 10.0.0.5:8080 or * for every host"
_FORM: Final = re.compile(
    r"((?P<scheme>https?)://)?"
    r"(?P<host>\*|(\*\.)?[\w-]+(\.[\w-]+)*|\[[0-9A-Fa-f:.]+\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?",
    re.ASCII,
)


class TokenHost(Struct, frozen=True):
    """One entry of `push.token_hosts`; None matches anything."""

    host: str
    port: int | None = None
    scheme: str | None = None

    def fits(self, url: URL) -> bool:
        if self.scheme not in (None, url.scheme) or self.port not in (None, url.port):
            return False
        host = _normalized(url.raw_host or "")
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return host == self.host


class TokenHosts:
    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = [
            token_host for token_host in map(parse_token_host, hosts) if token_host is not None
        ]

    def __contains__(self, url: URL) -> bool:
        return any(token_host.fits(url) for token_host in self._hosts)


def parse_token_host(text: str) -> TokenHost | None:
    """None if the text is not a valid entry."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    port = None if found["port"] is None else int(found["port"])
    return TokenHost(_normalized(found["host"].strip("[]")), port, found["scheme"])


def _normalized(host: str) -> str:
    """One spelling for an address or a name."""
    try:
        return ip_address(host).compressed
    except ValueError:
        return host.lower().rstrip(".")
