"""Hosts and networks as people write them in the configuration."""

import re
from ipaddress import ip_network


def is_host_or_network(text: str) -> bool:
    """A host name, an address or a network."""
    if re.fullmatch(r"(?=.*[A-Za-z])[A-Za-z0-9_.-]+", text):
        return True
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
