"""SQLite through Python's own driver: results and narrow rows travel as JSON."""

import sqlite3
from collections.abc import Mapping, Sequence
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


class SqliteSession:
    errors = (sqlite3.Error,)

    def __init__(self, connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> None:
        self._connection = connection
        self._begin = begin

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
                cells = list(chain.from_iterable(part))
                self._connection.execute(wide.text(width, len(part)), cells)

    def packed(self, bulk: Bulk, rows: Sequence[Any]) -> str:  # noqa: ARG002 - all as arrays
        return packed(rows)

    def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=64)
def _together(statements: tuple[str, ...]) -> str:
    return f"SELECT {', '.join(f'({each})' for each in statements)}"
