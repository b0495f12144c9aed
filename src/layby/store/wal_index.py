"""The index of SQLite's write-ahead log: a file that all who use the database have in memory.

Only the part is read whose layout SQLite documents for everybody: see "WAL-Index Header" and
"Checkpoint Information" in its walformat.
"""

import mmap
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from layby.store import file_locks

_DOCUMENTED_BYTES: Final = 136
_IN_USE_BYTE: Final = 128
"""Locked by all who have the index open. Whoever finds it free begins the index anew."""
_NONE: Final = bytes(4)


class IndexState(NamedTuple):
    """Counts are as SQLite writes them: in the byte order of this machine."""

    frames: bytes
    """In the log; none right after a checkpoint that has emptied it."""
    salt: bytes
    """Changes whenever the log is started again, before anything else does."""
    copied: bytes
    """Frames that a checkpoint has copied into the database; none in a log that was restarted."""
    attempted: bytes
    """Set before a checkpoint writes; `copied` follows when it is done."""

    @property
    def is_empty(self) -> bool:
        return self.frames == _NONE

    @property
    def is_copying(self) -> bool:
        """A checkpoint is under way, or has failed half-way."""
        return self.copied != self.attempted

    @property
    def length(self) -> int:
        """How many frames there are."""
        return int.from_bytes(self.frames, sys.byteorder)

    def explains_writing_since(self, before: "IndexState", *, after_commit: bool) -> bool:
        """A checkpoint writes several times. That a commit restarts the log writes nothing."""
        if self.is_copying:
            return True
        is_own_restart = after_commit and self.attempted == _NONE and not self.is_empty
        return self[1:] != before[1:] and not is_own_restart


class WalIndex:
    """Open as long as the connection: a close ends the locks that SQLite has on the index."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._bytes = mmap.mmap(self._file, _DOCUMENTED_BYTES, prot=mmap.PROT_READ)
        file_locks.share(self._file, _IN_USE_BYTE, 1)

    def read(self) -> IndexState:
        data = self._bytes
        return IndexState(data[16:20], data[32:40], data[96:100], data[128:132])

    def close(self) -> None:
        self._bytes.close()
        file_locks.close(self._file)
