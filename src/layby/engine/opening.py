"""From an address to an open store."""

import logging
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from layby.clock import Clock
from layby.core.model import Millis
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.conflicts import told_at_once
from layby.errors import UsageError
from layby.store.api import Store
from layby.store.memory import MemoryStore
from layby.store.postgres_address import is_postgres, is_words, without_password
from layby.store.sqlite import Durability, SqliteStore

logger = logging.getLogger(__name__)

SLOW_S: Final = 2.0
"""A database that takes longer to open is told of."""


@runtime_checkable
class HasClock(Protocol):
    """A store that says what time it is, to all processes that share it."""

    def clock_beside(self, elapsed: Callable[[], Millis], /) -> Clock: ...


_HOST_AND_PORT = re.compile(r"(?!sqlite:)[^/\\]+:\d{1,5}/?")


def is_url(address: str) -> bool:
    """Whether the engine is elsewhere: behind a URL, or a socket in the file system."""
    return address.startswith(("http://", "https://", "unix:"))


def check_address(address: object) -> str:
    """`sqlite:PATH`, a plain path, `memory:` (nothing is kept), or the URL of a server."""
    if not isinstance(address, str):
        raise UsageError(f"Runner({address!r}): an address is a string such as 'sqlite:layby.db'")
    if is_url(address):
        return address
    if is_postgres(address):
        return _check_postgres(address)
    if address == "memory":
        raise UsageError("Runner('memory'): did you mean 'memory:'? For a file write './memory'")
    if _HOST_AND_PORT.fullmatch(address):
        raise UsageError(
            f"Runner({address!r}): did you mean 'http://{address}'? "
            f"For a file of this name write './{address}'"
        )
    path = _path(address)
    if "://" in path:
        raise UsageError(
            f"Runner({shown(address)!r}): unknown scheme; write for example 'sqlite:PATH' or "
            "'postgresql://USER@HOST/DATABASE'"
        )
    if not path:
        raise UsageError(f"Runner({address!r}): no path; write for example 'sqlite:layby.db'")
    if path == ":memory:":
        raise UsageError(f"Runner({address!r}): use 'memory:' for a store that keeps nothing")
    return address


def open_store(
    address: str, durability: Durability, settings: Settings, *, is_server: bool = False
) -> Store:
    if address == "memory:":
        return MemoryStore(settings, next_after)
    if is_postgres(address):
        return _open_postgres(address, durability, settings)
    path = path_of(address)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the path of a file in it")
    if path.exists() and not os.access(path, os.W_OK):  # SQLite would open it anyway
        raise UsageError(f"{path} is read-only: give this process write access to it")
    return SqliteStore(path, settings, next_after, durability, is_server=is_server)


def is_file(address: str) -> bool:
    return address != "memory:" and not is_url(address) and not is_postgres(address)


def shown(address: str) -> str:
    """The address for a message or a log: without a password."""
    return without_password(address)


def clock_of(store: Store, own: Clock) -> Clock:
    """The clock that says when things happen in this store: a shared one has its own."""
    if not isinstance(store, HasClock):
        return own
    with told_at_once():
        return store.clock_beside(own.elapsed)


def _check_postgres(address: str) -> str:
    if "://" not in address:
        wanted = "postgresql://USER@HOST/DATABASE"
        raise UsageError(f"Runner({shown(address)!r}): write for example '{wanted}'")
    return address


def _open_postgres(address: str, durability: Durability, settings: Settings) -> Store:
    """Loaded when it is needed: psycopg comes with an extra."""
    with needing_psycopg():
        from layby.store.postgres import PostgresStore  # noqa: PLC0415 - see above
    with _told_if_slow(address):
        return PostgresStore(address, settings, next_after, durability=durability)


@contextmanager
def _told_if_slow(address: str) -> Generator[None]:
    """It may be silent, or another process may migrate it; somebody may be waiting for this one."""
    told = ("waiting for %s: it has not been opened yet", shown(address))
    timer = threading.Timer(SLOW_S, logger.warning, told)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def needing_psycopg() -> Generator[None]:
    """Around imports of what uses it."""
    try:
        yield
    except ImportError as missing:
        why = f"PostgreSQL needs psycopg, which is not installed ({missing})"
        raise UsageError(f"{why}: pip install 'layby[postgres]'") from missing


def path_of(address: str) -> Path:
    if is_words(address):
        wanted = "postgresql://USER@HOST/DATABASE"
        raise UsageError(f"'{shown(address)}' is not a path: write it as a URL, '{wanted}'")
    return Path(_path(address))


def _path(address: str) -> str:
    """`sqlite:PATH` and `sqlite://PATH` alike; anything else is a path itself."""
    scheme, colon, rest = address.partition(":")
    return rest.removeprefix("//") if colon and scheme == "sqlite" else address
