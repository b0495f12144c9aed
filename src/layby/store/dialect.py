"""The few ways in which the databases differ. Everything else is one SQL text for both.

Many small statements contend for the interpreter lock, so a batch is one statement per table
and a result is one row of JSON. Narrow rows travel as one JSON parameter; the wide rows of
promises are bound cell by cell, up to `WIDE` rows a statement, since taking JSON apart again
costs more than binding.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final, Protocol

from layby.store.tables import Column

MOST_REFUSALS: Final = 1_000
"""How many different refusals in a group are looked at."""
WIDE: Final = 64
"""Rows in one statement that binds each cell; a larger batch takes several."""


class Dialect(Protocol):
    begin: str
    keyed: str
    """Clause for tables that consist only of their key."""

    any_of: str
    """A subquery for the ids (or other texts) in one parameter."""
    size: str
    """The function that gives the length of a text, in characters or bytes, whichever is quick."""
    texts: str
    """The same as a FROM item `r` with the column `value`, in order."""
    front: str
    """The oldest ready nodes and roots of a group, each up to a limit, as two JSON arrays; and
    whether there are tasks that some code has refused.
    """
    by_name: str
    """The same for each of some names."""
    refusals: str
    """The different refusals of the ready tasks of a group."""
    refused: str
    """The oldest ready tasks of a group with each of some refusals."""

    def rows(self, names: Sequence[str]) -> str:
        """A FROM item `r` with these columns, read from one parameter."""
        ...

    def values(self, names: Sequence[str], count: int) -> str:
        """A FROM item `r` with these columns and `count` rows, one parameter per cell."""
        ...

    def packed(self, columns: Sequence[Column], table: str) -> str:
        """An expression that packs one row into a JSON array."""
        ...

    def packed_all(self, packed: str, source: str) -> str:
        """A scalar query: all rows of `source` as one JSON array."""
        ...

    def filled(self, table: str, columns: tuple[str, ...]) -> str:
        """These texts of the rows with the `ids`, in that order; not as JSON: they may be large.

        It ends with the row that brings their bytes to `most`, and loads none after it.
        """
        ...


_LIVING = """
    task_state = 'pending' AND task_group = :group
        AND task_ready_at <= :now AND timeout_at > :since
        AND (:prefix = '' OR substr(id, 1, length(:prefix)) = :prefix)
"""
_READY = f"""
    {_LIVING} AND task_kind = '{{kind}}' AND task_refused IS NULL
"""
"""What takes may be handed, whatever its name (see `core.queue.is_for`)."""
_REFUSED = "task_state = 'pending' AND task_group = :group AND task_refused IS NOT NULL"


def _front(kind: str, look: str) -> str:
    """The oldest ready tasks of a group, whatever their names."""
    return f"""
        SELECT json_group_array(json_array(task_ready_at, id, task_name)) FROM (
            SELECT task_ready_at, id, task_name FROM promises WHERE {_READY.format(kind=kind)}
            ORDER BY task_ready_at, id LIMIT {look})
    """


def _by_name(kind: str, limit: str) -> str:
    """The oldest ready tasks of each name."""
    return f"""
        SELECT json_group_array(json_array(q.task_ready_at, q.id, q.task_name))
        FROM json_each(:names) AS n JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises WHERE task_name = n.value AND {_READY.format(kind=kind)}
            ORDER BY task_ready_at, id LIMIT {limit})
    """


class SqliteDialect:
    begin = "BEGIN IMMEDIATE"
    keyed = "WITHOUT ROWID"
    any_of = "(SELECT value FROM json_each(?))"
    size = "octet_length" if sqlite3.sqlite_version_info >= (3, 43) else "length"
    texts = "json_each(?) AS r"
    front = f"""
        SELECT ({_front("node", ":nodes")}), ({_front("root", ":roots")}),
            EXISTS (SELECT 1 FROM promises WHERE {_REFUSED})
    """
    by_name = f"SELECT ({_by_name('node', ':nodes')}), ({_by_name('root', ':roots')})"

    refusals = f"""
        WITH RECURSIVE found(refused) AS (
            SELECT (SELECT min(task_refused) FROM promises WHERE {_REFUSED})
            UNION ALL
            SELECT (SELECT min(task_refused) FROM promises
                WHERE {_REFUSED} AND task_refused > found.refused)
            FROM found WHERE found.refused IS NOT NULL
            LIMIT {MOST_REFUSALS}
        )
        SELECT json_group_array(refused) FROM found WHERE refused IS NOT NULL
    """
    refused = f"""
        SELECT json_group_array(json_array(q.task_ready_at, q.id, q.task_name))
        FROM json_each(:refusals) AS n JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises WHERE {_LIVING} AND task_refused = n.value
            ORDER BY task_ready_at, id LIMIT :most)
    """

    def rows(self, names: Sequence[str]) -> str:
        cells = ", ".join(
            f"json_extract(value, '$[{index}]') AS {quoted(name)}"
            for index, name in enumerate(names)
        )
        return f"(SELECT {cells} FROM json_each(?)) AS r"

    def values(self, names: Sequence[str], count: int) -> str:
        cells = ", ".join(f"column{at} AS {quoted(name)}" for at, name in enumerate(names, 1))
        row = f"({', '.join('?' for _ in names)})"
        return f"(SELECT {cells} FROM (VALUES {', '.join([row] * count)})) AS r"

    def packed(self, columns: Sequence[Column], table: str) -> str:
        return f"json_array({', '.join(self._cell(column, table) for column in columns)})"

    def packed_all(self, packed: str, source: str) -> str:
        return f"SELECT json_group_array({packed}) FROM {source}"

    def filled(self, table: str, columns: tuple[str, ...]) -> str:
        names = ", ".join(columns)
        nothing = ", ".join("NULL" for _ in columns)
        cells = ", ".join(f"r.{name}" for name in columns)
        size = " + ".join(f"length(CAST(r.{name} AS BLOB))" for name in columns)
        return f"""
            WITH RECURSIVE page(at, size, {names}) AS (
                SELECT -1, 0, {nothing}
                UNION ALL
                SELECT page.at + 1, page.size + {size}, {cells} FROM page CROSS JOIN {table} AS r
                WHERE page.size < :most
                    AND r.id = json_extract(:ids, '$[' || (page.at + 1) || ']')
            )
            SELECT {names} FROM page WHERE at >= 0
        """

    def _cell(self, column: Column, table: str) -> str:
        name = f"{table}.{quoted(column.name)}"
        if column.sort == "bool":
            return f"json(iif({name}, 'true', 'false'))"
        return f"json({name})" if column.sort == "json" else name


def quoted(name: str) -> str:
    return f'"{name}"'
