"""A real server that must have nothing to complain of until its end, and must not grow."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.server_process import ServerProcess

QUIET = ("--durability", "normal", "--no-push-enabled", "--log-level", "warning")
PEAK_MB = 250
"""Bodies have up to 8 MB: room for several copies of one of them, and no more."""


@contextmanager
def served(folder: Path, *flags: str, peak: float = PEAK_MB) -> Generator[ServerProcess]:
    """Whatever it was sent, it has said its first line and no other."""
    with ServerProcess(folder, *QUIET, *flags) as server:
        yield server
        assert peak_mb(server) < peak
        assert server.said.count("\n") == 1, server.said


def peak_mb(server: ServerProcess) -> float:
    """The most memory it ever had."""
    return _megabytes(server, "VmHWM")


def resident_mb(server: ServerProcess) -> float:
    return _megabytes(server, "VmRSS")


def _megabytes(server: ServerProcess, name: str) -> float:
    told = Path(f"/proc/{server._process.pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", told, re.MULTILINE)
    assert found is not None, told
    return int(found[1]) / 1024
