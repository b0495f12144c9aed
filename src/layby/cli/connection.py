"""How a command reaches layby: a server, the process that owns a file, or the file itself.

A file that a process owns is reached through that process, by the socket beside it. Otherwise
reads open the file without owning it, so that they never get in the way of a process that is just
starting; only a write opens it with an engine of its own, for a moment.
"""

import asyncio
import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from layby.cli.database import DatabaseClient, is_read, look
from layby.client.first_answer import FirstAnswer
from layby.client.http import HttpClient
from layby.client.interface import Client
from layby.client.transport import REFUSED, Unreachable
from layby.clock import SystemClock
from layby.core.commands import Command
from layby.core.model import Millis
from layby.core.queries import GetNow, Query
from layby.core.replies import NowData, Reply
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.opening import check_address, path_of, shown
from layby.errors import LaybyError, StoreOwned, StoreUnavailable, StoreUnreadable, UsageError
from layby.local import LocalClient
from layby.store.ownership import is_served, socket_of
from layby.store.postgres_address import is_postgres
from layby.store.sqlite import SqliteReader, SqliteStore

T = TypeVar("T")

DEFAULT_FILE: Final = "layby.db"
DEFAULT_URL: Final = "http://127.0.0.1:8001"
PATIENCE_S: Final = 0.3
"""A person is waiting, so a server that is not there is reported at once."""
FIRST_ANSWER_S: Final = 5.0
"""How long a server may say nothing; after a second it is told that it is waited for."""


class Place(Struct, frozen=True):
    """Where layby is: a server's URL, a file, or a database that no process owns."""

    url: str | None = None
    token: str | None = None
    file: Path | None = None
    database: str | None = None
    """The URL of a PostgreSQL database; perhaps with a password."""
    is_default: bool = False
    """It was not named by the user."""
    flags: str = ""
    """The flags by which the user named it."""
    waits: bool = False
    """Whether a server that does not answer is waited for, however long that takes."""

    @property
    def address(self) -> str:
        """In the form a Runner accepts."""
        if self.database is not None:
            return self.database
        return f"sqlite:{self.file}" if self.file is not None else self.url or DEFAULT_URL

    @property
    def shown(self) -> str:
        """The address for a message: without a password."""
        return shown(self.address)

    def __repr__(self) -> str:
        return f"Place({self.shown})"

    def sent_here(self, command: str) -> str:
        """The command with the flags it needs to reach this place, ready to paste."""
        is_for_worker = command.startswith("layby worker") and self.file is not None
        flags = f"--url {shlex.quote(self.shown)}" if is_for_worker else self.flags
        return f"{command} {flags}".rstrip()


def find_place(
    url: str | None,
    token: str | None,
    db: str | None,
    environ: Mapping[str, str] = os.environ,
    folder: Path = Path(),
) -> Place:
    """Flags before variables; without either, `layby.db` in this folder or a local server."""
    url, db = named(url, db, environ)
    token = token or environ.get("LAYBY_TOKEN") or None
    if url is not None:
        return Place(_checked_url(url), token)
    if db is not None and is_postgres(db):
        return Place(database=check_address(db))
    if db is not None:
        return Place(file=_file(db))
    if (folder / DEFAULT_FILE).is_file():
        return Place(file=folder / DEFAULT_FILE, is_default=True)
    return Place(DEFAULT_URL, token, is_default=True)


def named(
    url: str | None, db: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[str | None, str | None]:
    """The one of the two that is to be used, if any: flags before variables."""
    if url is None and db is None:
        url, db = environ.get("LAYBY_URL") or None, environ.get("LAYBY_DB") or None
    if url is not None and db is not None:
        raise UsageError(
            f"both a server ({url}) and a file or database ({shown(db)}) are named: "
            "give only one of --url (LAYBY_URL) and --db (LAYBY_DB)"
        )
    return url, db


def named_twice(file: str, other: str) -> UsageError:
    """Of a command that takes the address without a flag, too."""
    return UsageError(f"both {shown(file)} and {shown(other)} are named: give one of them")


def ask(place: Place, work: Callable[[Client], Awaitable[T]], within: float | None = None) -> T:
    """Run `work` with a client of this place, and close the client.

    `within`: seconds, after which it raises a TimeoutError.
    """

    async def connected() -> T:
        async with asyncio.timeout(within), reach(place) as client:
            return await work(client)

    return asyncio.run(connected())


def now_at(place: Place, within: float | None = None) -> Millis:
    """Store time: what deadlines are made of, and what "ago" and "in" are measured from.

    The clock of this machine stands in where store time is not known: at a server that does not
    know this kind, and for a file of an older layby, which the command itself may migrate.
    """
    try:
        data = ask(place, lambda client: client.send(GetNow()), within).data
    except StoreUnreadable:
        data = None
    return data.now if isinstance(data, NowData) else SystemClock().now()


@asynccontextmanager
async def reach(place: Place) -> AsyncGenerator[Client]:
    client = _client(place)
    try:
        yield client
    except StoreUnavailable as error:
        raise unreachable(place, error) from error
    finally:
        await client.close()


class FileClient:
    """A client of a file that may have an owner, now or a moment later."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._owner: HttpClient | None = None
        self._own: LocalClient | None = None
        self._engine: Engine | None = None
        self._reader: SqliteReader | None = None

    async def send(self, request: Command | Query) -> Reply:
        if self._own is not None:
            return await self._own.send(request)
        if self._owner is None and is_served(self._file):
            self._owner = _http_client(f"unix:{socket_of(self._file)}", None, waits=False)
        if self._owner is not None:
            return await self._owner.send(request)
        if is_read(request):
            return self._look(request)
        return await self._opened().send(request)

    async def close(self) -> None:
        if self._owner is not None:
            await self._owner.close()
        if self._own is not None:
            await self._own.close()
        if self._engine is not None:
            self._engine.stop()
        if self._reader is not None:
            self._reader.close()

    def _look(self, request: Command | Query) -> Reply:
        """Read the file without owning or changing it."""
        reader = self._reader = self._reader or SqliteReader(self._file, Settings(), next_after)
        return look(reader, request, lambda: max(SystemClock().now(), reader.store_time()))

    def _opened(self) -> LocalClient:
        try:
            store = SqliteStore(self._file, Settings(), next_after)
        except StoreOwned as error:
            raise StoreOwned(f"{error}; it does not listen at {socket_of(self._file)}") from None
        self._engine = Engine(store, SystemClock())
        self._engine.start_inline()
        self._own = LocalClient(self._engine)
        return self._own


def _client(place: Place) -> Client:
    if place.database is not None:
        return DatabaseClient(place.database)
    if place.file is None:
        return _http_client(place.url or DEFAULT_URL, place.token, waits=place.waits)
    if not place.file.is_file():
        raise UsageError(_no_file(place.file))
    return FileClient(place.file)


def _http_client(url: str, token: str | None, *, waits: bool) -> HttpClient:
    first = FirstAnswer(url, None) if waits else FirstAnswer(url, FIRST_ANSWER_S, PATIENCE_S)
    return HttpClient(url, token, PATIENCE_S, first=first)


def _no_file(file: Path) -> str:
    if file.exists():
        what = "is a folder" if file.is_dir() else "is not a regular file"
        return f"{file} {what}: give --db the path of a layby database"
    return (
        f"{file} does not exist: give --db the path of a layby database, or --url a server; "
        "`layby run` and `layby serve` create a new file"
    )


def unreachable(place: Place, error: StoreUnavailable) -> LaybyError:
    """Says what was tried if no place was named, else what went wrong."""
    if not isinstance(error, Unreachable) or place.url is None:
        return error
    nobody = f"no layby server answers at {place.url}"
    if place.is_default:
        where = f"there is no {DEFAULT_FILE} in this folder, so a server was tried"
        return StoreUnavailable(
            f"{nobody}: {where}; start one with `layby serve`, or give --db or --url"
        )
    why = "nobody listens there" if error.why == REFUSED else error.why
    return StoreUnavailable(f"{nobody} ({why}): is it running, and is this its address?")


def _checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://", "unix:")):
        raise UsageError(f"{url!r} is not the URL of a server: write for example {DEFAULT_URL}")
    return url.rstrip("/")


def _file(db: str) -> Path:
    """`sqlite:PATH`, `sqlite://PATH`, or a plain path."""
    scheme, colon, rest = db.partition(":")
    if scheme in ("http", "https"):
        raise UsageError(f"--db {db}: this is a server; give it as --url")
    if db == "memory:":
        raise UsageError(
            "--db memory: keeps nothing and is visible to its own process only: name a file"
        )
    path = rest.removeprefix("//") if colon and scheme == "sqlite" else db
    if not path or "://" in path:
        wanted = f"sqlite:{DEFAULT_FILE} or postgresql://USER@HOST/DATABASE"
        raise UsageError(f"--db {shown(db)}: write for example {wanted}")
    return path_of(db)
