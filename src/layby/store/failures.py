"""Failures of the database, in words that say what to do."""

import sqlite3

from layby.errors import StoreBusy, StoreError, StoreUnavailable, StoreUnreadable

_REMEDIES: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (
        StoreUnavailable,
        "the disk is full: free some space; nothing of this batch was written",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreUnavailable,
        "the file is read-only: give this process write access to the file and its folder",
    ),
    sqlite3.SQLITE_BUSY: (
        StoreBusy,
        "another program holds a lock on the file: close it there and try again",
    ),
    sqlite3.SQLITE_LOCKED: (
        StoreBusy,
        "another program holds a lock on the file: close it there and try again",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnavailable,
        "the file cannot be opened: check that the folder exists and is writable",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailable,
        "the disk reports an error: check the disk and the space left on it",
    ),
    sqlite3.SQLITE_NOTADB: (
        StoreUnreadable,
        "this is not a layby database: give another path, or restore the file from a backup",
    ),
    sqlite3.SQLITE_CORRUPT: (
        StoreUnreadable,
        "the database is damaged: restore it from a backup, or try SQLite's `.recover`",
    ),
}


def explained(error: sqlite3.Error, path: str = "") -> StoreError:
    """The same failure as a StoreError: what, which file, what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind, remedy = _REMEDIES.get(code, (StoreError, "the store failed"))
    where = f"{path}: " if path else ""
    return kind(f"{where}{remedy} ({error})")


def is_full(error: StoreError) -> bool:
    """Whether it says that there was no room on the disk."""
    code: int = getattr(error.__cause__, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_FULL
