"""Checkpoints beside the writer: SQLite's log is copied into the database on a thread of its own.

A checkpoint takes some tens of milliseconds and waits for the disk. Commits can go on meanwhile,
since they are written behind what is being copied. So it is repeated for what came in the meantime,
until the log is copied whole and the next commit begins it anew.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from layby.errors import LaybyError

CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
ROUNDS: Final = 4
"""After the first, each copies only what was committed during the one before."""


class Checkpoints:
    """`connect` opens the file, `is_done` says whether all of the log has been copied."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        is_done: Callable[[], bool],
    ) -> None:
        self._connect = connect
        self._is_done = is_done
        self._copying = threading.Lock()
        self._is_wanted_here = False
        self._asked = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None

    def ask(self) -> None:
        """One is made soon; does not wait for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="layby-checkpoint", daemon=True)
            self._thread.start()
        self._asked.set()

    def close(self) -> None:
        """Returns when nothing more is written."""
        self._is_closing = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def make(self) -> None:
        """What was committed is safe in the log if it fails: the writer asks again, or makes one
        itself when the log becomes too long.
        """
        with suppress(sqlite3.Error, LaybyError):
            self._connection = self._connection or self._connect()
            self._copy(self._connection)

    def make_here(self, connection: sqlite3.Connection) -> None:
        """By the writer's connection, so that nothing is committed in the meantime."""
        self._is_wanted_here = True
        with self._copying, suppress(sqlite3.Error):
            connection.execute(CHECKPOINT).fetchall()
        self._is_wanted_here = False

    def _work(self) -> None:
        while self._asked.wait():
            self._asked.clear()
            if self._is_closing:  # looked at after the clear, which may have met a `close`
                return
            self.make()

    def _copy(self, connection: sqlite3.Connection) -> None:
        for _ in range(ROUNDS):
            if self._is_closing or self._is_wanted_here or self._is_done():
                return
            with self._copying:
                connection.execute(CHECKPOINT).fetchall()
