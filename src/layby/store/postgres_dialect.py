"""What PostgreSQL is asked in other words than SQLite.

Measured: rows are written quickest as one JSON parameter of objects, and read quickest as columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from layby.core.model import EMPTY
from layby.store.dialect import (
    DIFFERENT_REFUSALS,
    HAS_PRIOR,
    IN_LANE,
    LANES,
    LIVING,
    PRIOR,
    PRIORITIES,
    READY,
    REFUSED,
    quoted,
)
from layby.store.page_bounds import LIGHT
from layby.store.postgres_session import PostgresSession
from layby.store.tables import SORTS, Column

SCHEMA: Final = "layby"
"""Our tables are in a schema of their own, whatever else is in the database."""
_QUEUED_MS: Final = 500
"""How long a migration stands in line for a table. Nobody can pass it meanwhile, so that is shorter
than writers wait for a lock (`lock_timeout` in `postgres_connection`).
"""

_TYPES: Final = {"text": "text", "json": "text", "whole": "bigint", "bool": "boolean"}
_QUEUED: Final = "task_ready_at, id, task_name"
_QUEUED_TURN: Final = f"task_priority, {_QUEUED}"
_NAMES: Final = "ARRAY(SELECT json_array_elements_text(CAST(:names AS json)))"


def _front(number: int, kind: str) -> str:
    return f"""
        (SELECT {number} AS sort, {_QUEUED} FROM promises
            WHERE {READY.format(kind=kind)}
            ORDER BY task_ready_at, id LIMIT :{kind}s)
    """


def _by_name(number: int, kind: str) -> str:
    return f"""
        (SELECT {number} AS sort, q.*
            FROM json_array_elements_text(CAST(:names AS json)) AS n(value)
            CROSS JOIN LATERAL (
                SELECT {_QUEUED} FROM promises
                WHERE task_name = n.value AND {READY.format(kind=kind)}
                ORDER BY task_ready_at, id LIMIT :{kind}s) AS q)
    """


_WEIGHT: Final = "octet_length(promises.param) + octet_length(promises.value)"
"""Without reading them."""


class PostgresDialect:
    name = "postgres"
    begin_migrating = ("BEGIN", f"SET LOCAL lock_timeout = {_QUEUED_MS}")
    stop_others = ("LOCK TABLE layby_migrations IN ACCESS EXCLUSIVE MODE",)
    keyed = ""
    in_views: Mapping[str, str] = {
        "/*json*/": "::json",
        "/*tries*/": "LATERAL json_array_elements(promises.task_history::json -> 'tries')"
        " AS told(value)",
    }
    text = 'TEXT COLLATE "C"'
    weights = f"""
        SELECT id, {_WEIGHT} FROM promises
        WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(? AS json))))
            AND {_WEIGHT} > {LIGHT}
    """
    is_heavy = ""
    any_text = "json_array_elements_text(CAST(? AS json)) AS i(value)"
    front = f"""
        {_front(0, "node")} UNION ALL {_front(1, "root")} UNION ALL
        (SELECT 2, NULL, NULL, NULL WHERE EXISTS (SELECT 1 FROM promises WHERE {REFUSED}))
        UNION ALL
        (SELECT 3, NULL, NULL, NULL WHERE EXISTS (SELECT 1 FROM promises WHERE {HAS_PRIOR}))
    """
    by_name = f"{_by_name(0, 'node')} UNION ALL {_by_name(1, 'root')}"
    prior = f"""
        WITH {PRIORITIES}
        SELECT q.* FROM found CROSS JOIN LATERAL (
            SELECT {_QUEUED_TURN} FROM promises WHERE {PRIOR} AND task_priority = found.priority
            ORDER BY task_ready_at, id LIMIT :most) AS q
        WHERE found.priority IS NOT NULL
    """
    prior_by_name = f"""
        SELECT q.* FROM json_array_elements_text(CAST(:priorities AS json)) AS p(value)
        CROSS JOIN json_array_elements_text(CAST(:names AS json)) AS n(value)
        CROSS JOIN LATERAL (
            SELECT {_QUEUED_TURN} FROM promises
            WHERE {PRIOR} AND task_priority = CAST(p.value AS bigint) AND task_name = n.value
            ORDER BY task_ready_at, id LIMIT :most) AS q
    """
    refusals = DIFFERENT_REFUSALS
    refused = f"""
        SELECT q.* FROM json_array_elements_text(CAST(:refusals AS json)) AS n(value)
        CROSS JOIN LATERAL (
            SELECT {_QUEUED_TURN} FROM promises WHERE {LIVING} AND task_refused = n.value
            ORDER BY task_ready_at, id LIMIT :most) AS q
    """

    lanes = f"""
        {LANES.format(gates="json_array_elements_text(CAST(:gates AS json)) AS g(value)")}
        SELECT q.task_gate, q.task_group, q.task_name, q.task_gate_at, q.id FROM lanes
        CROSS JOIN LATERAL (
            SELECT task_gate, task_group, task_name, task_gate_at, id FROM promises
            WHERE {IN_LANE}
            ORDER BY task_gate_at, id LIMIT :most) AS q
        WHERE lanes.name IS NOT NULL
    """

    def session(self, connection: Any) -> PostgresSession:
        return PostgresSession(connection)

    def among(self, column: str) -> str:
        """As an array: so it is looked up by index, whatever the planner believes of the table."""
        return f"{column} = ANY (ARRAY(SELECT json_array_elements_text(CAST(? AS json))))"

    def is_among(self, column: str) -> str:
        """By a hash: PostgreSQL makes none of an array, unless it is a constant."""
        return f"{column} IN (SELECT json_array_elements_text(CAST(? AS json)))"

    def rows(self, names: Sequence[str]) -> str:
        """Objects whose keys are the numbers of the cells; what is NULL is left out."""
        cells = ", ".join(f"{_cell(at, name)} AS {quoted(name)}" for at, name in enumerate(names))
        types = ", ".join(f"c{at} {_TYPES[SORTS[name]]}" for at, name in enumerate(names))
        return f"(SELECT {cells} FROM json_to_recordset(CAST(? AS json)) AS j({types})) AS r"

    def insert_wide(self, names: Sequence[str], count: int) -> str:  # noqa: ARG002 - any number
        columns = ", ".join(quoted(name) for name in names)
        return f"INSERT INTO promises ({columns}) SELECT {columns} FROM {self.rows(names)}"

    def values(self, names: Sequence[str], count: int) -> str:  # noqa: ARG002 - any number
        return self.rows(names)

    def packed(self, columns: Sequence[Column], table: str) -> str:
        return ", ".join(_read(column, table) for column in columns)

    def pair(self, promise: str, task: str) -> str:
        return f"{promise}, {task}"

    def partly_valueless(self, pair: str) -> str:
        """The pair of a row; of some, without the value, and with a digest in place of the param if
        that has one of some lengths. Nothing is sent of what may have any size.
        """
        some = self.is_among("promises.id")
        param, value = f"promises.{quoted('param')}", f"promises.{quoted('value')}"
        lengths = "SELECT CAST(value AS integer) FROM json_array_elements_text(CAST(? AS json))"
        digest = f"encode(sha256(convert_to({param}, 'UTF8')), 'hex')"
        compared = f"CASE WHEN octet_length({param}) IN ({lengths}) THEN {digest} ELSE '' END"
        pair = pair.replace(param, f"CASE WHEN {some} THEN {compared} ELSE {param} END")
        return pair.replace(value, f"CASE WHEN {some} THEN '{EMPTY}' ELSE {value} END")

    def cells(self, *cells: str) -> str:
        return ", ".join(cells)

    def all_of(self, packed: str, source: str) -> str:
        return f"SELECT {packed} FROM {source}"

    def page_of(self, packed: str, source: str) -> str:
        return f"SELECT {packed} FROM {source} LIMIT ?"

    def filled(self, table: str, columns: tuple[str, ...]) -> str:
        """`octet_length` does not fetch what is stored beside the row; only what is shown is."""
        names = ", ".join(columns)
        cells = ", ".join(f"r.{name}" for name in columns)
        size = " + ".join(f"octet_length(r.{name})" for name in columns)
        return f"""
            SELECT {names} FROM (
                SELECT i.at, {cells}, sum({size}) OVER (ORDER BY i.at) - ({size}) AS before
                FROM json_array_elements_text(CAST(:ids AS json)) WITH ORDINALITY AS i(value, at)
                JOIN {table} AS r ON r.id = i.value
            ) AS found
            WHERE before < :most ORDER BY at
        """

    def oldest_ready(self, kind: str, packed: str) -> str:
        """Lock the oldest ready tasks of some names that nobody else has locked.

        `kind`: those without a priority; or `prior`: nodes with one priority.
        """
        ready = READY.format(kind=kind)
        if kind == "prior":
            ready = f"{PRIOR} AND task_priority = :priority"
        return f"""
            SELECT {packed} FROM promises
            WHERE {ready} AND task_name = ANY ({_NAMES})
            ORDER BY task_ready_at, id LIMIT :most FOR UPDATE SKIP LOCKED
        """


def _cell(at: int, name: str) -> str:
    return f"CAST(j.c{at} AS integer)" if SORTS[name] == "bool" else f"j.c{at}"


def _read(column: Column, table: str) -> str:
    name = f"{table}.{quoted(column.name)}"
    return f"({name} <> 0)" if column.sort == "bool" else name
