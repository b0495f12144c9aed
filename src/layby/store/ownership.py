"""One process owns a database file; the lock dies with it, and that is how its work is freed.

The locks are on FILE.lock and on a byte of the file itself. Where they are record locks, they
belong to the process: so a second opening inside the same process is refused by a list of our own.
"""

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from layby.errors import StoreOpenHere, StoreOwned, StoreUnavailable, StoreUnreadable
from layby.store import file_locks
from layby.store.own_file import Identity, identity, log_of

_owned_here: set[Path | Identity | None] = set()
"""Lock files, and what they are for: a hard link has a lock file of its own."""


MAX_SOCKET_PATH = 100
"""The systems we run on allow 104 bytes or a few more."""


_LOCKED_BYTE: Final = 1 << 62
"""Of the database: far from the bytes that SQLite locks."""
_IN_USE: Final = (2**30 + 2, 510)
"""Start and length of what every connection to a database has locked. Whoever closes the last one,
as far as this tells, removes the log.
"""
_BELONGING: Final = ("database", "log")
"""The part of a signature that says which log is whose."""


class Ownership:
    """Held from construction to `release`."""

    def __init__(self, database: Path, *, is_server: bool = False) -> None:
        """A server that is gone is expected back: nobody else takes the file in the meantime."""
        self._real = database.resolve()  # two paths to one file count as one
        self._path = self._real.with_name(self._real.name + ".lock")
        self._is_server = is_server
        if {self._path, identity(self._real)} & _owned_here:
            raise StoreOpenHere(f"{database} is already open in this process: use that one")
        self._file = _opened(self._path, 0o600, f"cannot write {self._path.name} beside {database}")
        self.database = -1
        """The database itself, open until `release`."""
        try:
            self._lock(database)
            self._refuse_foreign_log(database)
        except BaseException:
            self._close()
            raise
        self._owned = {self._path, identity(self._real)}
        _owned_here.update(self._owned)
        self._is_held = True
        self._sign()

    def confirm(self) -> None:
        """SQLite has opened the database, which dropped a record lock on it; it does so only then.

        The program around us can drop SQLite's own locks, so what they say is said once more.
        """
        self._lock_database()
        file_locks.share(self.database, *_IN_USE)
        self._sign()

    def prepare_closing(self) -> None:
        """SQLite wants the database for itself when it copies the log into it for the last time."""
        file_locks.stop_sharing(self.database, *_IN_USE)

    def _sign(self) -> None:
        """Say who owns it; on a full disk the lock still holds, without naming its owner.

        A log that is left behind by a crash belongs to this database, and to no other.
        """
        self._signature: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join(sys.argv)[:200],
            "is_server": self._is_server,
            "database": identity(self._real),
            "log": identity(log_of(self._real)),
        }
        self._write_signature()

    def disown_log(self) -> None:
        """One of them was overwritten or cut: nobody may add what is left of the log to the file.

        Frames that were copied long ago would undo what was copied after them.
        """
        if self._signature["database"] is not None:
            self._signature["database"] = None
            self._write_signature()

    def release(self, *, is_clean: bool = True) -> None:
        """`is_clean`: no log is left behind that might belong to another file."""
        if self._is_held:
            self._is_held = False
            _owned_here.difference_update(self._owned)
            self._signature = {} if is_clean else {k: self._signature[k] for k in _BELONGING}
            self._write_signature()
            self._close()

    def _lock(self, database: Path) -> None:
        """The lock on FILE.lock names its owner; that on the database holds under every name."""
        if not file_locks.take(self._file):
            raise StoreOwned(_owned_by(database, _read_signature(self._file)))
        self.database = _opened(self._real, 0o644, f"{database}: the file cannot be opened")
        self._lock_database()

    def _lock_database(self) -> None:
        if not file_locks.take(self.database, _LOCKED_BYTE, 1):
            raise StoreOwned(
                f"{self._real} is in use by another process, through another name of the same file "
                f"(a hard link) or although {self._path.name} was removed: stop that process "
                "first, or use another file"
            )

    def _refuse_foreign_log(self, database: Path) -> None:
        """SQLite would add it to whatever database is there now, and damage it."""
        signed = _read_signature(self._file)
        log = log_of(self._real)
        if signed.get("log") is None or identity(log) != tuple(signed["log"]):
            return
        without = f"remove {log.name} and {self._real.name}-shm to use this one"
        if signed.get("database") is None:
            raise StoreUnreadable(
                f"{database} or {log.name} was overwritten or cut short while it was in use, and "
                f"they do not fit together: {without}, or do so and put a backup in its place"
            )
        if os.fstat(self.database).st_size == 0:
            return  # begun anew: SQLite itself drops the log
        if identity(self._real) != tuple(signed["database"]):
            raise StoreUnreadable(
                f"{database} was replaced while it was in use, and {log.name} belongs to the file "
                f"that was here before: put that one back, or {without}"
            )

    def _write_signature(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            if self._signature:
                os.pwrite(self._file, json.dumps(self._signature).encode(), 0)

    def _close(self) -> None:
        """FILE.lock last: as long as the database is locked, it says by whom."""
        if self.database >= 0:
            file_locks.close(self.database)
        file_locks.close(self._file)


def socket_of(database: Path) -> Path:
    """The owner's private socket: beside the file, unless that path would be too long."""
    real = database.resolve()
    beside = real.with_name(real.name + ".sock")
    if len(os.fsencode(beside)) <= MAX_SOCKET_PATH:
        return beside
    short = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"layby-{os.getuid()}-{short}.sock"


def is_served(database: Path) -> bool:
    """Whether a living owner listens there; a socket left behind, or a stranger's, does not count.

    When that path would be too long, the socket is in a folder that everybody can write to.
    """
    path = socket_of(database)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            if path.stat().st_uid not in (os.getuid(), database.stat().st_uid):
                return False
            probe.connect(str(path))
        except OSError:
            return False
    return True


def is_owned_by_server(database: Path) -> bool:
    path = database.resolve().with_name(database.resolve().name + ".lock")
    if path in _owned_here:
        return False  # do not open the lock file: closing it would release our own lock
    return bool(_read_owner(path).get("is_server"))


def misled_owner(database: Path) -> str | None:
    """The living process that owns this path, and holds another file or log than those there."""
    path = database.resolve().with_name(database.resolve().name + ".lock")
    if path in _owned_here:
        return None
    signed = _read_owner(path)
    if "database" not in signed or signed.get("host") != socket.gethostname():
        return None
    is_copy = file_locks.are_told() and not _is_taken(path, 0, 0)
    if is_copy or not _is_alive(signed["pid"]):
        return None
    there = {"database": identity(database), "log": identity(log_of(database.resolve()))}
    # A log that is not signed yet is about to be: its owner is opening the database.
    held = {name: tuple(signed[name]) for name in _BELONGING if signed.get(name)}
    is_misled = "database" not in held or any(held[name] != there[name] for name in held)
    return _who(signed) if is_misled else None


def refuse_other_name(database: Path) -> None:
    """What its owner has committed is in a log beside the other name: here an old state would be
    read, or none.
    """
    lock = database.resolve().with_name(database.resolve().name + ".lock")
    if {lock, identity(database)} & _owned_here:
        return  # do not open what SQLite or we have locked: closing it could release that
    if _is_taken(database, _LOCKED_BYTE, 1) and not _is_taken(lock, 0, 0):
        raise StoreOwned(
            f"{database} is in use by another process, through another name of the same file (a "
            f"hard link) or although {lock.name} was removed: give the name that process uses, or "
            "stop it first"
        )


def _is_taken(path: Path, start: int, length: int) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return file_locks.is_taken(file, start, length)
    finally:
        os.close(file)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _opened(path: Path, mode: int, what: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except OSError as error:
        remedy = "check that the folder exists and is writable"
        raise StoreUnavailable(f"{what} ({error.strerror}): {remedy}") from error


def _read_owner(path: Path) -> Mapping[str, Any]:
    """Not of a lock that this process holds: closing the file would release it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return _read_signature(file)
    finally:
        os.close(file)


def _read_signature(file: int) -> Mapping[str, Any]:
    try:
        signature: Mapping[str, Any] = json.loads(os.pread(file, 4096, 0) or b"{}")
    except (OSError, ValueError):
        return {}
    return signature


def _owned_by(database: Path, owner: Mapping[str, Any]) -> str:
    return f"{database} is in use by {_who(owner)}: stop that process first, or use another file"


def _who(owner: Mapping[str, Any]) -> str:
    pid, host = owner.get("pid", "unknown"), owner.get("host", "unknown host")
    command = owner.get("command", "")
    return f"process {pid} on {host}" + (f" ({command})" if command else "")
