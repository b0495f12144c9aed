"""Breaks between snapshots, so that SQLite's write-ahead log can begin anew.

It does so only at a moment without any snapshot. Where reads overlap without end there is no such
moment, and the log would grow as long as they do, though each of them is short.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition
from time import monotonic
from typing import Final

KEPT_BYTES: Final = 17 * 2**20
"""What is left of the log's file when it begins anew: room until the next checkpoint, since a
commit that makes the file longer takes longer.
"""
WAL_BYTES: Final = 32 * 2**20
"""A longer log calls for a break, and for a checkpoint that the writer waits for."""
CHECKPOINT_FRAMES: Final = 4_000
"""So many frames are copied into the database at once, beside the writer. A small command writes
about 6 frames, a batch of pruning 22.
"""
BREAK_S: Final = 0.25
"""How long a break lasts at most: without writes, the log neither grows nor begins anew."""


class WalBreaks:
    """Shared by all who read one file. `size` is that of its log."""

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._changed = Condition()
        self._snapshots = 0
        self._bound = WAL_BYTES

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Begins after the break, if one is due; then all others have ended."""
        with self._changed:
            self._take_break()
            self._snapshots += 1
        try:
            yield
        finally:
            with self._changed:
                self._snapshots -= 1
                self._changed.notify_all()

    def _take_break(self) -> None:
        until: float | None = None
        while self._size() > self._bound:
            if self._snapshots:
                self._changed.wait()
                continue
            until = until or monotonic() + BREAK_S
            if monotonic() >= until:
                self._bound = self._size() + WAL_BYTES  # nobody writes: wait until it has grown
                return
            self._changed.wait(BREAK_S / 50)
        if self._size() <= WAL_BYTES:
            self._bound = WAL_BYTES


def of_file(path: Path) -> WalBreaks:
    log = path.with_name(f"{path.name}-wal")

    def size() -> int:
        with suppress(OSError):
            return log.stat().st_size
        return 0

    return WalBreaks(size)
