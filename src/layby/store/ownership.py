"""One process owns a database file; the lock dies with it, and that is how its work is freed.

The lock is a record lock on FILE.lock. Such locks belong to the process, so a second opening
inside the same process is refused by a list of our own.
"""

import fcntl
import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from layby.errors import StoreOpenHere, StoreOwned, StoreUnavailable

_owned_here: set[Path] = set()


MAX_SOCKET_PATH = 100
"""The systems we run on allow 104 bytes or a few more."""


class Ownership:
    """Held from construction to `release`."""

    def __init__(self, database: Path, *, is_server: bool = False) -> None:
        """A server that is gone is expected back: nobody else takes the file in the meantime."""
        real = database.resolve()  # two paths to one file count as one
        self._path = real.with_name(real.name + ".lock")
        if self._path in _owned_here:
            raise StoreOpenHere(f"{database} is already open in this process: use that one")
        self._file = _opened(self._path, database)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _read_owner(self._path)
            os.close(self._file)
            raise StoreOwned(_owned_by(database, owner)) from None
        _owned_here.add(self._path)
        self._is_held = True
        with suppress(OSError):  # on a full disk the lock still holds, without naming its owner
            self._sign(is_server=is_server)

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            _owned_here.discard(self._path)
            os.ftruncate(self._file, 0)
            os.close(self._file)

    def _sign(self, *, is_server: bool) -> None:
        signature = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join(sys.argv)[:200],
            "is_server": is_server,
        }
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(signature).encode(), 0)


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


def _opened(path: Path, database: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = f"cannot write {path.name} beside {database} ({error.strerror})"
        remedy = "check that the folder exists and is writable"
        raise StoreUnavailable(f"{what}: {remedy}") from error


def _read_owner(path: Path) -> Mapping[str, Any]:
    try:
        owner: Mapping[str, Any] = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return {}
    return owner


def _owned_by(database: Path, owner: Mapping[str, Any]) -> str:
    pid, host = owner.get("pid", "unknown"), owner.get("host", "unknown host")
    command = owner.get("command", "")
    who = f"process {pid} on {host}" + (f" ({command})" if command else "")
    return f"{database} is in use by {who}: stop that process first, or use another file"
