"""From an address to an open store."""

from pathlib import Path

from layby.core.rows import Settings
from layby.engine.calendar import next_after
from layby.errors import UsageError
from layby.store.api import Store
from layby.store.memory import MemoryStore
from layby.store.sqlite import Durability, SqliteStore

LATER = {
    "http": "talking to a server comes with the server",
    "https": "talking to a server comes with the server",
    "postgresql": "PostgreSQL comes with a later release",
    "postgres": "PostgreSQL comes with a later release",
}


def open_store(address: str, durability: Durability, settings: Settings) -> Store:
    """`sqlite:PATH`, a plain path, or `memory:` (nothing is kept)."""
    if address == "memory:":
        return MemoryStore(settings, next_after)
    scheme, colon, rest = address.partition(":")
    if scheme in LATER:
        raise UsageError(f"Runner({address!r}): {LATER[scheme]}; use 'sqlite:PATH' for now")
    path = rest.removeprefix("//") if colon and scheme == "sqlite" else address
    if not path:
        raise UsageError(f"Runner({address!r}): no path; write for instance 'sqlite:layby.db'")
    if path == ":memory:":
        raise UsageError(f"Runner({address!r}): use 'memory:' for a store that keeps nothing")
    return SqliteStore(Path(path), settings, next_after, durability)
