"""The few ways in which the databases differ. Everything else is one SQL text for both.

Many small statements contend for the interpreter lock, so a batch is one statement per table
and a result is one row of JSON. Narrow rows travel as one JSON parameter; the wide rows of
promises are bound cell by cell, up to `WIDE` rows a statement, since taking JSON apart again
costs more than binding.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from layby.store.page_bounds import LIGHT
from layby.store.session import Session
from layby.store.sqlite_session import SqliteSession
from layby.store.tables import Column

MOST_REFUSALS: Final = 1_000
"""How many different refusals in a group are looked at."""


class Dialect(Protocol):
    name: str
    """Migrations may have statements for this dialect only."""

    @property
    def begin_migrating(self) -> tuple[str, ...]:
        """Begins a transaction in which migrations are applied."""
        ...

    @property
    def stop_others(self) -> tuple[str, ...]:
        """Waits until nobody else is within a transaction, and lets nobody begin one."""
        ...

    keyed: str
    """Clause for tables that consist only of their key."""
    in_views: Mapping[str, str]
    """What stands in views for marks of that name: to read a text as JSON, and a task's tries."""
    text: str
    """The type of texts: compared by their bytes."""
    any_text: str
    """A FROM item `i` with a column `value`: the texts in one parameter."""

    weights: str
    """Those of the given promises that are heavy, with the bytes of their param and value."""
    is_heavy: str
    """A condition on a row of promises: its large texts are to be fetched by themselves. Empty if
    they travel as well in its row.
    """
    front: str
    """The oldest ready nodes without a priority and roots of a group, each up to a limit; whether
    there are tasks that some code has refused, and whether there are nodes with a priority.
    """
    by_name: str
    """The same for each of some names."""
    prior: str
    """The oldest ready nodes of a group with each priority that there is."""
    prior_by_name: str
    """The oldest ready nodes with each of some priorities and names."""
    refusals: str
    """The different refusals of the ready tasks of a group."""
    refused: str
    """The oldest ready tasks of a group with each of some refusals."""
    lanes: str
    """Of each of some limits and each name of tasks that wait for it: the first ones."""

    def among(self, column: str) -> str:
        """A condition: it is one of the texts in one parameter. Rows are looked up by it."""
        ...

    def is_among(self, column: str) -> str:
        """The same, to be asked of many rows that are looked up by something else."""
        ...

    def rows(self, names: Sequence[str]) -> str:
        """A FROM item `r` with these columns, read from one parameter."""
        ...

    def session(self, connection: Any) -> Session:
        """What talks through a connection."""
        ...

    def insert_wide(self, names: Sequence[str], count: int) -> str:
        """Adds `count` promises with these columns."""
        ...

    def values(self, names: Sequence[str], count: int) -> str:
        """A FROM item `r` with these columns of `count` promises."""
        ...

    def packed(self, columns: Sequence[Column], table: str) -> str:
        """What a result needs of one row."""
        ...

    def pair(self, promise: str, task: str) -> str:
        """What a result needs of a promise and its task; both are packed."""
        ...

    def cells(self, *cells: str) -> str:
        """What a result needs of a row with these cells."""
        ...

    def all_of(self, packed: str, source: str) -> str:
        """A query for all rows of `source`."""
        ...

    def page_of(self, packed: str, source: str) -> str:
        """A query for the first rows of `source`; the last parameter says how many."""
        ...

    def filled(self, table: str, columns: tuple[str, ...]) -> str:
        """These texts of the rows with the `ids`, in that order; not as JSON: they may be large.

        It ends with the row that brings their bytes to `most`, and loads none after it; rows of
        promises that are light need not be counted.
        """
        ...


LIVING = """
    task_state = 'pending' AND task_group = :group
        AND task_ready_at <= :now AND timeout_at > :since
        AND (:prefix = '' OR substr(id, 1, length(:prefix)) = :prefix)
"""
READY = f"""
    {LIVING} AND task_kind = '{{kind}}' AND task_refused IS NULL AND task_priority = 0
"""
"""What takes may be handed, whatever its name (see `core.queue.is_for`); without a priority."""
PRIOR = f"""
    {LIVING} AND task_refused IS NULL AND task_priority <> 0
"""
"""The same, with a priority. Those are nodes: roots have none."""
HAS_PRIOR = """
    task_state = 'pending' AND task_group = :group AND task_refused IS NULL AND task_priority <> 0
"""
PRIORITIES = f"""
    RECURSIVE found(priority) AS (
        SELECT (SELECT min(task_priority) FROM promises WHERE {HAS_PRIOR})
        UNION ALL
        SELECT (SELECT min(task_priority) FROM promises
            WHERE {HAS_PRIOR} AND task_priority > found.priority)
        FROM found WHERE found.priority IS NOT NULL
    )
"""
"""From one to the next by the index, however many tasks have each; and NULL at the end."""
REFUSED = "task_state = 'pending' AND task_group = :group AND task_refused IS NOT NULL"
DIFFERENT_REFUSALS = f"""
    WITH RECURSIVE found(refused) AS (
        SELECT (SELECT min(task_refused) FROM promises WHERE {REFUSED})
        UNION ALL
        SELECT (SELECT min(task_refused) FROM promises
            WHERE {REFUSED} AND task_refused > found.refused)
        FROM found WHERE found.refused IS NOT NULL
    )
    SELECT refused FROM found WHERE refused IS NOT NULL LIMIT {MOST_REFUSALS}
"""
"""From one to the next by the index, however many tasks have each."""


LANES: Final = """
    WITH RECURSIVE gated(gate, crew) AS (
        SELECT g.value, (SELECT min(task_group) FROM promises WHERE task_gate = g.value)
        FROM {gates}
        UNION ALL
        SELECT gate, (SELECT min(task_group) FROM promises
            WHERE task_gate = gate AND task_group > crew)
        FROM gated WHERE crew IS NOT NULL
    ), lanes(gate, crew, name) AS (
        SELECT gate, crew, (SELECT min(task_name) FROM promises
            WHERE task_gate = gate AND task_group = crew)
        FROM gated WHERE crew IS NOT NULL
        UNION ALL
        SELECT gate, crew, (SELECT min(task_name) FROM promises
            WHERE task_gate = gate AND task_group = crew AND task_name > name)
        FROM lanes WHERE name IS NOT NULL
    )
"""
"""From one group, and one name in it, to the next by the index, however many tasks have each."""
IN_LANE: Final = "task_gate = lanes.gate AND task_group = lanes.crew AND task_name = lanes.name"


def _json_front(kind: str, look: str) -> str:
    """The oldest ready tasks of a group, whatever their names."""
    return f"""
        SELECT json_group_array(json_array(task_ready_at, id, task_name)) FROM (
            SELECT task_ready_at, id, task_name FROM promises WHERE {READY.format(kind=kind)}
            ORDER BY task_ready_at, id LIMIT {look})
    """


def _json_by_name(kind: str, limit: str) -> str:
    """The oldest ready tasks of each name."""
    return f"""
        SELECT json_group_array(json_array(q.task_ready_at, q.id, q.task_name))
        FROM json_each(:names) AS n JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises WHERE task_name = n.value AND {READY.format(kind=kind)}
            ORDER BY task_ready_at, id LIMIT {limit})
    """


def _weight(row: str) -> str:
    """As the index has it that knows what is heavy: SQLite does not look at the rows then."""
    return f"length(CAST({row}.param AS BLOB)) + length(CAST({row}.value AS BLOB))"


_HEAVY: Final = f"promises AS h INDEXED BY promises_heavy WHERE {_weight('h')} > {LIGHT}"
_HEAVY_SIZE: Final = f"SELECT {_weight('h')} FROM {_HEAVY} AND h.id = i.value"
_ANY: Final = f"EXISTS (SELECT 1 FROM json_each(:ids) AS j CROSS JOIN {_HEAVY} AND h.id = j.value)"
"""Whether any of the promises is heavy: hardly ever, and then none has to be counted."""

IN_PIECES: Final = 2**18
"""A promise that weighs more has its texts read in pieces."""


def _all_texts(cells: str) -> str:
    """Of promises of which none is heavy."""
    return f"""
        SELECT {cells} FROM json_each(:ids) AS i CROSS JOIN promises AS r
        WHERE NOT {_ANY} AND r.id = i.value
    """


def _first_texts(cells: str, table: str, size: str, where: str = "true") -> str:
    """Of the first rows, up to the one that brings their sizes to the bound."""
    return f"""
        SELECT {cells} FROM (
            SELECT id, size, sum(size) OVER (ORDER BY at) - size AS before FROM (
                SELECT key AS at, value AS id, COALESCE(({size}), 0) AS size
                FROM json_each(:ids) AS i WHERE {where})
        ) AS wanted CROSS JOIN {table} AS r WHERE r.id = wanted.id AND before < :most
    """


class SqliteDialect:
    name = "sqlite"
    begin_migrating = ("BEGIN IMMEDIATE",)
    stop_others = ()  # the file is ours alone
    keyed = "WITHOUT ROWID"
    in_views: Mapping[str, str] = {
        "/*json*/": "",
        "/*tries*/": "json_each(promises.task_history, '$.tries') AS told",
    }
    text = "TEXT"
    any_text = "(SELECT value FROM json_each(?)) AS i"
    weights = f"""
        SELECT json_group_array(json_array(h.id, {_weight("h")}))
        FROM {_HEAVY} AND h.id IN (SELECT value FROM json_each(?))
    """
    is_heavy = f"EXISTS (SELECT 1 FROM {_HEAVY} AND h.id = promises.id)"
    front = f"""
        SELECT ({_json_front("node", ":nodes")}), ({_json_front("root", ":roots")}),
            EXISTS (SELECT 1 FROM promises WHERE {REFUSED}),
            EXISTS (SELECT 1 FROM promises WHERE {HAS_PRIOR})
    """
    by_name = f"SELECT ({_json_by_name('node', ':nodes')}), ({_json_by_name('root', ':roots')})"

    prior = f"""
        WITH {PRIORITIES}
        SELECT json_group_array(json_array(q.task_priority, q.task_ready_at, q.id, q.task_name))
        FROM found CROSS JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises WHERE {PRIOR} AND task_priority = found.priority
            ORDER BY task_ready_at, id LIMIT :most)
    """
    prior_by_name = f"""
        SELECT json_group_array(json_array(q.task_priority, q.task_ready_at, q.id, q.task_name))
        FROM json_each(:priorities) AS p CROSS JOIN json_each(:names) AS n
        CROSS JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises
            WHERE {PRIOR} AND task_priority = p.value AND task_name = n.value
            ORDER BY task_ready_at, id LIMIT :most)
    """
    refusals = f"SELECT json_group_array(refused) FROM ({DIFFERENT_REFUSALS})"
    refused = f"""
        SELECT json_group_array(json_array(q.task_priority, q.task_ready_at, q.id, q.task_name))
        FROM json_each(:refusals) AS n JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises WHERE {LIVING} AND task_refused = n.value
            ORDER BY task_ready_at, id LIMIT :most)
    """

    lanes = f"""
        {LANES.format(gates="json_each(:gates) AS g")}
        SELECT json_group_array(json_array(
            q.task_gate, q.task_group, q.task_name, q.task_gate_at, q.id))
        FROM lanes JOIN promises AS q ON q.rowid IN (
            SELECT rowid FROM promises
            WHERE {IN_LANE}
            ORDER BY task_gate_at, id LIMIT :most)
        WHERE lanes.name IS NOT NULL
    """

    def session(self, connection: sqlite3.Connection) -> Session:
        return SqliteSession(connection)

    def among(self, column: str) -> str:
        return f"{column} IN (SELECT value FROM json_each(?))"

    def is_among(self, column: str) -> str:
        return self.among(column)

    def rows(self, names: Sequence[str]) -> str:
        cells = ", ".join(
            f"json_extract(value, '$[{index}]') AS {quoted(name)}"
            for index, name in enumerate(names)
        )
        return f"(SELECT {cells} FROM json_each(?)) AS r"

    def insert_wide(self, names: Sequence[str], count: int) -> str:
        columns = ", ".join(quoted(name) for name in names)
        row = f"({', '.join('?' for _ in names)})"
        return f"INSERT INTO promises ({columns}) VALUES {', '.join([row] * count)}"

    def values(self, names: Sequence[str], count: int) -> str:
        cells = ", ".join(f"column{at} AS {quoted(name)}" for at, name in enumerate(names, 1))
        row = f"({', '.join('?' for _ in names)})"
        return f"(SELECT {cells} FROM (VALUES {', '.join([row] * count)})) AS r"

    def packed(self, columns: Sequence[Column], table: str) -> str:
        return f"json_array({', '.join(self._cell(column, table) for column in columns)})"

    def pair(self, promise: str, task: str) -> str:
        return (
            f"json_array({promise}, json(CASE WHEN task_state IS NULL THEN NULL ELSE {task} END))"
        )

    def cells(self, *cells: str) -> str:
        return f"json_array({', '.join(cells)})"

    def all_of(self, packed: str, source: str) -> str:
        return f"SELECT json_group_array({packed}) FROM {source}"

    def page_of(self, packed: str, source: str) -> str:
        page = f"SELECT {packed} AS packed FROM {source} LIMIT ?"
        return f"SELECT json_group_array(json(packed)) FROM ({page})"

    def filled(self, table: str, columns: tuple[str, ...]) -> str:
        """Sizes are added up first, without the texts, so that each text is read once.

        For a large promise it finds where the texts are (see `SqliteSession.texts_of`).
        """
        cells = ", ".join(f"r.{name}" for name in columns)
        if table == "promises":
            is_large = f"wanted.size > {IN_PIECES}"
            where = (f"CASE WHEN {is_large} THEN r.rowid ELSE r.{name} END" for name in columns)
            first = _first_texts(", ".join(where), table, _HEAVY_SIZE, _ANY)
            return f"{_all_texts(cells)} UNION ALL {first}"
        size = " + ".join(f"length(CAST(s.{name} AS BLOB))" for name in columns)
        return _first_texts(cells, table, f"SELECT {size} FROM {table} AS s WHERE s.id = i.value")

    def _cell(self, column: Column, table: str) -> str:
        name = f"{table}.{quoted(column.name)}"
        if column.sort == "bool":
            return f"json(iif({name}, 'true', 'false'))"
        return f"json({name})" if column.sort == "json" else name


def quoted(name: str) -> str:
    return f'"{name}"'
