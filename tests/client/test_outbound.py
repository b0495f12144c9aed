"""Where this process may connect to because somebody named an address."""

import asyncio
import socket
import threading

import pytest

from layby.client.outbound import OutboundRefused, OutboundRules, look_up
from layby.client.outbound_resolver import OutboundResolver

NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 10.0.0.1 172.16.3.4 172.31.255.255 192.168.1.1 0.0.0.0 0.1.2.3
    169.254.169.254 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1
    198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    ::1 :: ::7f00:1 fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1 ff0e::1 100::1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
    64:ff9b:1::1 2002:7f00:1:: 2002:a00:1:: 2001:0:0:0:0:0:80ff:fffe 2001:db8::1 3fff::1 4000::1
"""
PUBLIC = """
    8.8.8.8 1.1.1.1 172.32.0.1 100.128.0.1 192.0.1.1 168.63.129.17 2606:4700:4700::1111
    ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_what_is_not_public_is_refused(address):
    """Loopback, private, link-local, shared, metadata, multicast: also as IPv6 disguises them."""
    assert not OutboundRules().permits("host.test", address)
    with pytest.raises(OutboundRefused, match="is not a public address"):
        OutboundRules().check_literal(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_what_is_public_is_permitted(address):
    """Their neighbours on the internet are not shut out with them."""
    assert OutboundRules().permits("host.test", address)
    OutboundRules().check_literal(address)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "0", "1.2.3"])
def test_an_address_in_another_spelling_is_refused(host):
    """Some read 127.0.0.1 in these; whoever means an address can write it as one."""
    with pytest.raises(OutboundRefused):
        OutboundRules().check_literal(host)


@pytest.mark.parametrize("host", ["example.org", "127.example.org", "0x7f.1", "localhost"])
def test_a_name_is_left_to_the_lookup(host):
    """No address yet: what it leads to is judged."""
    OutboundRules().check_literal(host)


@pytest.mark.parametrize(
    ("allowed", "host", "address", "permitted"),
    [
        ("10.0.0.0/8", "h.test", "10.1.2.3", True),
        ("10.0.0.0/8", "h.test", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "h.test", "192.168.0.1", False),
        ("10.1.2.3", "h.test", "10.1.2.3", True),
        ("10.1.2.3", "h.test", "10.1.2.4", False),
        ("10.1.2.3/8", "h.test", "10.9.9.9", True),
        ("fd00::/8", "h.test", "fd12::1", True),
        ("fd00::/8", "h.test", "10.0.0.1", False),
        ("Worker.Internal", "worker.internal.", "10.1.2.3", True),
        ("worker.internal", "a.worker.internal", "10.1.2.3", False),
    ],
)
def test_what_the_owner_allows_is_permitted(allowed, host, address, permitted):
    """Networks and addresses by where one arrives, hosts by their name."""
    assert OutboundRules([allowed]).permits(host, address) is permitted


def resolve(lookup, *allow):
    async def main():
        resolver = OutboundResolver(OutboundRules(allow), lookup)
        try:
            return await resolver.resolve("host.test", 80)
        finally:
            await resolver.close()

    return asyncio.run(main())


def test_only_permitted_addresses_are_handed_out():
    """A name that leads to both kinds is reached by the good ones alone, port and family kept."""
    found = [
        (socket.AF_INET, "10.0.0.1"),
        (socket.AF_INET6, "2606::1"),
        (socket.AF_INET, "8.8.8.8"),
    ]
    results = resolve(lambda _: found)
    assert [(each["host"], each["port"], each["family"]) for each in results] == [
        ("2606::1", 80, socket.AF_INET6),
        ("8.8.8.8", 80, socket.AF_INET),
    ]
    assert {each["hostname"] for each in results} == {"host.test"}


def test_a_name_that_leads_nowhere_good_is_refused_by_name():
    """The error says which host, and where it leads."""
    with pytest.raises(OutboundRefused, match=r"host\.test resolves to 10\.0\.0\.1, 127\.0\.0\.1"):
        resolve(lambda _: [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "10.0.0.1")])


def test_a_name_that_cannot_be_one_is_refused():
    """The system's lookup fails to encode it, today and tomorrow: no reason to try again."""
    with pytest.raises(OutboundRefused, match="is not a valid host name"):
        resolve(lambda _: look_up("a" * 64))


def test_the_system_is_asked_elsewhere_than_on_the_loop():
    """A slow name server must not stop the event loop."""
    threads = []

    def lookup(_):
        threads.append(threading.current_thread())
        return [(socket.AF_INET, "8.8.8.8")]

    resolve(lookup)
    assert threads[0] is not threading.main_thread()


def test_the_system_knows_this_machine():
    """The default lookup really looks up, and this machine is not public."""
    assert ("127.0.0.1" in {address for _, address in look_up("localhost")}) or (
        "::1" in {address for _, address in look_up("localhost")}
    )
    with pytest.raises(OutboundRefused, match="resolves to"):
        resolve(lambda _: look_up("localhost"))
