"""Where this process may connect when a user names an address: the public internet, and the hosts
that its owner allows.

A name is looked up once, every address found is checked, and the connection goes to an address
that was checked: a name that resolves to something else a moment later (DNS rebinding) is harmless.
"""

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from layby.errors import LaybyError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Found = tuple[socket.AddressFamily, str]
"""What a lookup gives: the family, and the address as text."""
Lookup = Callable[[str], Iterable[Found]]

_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ALSO_NOT_PUBLIC: Final[tuple[Network, ...]] = (
    IPv4Network(
        "168.63.129.16/32"
    ),  # a cloud's metadata service, on an address that counts as public
    IPv4Network("192.0.0.0/24"),  # the same; versions of Python disagree about this network
    IPv6Network("3fff::/20"),  # documentation; not known to Python 3.11
)


class OutboundRefused(LaybyError):
    """This host may not be connected to; the message says what it resolves to."""


class OutboundRules:
    """`allow` holds addresses, networks, and hosts, which are trusted whatever they resolve to."""

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

    def names(self, host: str) -> bool:
        """Whether `allow` has this very host, by its name or as an address in a network."""
        if _normalized(host) in self._hosts:
            return True
        try:
            address = _embedded_ipv4(ip_address(host))
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def check_literal(self, host: str) -> None:
        """Raise for a forbidden host that is an address: such a host is never looked up."""
        if not _is_numeric(host):
            return
        try:
            is_permitted = self.permits(host, host)
        except ValueError:  # 127.1, 2130706433: systems differ in which address they read
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


def _normalized(host: str) -> str:
    return host.lower().rstrip(".")


def _is_numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _is_public(address: Address) -> bool:
    if address.is_multicast or any(address in network for network in _ALSO_NOT_PUBLIC):
        return False
    return address.is_global and (address.version == 4 or address in _UNICAST)


def _embedded_ipv4(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address; the address itself if there is none."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
