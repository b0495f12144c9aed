"""Which processes a test has started and not ended."""

import os
from pathlib import Path

HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python's own, which live as long as the process that needed them."""


def left_behind() -> list[str]:
    """Children of this process that run, or have ended and were not waited for."""
    found = (_child(folder) for folder in Path("/proc").glob("[0-9]*"))
    return [each for each in found if each and not any(helper in each for helper in HELPERS)]


def _child(folder: Path) -> str | None:
    """What it is; None unless it is a child of ours."""
    try:
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None  # it has ended meanwhile
    if int(parent) != os.getpid():
        return None
    return f"{folder.name} ({state}) {command or 'ended, and nobody has waited for it'}"
