"""Web pages of strangers. Where there is no auth, a place in the network is all that lets somebody
in, and a browser lends its place to every page it shows: a page may post to this server or open a
stream, though it never sees an answer. Browsers say so in headers that pages cannot forge.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]

ORIGIN_REFUSED: Final = "Web pages from elsewhere need to be listed in cors.origins"
_BROWSER_HEADERS: Final = frozenset((b"origin", b"sec-fetch-site"))
_OTHER_SITES: Final = (b"cross-site", b"same-site")


def is_cross_origin(headers: Headers, origins: tuple[str, ...], url: str) -> bool:
    """Whether a page sent this that is neither of these `origins` nor of this server."""
    if not any(name in _BROWSER_HEADERS for name, _ in headers) or "*" in origins:
        return False
    told = dict(headers)
    if b"origin" not in told:
        return told[b"sec-fetch-site"] in _OTHER_SITES
    origin, host = (told.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
    return origin not in origins and not _is_ours(origin, host, url)


def _is_ours(origin: str, host: str, url: str) -> bool:
    """A name counts only if it is ours: others can be made to lead here (DNS rebinding)."""
    authority = origin.partition("://")[2]
    if authority and authority == urlsplit(url).netloc:
        return True
    return authority == host and _is_fixed(host)


def _is_fixed(host: str) -> bool:
    """What nobody else can make lead elsewhere."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False
