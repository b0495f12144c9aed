"""SQLite through Python's own driver: results and narrow rows travel as JSON."""

import sqlite3
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, Final, TypeVar

import msgspec

from layby.errors import StoreError
from layby.store.bulk import Bulk, Wide
from layby.store.failures import explained
from layby.store.session import (
    IN_LANES,
    QUEUED,
    QUEUED_TURNS,
    TEXTS,
    InLane,
    Queued,
    QueuedTurn,
    Reading,
    packed,
)

T = TypeVar("T")

WIDE: Final = 64
"""Rows in one statement that binds each cell; a larger batch takes several."""
NULL: Final = float("nan")
"""SQLite takes it for NULL. Python's driver looks for an adapter of each None: 0.3 µs a cell."""
PIECE: Final = 2**17
"""Bytes of a large text that are read at once."""
_utf8 = getincrementaldecoder("utf-8")


class SqliteSession:
    errors = (sqlite3.Error,)

    def __init__(
        self,
        connection: sqlite3.Connection,
        begin: str = "BEGIN IMMEDIATE",
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """`give_way` is called between two pieces of something large."""
        self._connection = connection
        self._begin = begin
        self._give_way = give_way

    def explained(self, error: Exception, name: str) -> StoreError:
        assert isinstance(error, sqlite3.Error)
        return explained(error, name)

    def begin(self) -> None:
        self._connection.execute(self._begin)

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def read(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        return decoder.decode(self._connection.execute(statement, arguments).fetchone()[0])

    def read_sized(
        self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any
    ) -> tuple[T, int]:
        text = self._connection.execute(statement, arguments).fetchone()[0]
        return decoder.decode(text), len(text)

    def read_together(self, readings: Sequence[Reading]) -> list[Any]:
        """As one statement: many small ones contend for the interpreter lock."""
        statement = _together(tuple(text for text, _, _ in readings))
        arguments = tuple(chain.from_iterable(given for _, _, given in readings))
        found = self._connection.execute(statement, arguments).fetchone()
        return [decoder.decode(text) for (_, decoder, _), text in zip(readings, found, strict=True)]

    def row(self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        return self._connection.execute(statement, arguments).fetchone()

    def rows(self, statement: str, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, arguments).fetchall()

    def texts_of(
        self, table: str, columns: Sequence[str], statement: str, arguments: Mapping[str, Any]
    ) -> list[tuple[str, ...]]:
        """A number stands for a large text: that of its row."""
        found = self.rows(statement, arguments)
        if not any(isinstance(cell, int) for row in found for cell in row):
            return found
        return [
            tuple(
                self._in_pieces(table, column, cell) if isinstance(cell, int) else cell
                for column, cell in zip(columns, row, strict=True)
            )
            for row in found
        ]

    def _in_pieces(self, table: str, column: str, row: int) -> str:
        """The driver makes a text at once, and nobody else has the interpreter meanwhile: 2 ms for
        4 MB. A piece is read without it.
        """
        decoder, texts = _utf8(), list[str]()
        with self._connection.blobopen(table, column, row, readonly=True) as blob:
            while piece := blob.read(PIECE):
                texts.append(decoder.decode(piece))
                self._give_way()
        return "".join(texts)

    def read_alone(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        return self.read(statement, decoder, *arguments)

    def queue(
        self, statement: str, arguments: Mapping[str, Any]
    ) -> tuple[list[Queued], list[Queued], bool, bool]:
        nodes, roots, *others = self.row(statement, arguments)
        has_refused, has_prior = others or (0, 0)
        return QUEUED.decode(nodes), QUEUED.decode(roots), bool(has_refused), bool(has_prior)

    def texts(self, statement: str, arguments: Mapping[str, Any]) -> list[str]:
        return TEXTS.decode(self.row(statement, arguments)[0])

    def queued_turns(self, statement: str, arguments: Mapping[str, Any]) -> list[QueuedTurn]:
        return QUEUED_TURNS.decode(self.row(statement, arguments)[0])

    def in_lanes(self, statement: str, arguments: Mapping[str, Any]) -> list[InLane]:
        return IN_LANES.decode(self.row(statement, arguments)[0])

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        self._connection.execute(statement, arguments)

    def write(self, bulk: Bulk, rows: Sequence[Any]) -> None:
        self._connection.execute(bulk.text, (packed(rows),))

    def write_wide(self, wide: Wide, rows: Sequence[tuple[Any, ...]]) -> None:
        """Cell by cell; rows of one length at a time, so that no NULL is bound in vain."""
        for width, alike in groupby(sorted(rows, key=len), key=len):
            same = list(alike)
            for start in range(0, len(same), WIDE):
                part = same[start : start + WIDE]
                cells = [NULL if cell is None else cell for cell in chain.from_iterable(part)]
                self._connection.execute(wide.text(width, len(part)), cells)

    def packed(self, bulk: Bulk, rows: Sequence[Any]) -> str:  # noqa: ARG002 - all as arrays
        return packed(rows)

    def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=64)
def _together(statements: tuple[str, ...]) -> str:
    return f"SELECT {', '.join(f'({each})' for each in statements)}"
