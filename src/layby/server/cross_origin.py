"""Requests of web pages from other origins. Without auth, network access is all that is needed,
and a browser gives its access to every page it shows: a page may post to this server or open a
stream, though it never sees an answer. Browsers reveal this in headers that pages cannot forge.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]

ORIGIN_REFUSED: Final = "Web pages of other origins must be listed in cors.origins"
_BROWSER_HEADERS: Final = frozenset((b"origin", b"sec-fetch-site"))
_OTHER_SITES: Final = (b"cross-site", b"same-site")


def is_cross_origin(headers: Headers, origins: tuple[str, ...], url: str) -> bool:
    """Whether the request comes from a page that is neither of `origins` nor of this server."""
    if not any(name in _BROWSER_HEADERS for name, _ in headers) or "*" in origins:
        return False
    by_name = dict(headers)
    if b"origin" not in by_name:
        return by_name[b"sec-fetch-site"] in _OTHER_SITES
    origin, host = (by_name.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
    return origin not in origins and not _is_ours(origin, host, url)


def _is_ours(origin: str, host: str, url: str) -> bool:
    """Accepts only our own name: any other may be made to resolve here (DNS rebinding)."""
    authority = origin.partition("://")[2]
    if authority and authority == urlsplit(url).netloc:
        return True
    return authority == host and _is_fixed(host)


def _is_fixed(host: str) -> bool:
    """An address or localhost: names that nobody can make resolve to something else."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False
