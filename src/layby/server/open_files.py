"""Every connection is an open file, and the limit a shell sets is not meant for servers."""

import sys
from contextlib import suppress
from typing import Final

RESERVE: Final = 100
"""For the store, pushes, logs, and connections that are only told that there are too many."""


def allow(connections: int) -> int:
    """Have the system allow so many connections if it will; how many it allows."""
    if sys.platform == "win32":
        return connections
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(soft - RESERVE, 1)
