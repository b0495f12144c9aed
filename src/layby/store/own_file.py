"""Whether the file under the path is still the one that was opened, and only SQLite wrote to it.

A commit succeeds in a file that somebody has deleted, replaced or overwritten, and nobody who opens
the path later finds it. So the owner looks before each transaction, and after it, before any answer
leaves: inode, size and time of the last write. Those of the database change when SQLite copies its
log into it (a checkpoint), and never otherwise.
"""

import os
import sqlite3
from pathlib import Path

from layby.errors import StoreGone
from layby.store import wal_breaks
from layby.store.own_log import OwnLog
from layby.store.wal_index import WalIndex

Identity = tuple[int, int]
"""Device and inode: the same file under whatever name."""
Written = tuple[int, int]
"""When something was last written to the database, and its size."""


def identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


class OwnFile:
    """`file` is open as long as the connection, since closing one ends the locks of all."""

    def __init__(self, path: Path, file: int, connection: sqlite3.Connection) -> None:
        self._path = str(path.absolute())  # not resolved: links may be re-pointed
        real = path.resolve()
        self._real = str(real)
        self._file = file
        self._identity = _identity(os.fstat(file))
        log, index = log_of(real), real.with_name(f"{real.name}-shm")
        self._beside = {str(each): _identity(each.stat()) for each in (log, index)}
        self._page = connection.execute("PRAGMA page_size").fetchone()[0]
        self._index = WalIndex(index)
        self._log = OwnLog(log, self._page, self._index)
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'store_time'"
        ).fetchone()
        self._samples = (0, (root - 1) * self._page)
        self.is_overwritten = False
        self.is_apart = False
        """Whether the log was not beside the file when somebody looked: then look again before
        anything is written.
        """
        self._is_log_lost = False
        self._checkpoint_at = b"", 0
        """Which log it was, and how long, when a checkpoint was last due."""
        self._last_index = self._index.read()
        self._remember(_written(os.fstat(file)))

    def look(self, *, after_commit: bool = False) -> None:
        """Raise if what was committed, or would be, is not in the file under the path.

        Before a transaction has written anything, whatever has happened to the log was done by
        somebody else who uses SQLite.
        """
        index = self._index.read()  # first: one that is too old explains more later, not less
        written = _written(self.look_at_path())
        if written != self._written:
            self._judge(written, after_commit=after_commit)
        self._last_index = index

    def look_at_path(self) -> os.stat_result:
        """Raise if another file is there, or none. Any thread may ask."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at each commit: Path.stat is slower
        except OSError as error:
            raise self._gone(f"the file is gone from there ({error.strerror})") from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise self._gone("another file is in its place")
        return found

    def look_beside(self) -> None:
        """Raise if the log, which holds the latest commits, or its index is not there.

        SQLite looks for them beside the file itself, wherever links lead to: whoever opens a link
        to where somebody has moved the file finds it without its latest commits.
        """
        self.is_apart = True  # unless the end is reached
        try:
            found = os.lstat(self._real)
        except OSError:
            raise self._moved() from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise self._moved()
        for name, known in self._beside.items():
            try:
                found = os.stat(name)  # noqa: PTH116 - at each commit: Path.stat is slower
            except OSError:
                raise self._lost_beside(name) from None
            if (found.st_dev, found.st_ino) != known:
                raise self._lost_beside(name)
        self.is_apart = False

    def look_at_log(self) -> None:
        """Raise if the log does not hold what was committed: from then on nobody may use it. Any
        thread may ask.
        """
        if self._is_log_lost or not self._log.is_whole():
            self._is_log_lost = True
            raise self._lost_log()

    def look_for_reader(self) -> None:
        """Raise if a read would not see what was committed. Any thread may ask.

        Before a reader is opened too: SQLite removes the log of a database that is empty.
        """
        found = self.look_at_path()
        if self.is_overwritten or not found.st_size:
            raise self._overwritten()
        self.look_beside()
        self.look_at_log()

    def is_copied(self) -> bool:
        """Whether the database has all that is in the log; raises if that may not be copied."""
        self.look_at_path()
        self.look_at_log()
        index = self._index.read()
        return index.copied == index.frames

    def is_log_too_long(self) -> bool:
        return self._index.read().length >= wal_breaks.WAL_BYTES // self._page

    def is_checkpoint_due(self) -> bool:
        """Asked after each commit; whoever hears yes makes one.

        While somebody reads the log it cannot begin anew, and not all of it may be copied: then
        each commit would copy a little more, and wait for the disk. But in a log that is too long,
        each must: readers wait until it begins anew.
        """
        index = self._index.read()
        if index.copied == index.frames:
            return False
        salt, before = self._checkpoint_at
        new = index.length - (before if salt == index.salt else 0)
        is_due = self.is_log_too_long() or new >= wal_breaks.CHECKPOINT_FRAMES
        if is_due:
            self._checkpoint_at = index.salt, index.length
        return is_due

    def close(self) -> None:
        """After the connection."""
        self._log.close()
        self._index.close()

    def _judge(self, written: Written, *, after_commit: bool) -> None:
        """Something was written: by SQLite, or nothing that differs (`touch`), or by a stranger.

        Every commit stores the time, so an older copy of this very store differs in that page.
        """
        is_explained = not self.is_overwritten and self._index.read().explains_writing_since(
            self._last_index, after_commit=after_commit
        )
        self.is_overwritten = not is_explained and (
            written[1] != self._written[1] or self._read_samples() != self._sampled
        )
        if self.is_overwritten:
            raise self._overwritten()
        self._remember(written)

    def _remember(self, written: Written) -> None:
        self._written, self._sampled = written, self._read_samples()

    def _read_samples(self) -> tuple[bytes, ...]:
        return tuple(os.pread(self._file, self._page, start) for start in self._samples)

    def _gone(self, what: str) -> StoreGone:
        name = Path(self._path).name
        back = "" if self.is_overwritten else "put the original back, or "
        remedy = (
            f"{back}stop this process, remove {name}-wal and {name}-shm, and start it again with "
            f"the file you want"
        )
        return StoreGone(f"{self._path}: {what}; nothing is written until that is mended: {remedy}")

    def _overwritten(self) -> StoreGone:
        return self._gone("another program has written to the file, or cut it short")

    def _lost_log(self) -> StoreGone:
        name = Path(self._path).name
        harm = ", and the file may be damaged" if self._index.read().is_copying else ""
        return StoreGone(
            f"{self._path}: {name}-wal was cut short or overwritten while it was in use, and the "
            f"commits that SQLite had not copied from there into the file are lost{harm}; "
            "nothing is read or written any more: stop this process, which leaves the file as it "
            f"is, remove {name}-wal and {name}-shm, and start it again with what the file holds, "
            "or with a backup in its place"
        )

    def _moved(self) -> StoreGone:
        name = Path(self._real).name
        return StoreGone(
            f"{self._path}: {name} was moved, and a link leads to it; {name}-wal did not move with "
            "it; nothing is written until that is mended: put the original back, or stop this "
            "process with SIGTERM or by closing its Runner, which saves what was acknowledged in "
            "the file, and start it again"
        )

    def _lost_beside(self, name: str) -> StoreGone:
        return StoreGone(
            f"{self._path}: {Path(name).name} was removed or replaced while it was in use; nothing "
            "is written until that is mended: stop this process with SIGTERM or by closing its "
            "Runner, which saves what was acknowledged in the file, and start it again"
        )


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _written(found: os.stat_result) -> Written:
    return found.st_mtime_ns, found.st_size
