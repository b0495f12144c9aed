"""PostgreSQL through psycopg: rows are read as binary columns, and written with the commit.

What a transaction writes is kept until the commit and sent together with it, in one pipeline. If
the connection breaks before the answer, the transaction is looked up by its id.

Every transaction first asks whether a newer layby has changed the schema so that this version must
not use it. Such a migration waits for those that have asked, and whoever asks later waits for it.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Final, TypeVar, cast, get_args

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg.pq import TransactionStatus

from layby.core.model import Promise, Task
from layby.errors import StoreAway, StoreError, StoreMigrated, StoreUnavailable
from layby.store.api import StoreConflict
from layby.store.bulk import Bulk, Wide
from layby.store.migrate import OLDEST_CODE, newest_known, too_new
from layby.store.postgres_answers import UNKNOWN
from layby.store.postgres_connection import Connection, Connector
from layby.store.postgres_failures import explained, explained_at_once, is_lost
from layby.store.session import InLane, Queued, QueuedTurn, Reading, packed
from layby.store.tables import ROWS, Table, encode

T = TypeVar("T")
Arguments = Sequence[Any] | Mapping[str, Any] | None
Cursor = psycopg.Cursor[tuple[Any, ...]]
Pair = tuple[Promise, Task | None]

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
READ_ONLY: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
IF_WE_MAY: Final = f"({OLDEST_CODE}) <= ?"
"""The newest schema that we know is its argument."""
_STAMP: Final = """
    SELECT CAST(pg_current_xact_id() AS text),
        CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
"""
_STATUS: Final = "SELECT pg_xact_status(CAST(%s AS xid8))"
# After a crash the database gives ids to others that it has not written to its log.
_IS_OURS: Final = """
    SELECT EXISTS (
        SELECT FROM server_times WHERE server = %s AND xmin = CAST(CAST(%s AS xid8) AS xid))
"""


class PostgresSession:
    """Whoever writes by it replays what has met another process."""

    errors = (psycopg.Error,)

    def __init__(self, connector: Connector, begin: str = BEGIN) -> None:
        self._connector = connector
        self._begin = begin
        self._connection: Connection | None = None
        self._former = UNKNOWN
        """What was at the other end of a connection that broke: it may not know."""
        self._has_begun = False
        self._waiting: list[tuple[str, Arguments]] = []
        """Writes that leave with the commit."""
        self._xact_id: str | None = None
        self.server: str | None = None
        """Whose time is written with every change: that row tells who has written it last."""
        self.newest = newest_known()

    def explained(self, error: Exception, name: str) -> Exception | StoreError:
        assert isinstance(error, psycopg.Error)
        return explained(error, name)

    # --- transactions --------------------------------------------------------------------

    def begin(self) -> None:
        """Nothing is sent before there is something to do."""
        self._has_begun = False
        self._xact_id = None
        self._waiting.clear()
        if self._connection is None:
            self._connection = self._connector.connect()
            self._connection.end(self._former)
            self._former = UNKNOWN

    def commit(self) -> None:
        if not self._has_begun and not self._waiting:
            return
        if not self._has_begun:
            self._run([])  # whether we may, before anything is sent that cannot be taken back
        writes, self._waiting = self._waiting, []
        try:
            self._run([*writes, ("COMMIT", None)])
        except psycopg.OperationalError as error:
            if not writes or not is_lost(error, self._connection):
                raise
            self._look_up(error)
        self._has_begun = False

    def roll_back(self) -> None:
        self._waiting.clear()
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            self._drop()
        if connection.closed:
            self._drop()

    def read_stamp(self) -> Reading:
        """The transaction's id, and what time it is there; `stamped` takes the answer."""
        return _STAMP, _STAMPS, ()

    def stamped(self, found: Sequence[tuple[str, int]]) -> int:
        self._xact_id, now = found[0]
        return now

    def _look_up(self, error: Exception) -> None:
        """The connection broke during the commit: has it happened?"""
        self._drop()
        if self._xact_id is None:
            raise StoreUnavailable(_unknown(self._connector.name)) from error
        has_happened = self._has_happened(self._xact_id)
        if has_happened is None:
            raise StoreUnavailable(_unknown(self._connector.name)) from error
        if not has_happened:
            raise StoreConflict from error

    def _has_happened(self, xact_id: str) -> bool | None:
        """Whether this transaction is committed; None if that is not known."""
        ask = self._connector.ask_again
        outcome = ask(_STATUS, (xact_id,), unless="in progress", former=self._former)
        if outcome != "committed":
            return False if outcome == "aborted" else None
        return ask(_IS_OURS, (self.server, xact_id))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._has_begun = False
        if connection is not None:
            self._former = connection.backend
            connection.close()

    # --- reads ---------------------------------------------------------------------------

    def read(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        (cursor,) = self._ask([(_positional(statement), arguments)])
        return _made(decoder, cursor)

    def read_sized(
        self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any
    ) -> tuple[T, int]:
        (cursor,) = self._ask([(_positional(statement), arguments)])
        rows = cursor.fetchall()
        size = sum(len(cell) if isinstance(cell, str) else 8 for row in rows for cell in row)
        return _maker(decoder.type)(rows), size

    def read_together(self, readings: Sequence[Reading]) -> list[Any]:
        cursors = self._ask([(_positional(text), given) for text, _, given in readings])
        pairs = zip(readings, cursors, strict=True)
        return [_made(decoder, cursor) for (_, decoder, _), cursor in pairs]

    def read_and_commit(self, readings: Sequence[Reading]) -> list[Any]:
        """The same as the end of the transaction, in one round trip with its commit.

        They are committed before we know whether the schema is too new for us: what they write
        must depend on that itself (`IF_WE_MAY`).
        """
        asked = [*((_positional(text), given) for text, _, given in readings), ("COMMIT", None)]
        cursors = self._ask(asked)
        self._has_begun = False
        return [_made(decoder, cursor) for (_, decoder, _), cursor in zip(readings, cursors)]  # noqa: B905 - the last one is that of the commit

    def read_named(
        self, statement: str, decoder: "msgspec.json.Decoder[T]", arguments: Mapping[str, Any]
    ) -> T:
        (cursor,) = self._ask([(_named(statement), arguments)])
        return _made(decoder, cursor)

    def row(self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        text = _named(statement) if isinstance(arguments, Mapping) else _positional(statement)
        (cursor,) = self._ask([(text, arguments)])
        return cursor.fetchone()

    def rows(self, statement: str, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        (cursor,) = self._ask([(_named(statement), arguments)])
        return cursor.fetchall()

    def texts_of(
        self,
        table: str,  # noqa: ARG002 - the statement has the texts
        columns: Sequence[str],  # noqa: ARG002 - the same
        statement: str,
        arguments: Mapping[str, Any],
    ) -> list[tuple[str, ...]]:
        return self.rows(statement, arguments)

    def read_alone(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        self.begin()
        try:
            found = self.read(statement, decoder, *arguments)
            self.commit()
        except psycopg.Error:
            self.roll_back()
            raise
        return found

    def commit_lazily(self) -> None:
        """This transaction need not be on disk when it is answered."""
        self._waiting.append(("SET LOCAL synchronous_commit TO off", None))

    def queue(
        self, statement: str, arguments: Mapping[str, Any]
    ) -> tuple[list[Queued], list[Queued], bool, bool]:
        (cursor,) = self._ask([(_named(statement), arguments)])
        nodes, roots, refused, prior = ([row[1:] for row in found] for found in _sorted(cursor, 4))
        found = cast("list[Queued]", nodes), cast("list[Queued]", roots)
        return *found, bool(refused), bool(prior)

    def texts(self, statement: str, arguments: Mapping[str, Any]) -> list[str]:
        (cursor,) = self._ask([(_named(statement), arguments)])
        return [row[0] for row in cursor.fetchall()]

    def queued_turns(self, statement: str, arguments: Mapping[str, Any]) -> list[QueuedTurn]:
        (cursor,) = self._ask([(_named(statement), arguments)])
        return cast("list[QueuedTurn]", cursor.fetchall())

    def in_lanes(self, statement: str, arguments: Mapping[str, Any]) -> list[InLane]:
        (cursor,) = self._ask([(_named(statement), arguments)])
        return cast("list[InLane]", cursor.fetchall())

    # --- writes --------------------------------------------------------------------------

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        self._waiting.append((_positional(statement), arguments))

    def write(self, bulk: Bulk, rows: Sequence[Any]) -> None:
        self._waiting.append((_positional(bulk.text), (self.packed(bulk, rows),)))

    def write_wide(self, wide: Wide, rows: Sequence[tuple[Any, ...]]) -> None:
        text = _positional(wide.text(len(wide.names), 1))
        self._waiting.append((text, (_objects(wide.names, rows),)))

    def packed(self, bulk: Bulk, rows: Sequence[Any]) -> str:
        return _objects(bulk.names, rows) if bulk.names else packed(rows)

    def close(self) -> None:
        self._drop()

    def _ask(self, statements: Sequence[tuple[str, Arguments]]) -> list[Cursor]:
        """What was written before is seen."""
        writes, self._waiting = self._waiting, []
        asked = [(text, _bindable(arguments)) for text, arguments in statements]
        return self._run([*writes, *asked])[len(writes) :]

    def _run(self, statements: Sequence[tuple[str, Arguments]]) -> list[Cursor]:
        """All of them in one round trip, in order."""
        connection = self._connection
        if connection is None:
            raise StoreAway(f"{self._connector.name}: the connection is closed")
        if not self._has_begun:
            self._has_begun = True
            return self._run_first(connection, statements)
        if len(statements) == 1:
            return [_execute(connection, *statements[0])]
        with _pipeline(connection):
            return [_execute(connection, *each) for each in statements]

    def _run_first(
        self, connection: Connection, statements: Sequence[tuple[str, Arguments]]
    ) -> list[Cursor]:
        """The same, and begin. On a schema that is too new they may fail for just that reason."""
        asked: Cursor | None = None
        try:
            with _pipeline(connection):
                _execute(connection, self._begin, None)
                asked = _execute(connection, OLDEST_CODE, ())
                found = [_execute(connection, *each) for each in statements]
        except psycopg.Error:
            self._refuse_too_new(asked)
            raise
        self._refuse_too_new(asked)
        return found

    def _refuse_too_new(self, asked: Cursor | None) -> None:
        row = asked.fetchone() if asked is not None and asked.pgresult is not None else None
        if row is not None and row[0] > self.newest:
            why = f"a newer layby has migrated it, and it {too_new(row[0])}"
            raise StoreMigrated(f"{self._connector.name}: {why}, then restart this process")


@contextmanager
def _pipeline(connection: psycopg.Connection[Any]) -> Generator[None]:
    """Only the first error counts: psycopg would log those that follow from it, as warnings."""
    first: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except psycopg.Error as error:
                first = error
    except psycopg.Error as error:
        raise first or error from None
    if first is not None:
        raise first


def _execute(connection: psycopg.Connection[Any], text: str, arguments: Arguments) -> Cursor:
    cursor = connection.cursor(binary=True)
    return cursor.execute(text, arguments or None, prepare=arguments is not None)  # pyright: ignore[reportArgumentType] - texts of our own


def _sorted(cursor: Cursor, sorts: int) -> list[list[tuple[Any, ...]]]:
    """Rows by the number in their first cell."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(sorts)]
    for row in cursor.fetchall():
        sort: int = row[0]
        found[sort].append(row)
    return found


def _bindable(arguments: Arguments) -> Arguments:
    """What is looked for may contain NUL, which no text here does: so it is not found.

    Who reads compares what was found once more, so the least other character may stand for it.
    """
    if isinstance(arguments, Mapping):
        return {key: _without_nul(each) for key, each in arguments.items()}
    return arguments and [_without_nul(each) for each in arguments]


def _without_nul(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    if cell.startswith("[") and _NUL_IN_JSON in cell:  # a list of what is looked for
        return _ESCAPED_NUL.sub(r"\1\\u0001", cell)
    return cell.replace("\0", "\1") if "\0" in cell else cell


_NUL_IN_JSON: Final = r"\u0000"
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""Without those whose backslash is itself escaped."""


def _unknown(name: str) -> str:
    return (
        f"{name}: the connection broke during a commit, and it is not known whether that was done: "
        "read before you try again"
    )


# --- texts -------------------------------------------------------------------------------


@lru_cache(maxsize=1_024)
def _positional(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=256)
def _named(statement: str) -> str:
    """`:name`, but not `::type`, nor what is within a word or a text."""
    return re.sub(r"(?<![\w:']):([a-z_]+)", r"%(\1)s", statement.replace("%", "%%"))


# --- rows --------------------------------------------------------------------------------


@cache
def _object_of(names: tuple[str, ...]) -> type[msgspec.Struct]:
    fields = [(f"c{at}", Any, None) for at in range(len(names))]
    return msgspec.defstruct("Cells", fields, omit_defaults=True, gc=False)


def _objects(names: tuple[str, ...], rows: Sequence[Any]) -> str:
    """Each row as an object; cells that are NULL, or missing at the end, are left out."""
    made = _object_of(names)
    cells = (astuple(row) if isinstance(row, msgspec.Struct) else row for row in rows)
    return encode([made(*each) for each in cells]).decode()


def _made(decoder: "msgspec.json.Decoder[T]", cursor: Cursor) -> T:
    return _maker(decoder.type)(cursor.fetchall())


@cache
def _maker(sort: Any) -> Callable[[list[tuple[Any, ...]]], Any]:
    """How rows of a result become what a decoder would have made of them."""
    (each,) = get_args(sort)
    if each is str:
        return lambda rows: [row[0] for row in rows]
    if each == Pair:
        return _pairs
    if isinstance(each, type) and issubclass(each, msgspec.Struct):
        make = _struct_maker(ROWS[each])
        return lambda rows: [make(row) for row in rows]
    return lambda rows: rows


class ReadingSession(PostgresSession):
    """Nothing is written by it, and nobody replays what it reads."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, READ_ONLY)

    def explained(self, error: Exception, name: str) -> StoreError:
        assert isinstance(error, psycopg.Error)
        return explained_at_once(error, name)


def _struct_maker(table: Table) -> Callable[[tuple[Any, ...]], Any]:
    """Of a row with the columns of the table."""
    types = msgspec.structs.fields(table.row)
    decoders = [
        (at, msgspec.json.Decoder(types[at].type).decode)
        for at, column in enumerate(table.columns)
        if column.sort == "json"
    ]

    def make(row: tuple[Any, ...]) -> Any:
        cells = list(row)
        for at, decode in decoders:
            cells[at] = decode(cells[at])
        return table.row(*cells)

    return make if decoders else lambda row: table.row(*row)


_WIDTH: Final = len(ROWS[Promise].columns)
_TASK_STATE: Final = _WIDTH + ROWS[Task].names.index("task_state")
_task = _struct_maker(ROWS[Task])
_STAMPS: Final = msgspec.json.Decoder(list[tuple[str, int]])


def _pairs(rows: list[tuple[Any, ...]]) -> list[Pair]:
    return [
        (Promise(*row[:_WIDTH]), None if row[_TASK_STATE] is None else _task(row[_WIDTH:]))
        for row in rows
    ]
