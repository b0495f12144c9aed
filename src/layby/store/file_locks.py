"""Locks on bytes of a file, which end with the process that took them, however it ends.

Record locks belong to a process, and end when it closes the file anywhere, such as after
`shutil.copy`. Linux has locks that belong to the open file instead, and record locks of others heed
them. A forked child inherits those, and would hold them when its parent is dead: so it lets go.
"""

import errno
import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi0q")
"""How Linux describes a lock: kind, from where, start, length, process."""
_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_ASK: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
_locked: set[int] = set()
"""Open files that may hold a lock of their own."""


def take(file: int, start: int = 0, length: int = 0) -> bool:
    """Whether nobody else has locked any of these bytes; 0 bytes are all."""
    try:
        if not _set(file, fcntl.F_WRLCK, start, length):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError:
        return False
    return True


def share(file: int, start: int, length: int) -> None:
    """Let nobody else take these bytes, if no close can end that: else SQLite's own lock must do.

    A record lock would not be one more: SQLite and we are the same process.
    """
    try:
        _set(file, fcntl.F_RDLCK, start, length)
    except OSError:
        return  # somebody has them for a moment


def stop_sharing(file: int, start: int, length: int) -> None:
    _set(file, fcntl.F_UNLCK, start, length)


def are_told() -> bool:
    """Whether this system says what others have locked."""
    return _ASK is not None


def is_taken(file: int, start: int, length: int) -> bool:
    """By whomever; False where the system does not tell."""
    if _ASK is None:
        return False
    asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(file, _ASK, asked))
    except OSError:
        return False
    return kind != fcntl.F_UNLCK


def close(file: int) -> None:
    """Of a file that may be locked."""
    _locked.discard(file)
    os.close(file)


def _set(file: int, kind: int, start: int, length: int) -> bool:
    """Whether there are locks of this sort, here and on this file system."""
    if _SET is None:
        return False
    _locked.add(file)
    try:
        fcntl.fcntl(file, _SET, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def _let_go() -> None:
    """The numbers stay in use, since somebody may still close them."""
    if _locked:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for file in _locked:
            os.dup2(nothing, file, inheritable=False)
        os.close(nothing)
        _locked.clear()


os.register_at_fork(after_in_child=_let_go)
