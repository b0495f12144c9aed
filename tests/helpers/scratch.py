"""Where tests keep their files: in memory, where there is room for them.

Tests make thousands of small files and hundreds of databases, and most of what the disk has to do
for them is to wait for it. What a killed process has written is kept in either place.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

IN_MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 * 2**30
"""Bytes that have to be free: five test processes and their PostgreSQLs use about one gigabyte."""


def keep_in_memory() -> None:
    """For this process and those it starts, unless somebody has named another folder."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)


def _has_room() -> bool:
    """Containers often have a small one, other systems none."""
    return os.access(IN_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM
