"""Where this process may connect to because somebody named an address: the public internet, and
what its owner allows.

A name is looked up once, every address found is judged, and the connection goes to an address
that was judged: a name that means something else a moment later (DNS rebinding) gains nothing.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

from layby.errors import LaybyError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Found = tuple[socket.AddressFamily, str]
"""What a lookup gives: the family, and the address as text."""
Lookup = Callable[[str], Iterable[Found]]

LOOKUP_THREADS: Final = 32
_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ALSO_NOT_PUBLIC: Final[tuple[Network, ...]] = (
    IPv4Network("168.63.129.16/32"),  # metadata of a cloud, on an address that counts as public
    IPv4Network("192.0.0.0/24"),  # such a service too; Pythons disagree about this network
    IPv6Network("3fff::/20"),  # for documents, newer than Python 3.11
)


class OutboundRefused(LaybyError):
    """Nothing at this host may be connected to; the message names what was found there."""


class OutboundRules:
    """`allow` holds hosts, trusted wherever they lead, addresses and networks."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        for each in allow:
            self._add(each)

    def permits(self, host: str, address: str) -> bool:
        if _normalized(host) in self._hosts:
            return True
        judged = _embedded_ipv4(ip_address(address))
        return _is_public(judged) or any(judged in network for network in self._networks)

    def check_literal(self, host: str) -> None:
        """Raise for a host that is an address by itself: nobody looks such a host up."""
        if not _is_numeric(host):
            return
        try:
            is_permitted = self.permits(host, host)
        except ValueError:  # 127.1, 2130706433: some read an address in it, and not always the same
            is_permitted = False
        if not is_permitted:
            raise OutboundRefused(f"{host} is not a public address")

    def _add(self, allowed: str) -> None:
        try:
            self._networks.append(ip_network(allowed, strict=False))
        except ValueError:
            self._hosts.add(_normalized(allowed))


def look_up(host: str) -> list[Found]:
    """Ask the system; blocks."""
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [(family, str(place[0])) for family, _, _, _, place in infos]


class OutboundResolver(AbstractResolver):
    """For aiohttp's connector: gives it only addresses it may connect to."""

    def __init__(self, rules: OutboundRules, lookup: Lookup = look_up) -> None:
        self._rules = rules
        self._lookup = lookup
        # A pool of its own: names whose servers do not answer hold a thread for half a minute.
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "layby-lookup")

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - we always ask for both
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        try:
            found = list(await loop.run_in_executor(self._threads, self._lookup, host))
        except UnicodeError as error:  # an empty label, or one above 63 characters
            raise OutboundRefused(f"{host[:100]} is no name of a host") from error
        permitted = [each for each in found if self._rules.permits(host, each[1])]
        if not permitted:
            found_at = ", ".join(sorted({address for _, address in found})) or "nowhere"
            raise OutboundRefused(f"{host} leads to {found_at}, which is not public")
        return [_result(host, port, *each) for each in permitted]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(host: str, port: int, family: socket.AddressFamily, address: str) -> ResolveResult:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=numeric
    )


def _normalized(host: str) -> str:
    return host.lower().rstrip(".")


def _is_numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _is_public(address: Address) -> bool:
    if address.is_multicast or any(address in network for network in _ALSO_NOT_PUBLIC):
        return False
    return address.is_global and (address.version == 4 or address in _UNICAST)


def _embedded_ipv4(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does; else itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
