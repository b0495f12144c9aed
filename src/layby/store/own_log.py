"""Whether SQLite's write-ahead log still holds what its index says.

A log that somebody has cut short does not stay short: the next commit writes behind the end that
the index knows, and what was before is a hole of zeros, which the next checkpoint would copy into
the database. So this looks at what the log begins with, and at a frame that was in it before.
"""

import os
import sys
from pathlib import Path
from typing import Final

from layby.store.wal_index import IndexState, WalIndex

_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_SALT_IN_HEADER: Final = 16
_SALT_IN_FRAME: Final = 8


class OwnLog:
    """`page`: how many bytes of the database a frame holds."""

    def __init__(self, path: Path, page: int, index: WalIndex) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._frame = _FRAME_HEADER + page
        self._index = index
        self._known = index.read()

    def is_whole(self) -> bool:
        """Any thread may ask, and others may write to the log or begin it anew in the meantime."""
        while True:
            now = self._index.read()
            if now.is_empty or self._holds(now):
                self._known = now
                return True
            if self._index.read()[:2] == now[:2]:
                return False

    def close(self) -> None:
        os.close(self._file)

    def _holds(self, now: IndexState) -> bool:
        """What was known before is looked at too: a commit may have filled what was cut off."""
        known = self._known
        is_same_log = known.salt == now.salt and not known.is_empty
        salt = os.pread(self._file, len(now.salt), _SALT_IN_HEADER)
        return (
            salt == now.salt
            and self._has_last_frame(now)
            and (not is_same_log or known.frames == now.frames or self._has_last_frame(known))
        )

    def _has_last_frame(self, index: IndexState) -> bool:
        """All of it."""
        frames = int.from_bytes(index.frames, sys.byteorder)
        start = _HEADER + (frames - 1) * self._frame + _SALT_IN_FRAME
        size = self._frame - _SALT_IN_FRAME
        found = os.pread(self._file, size, start)
        return len(found) == size and found.startswith(index.salt)
