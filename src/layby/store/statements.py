"""The SQL texts of the store, written once for every dialect."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from layby.core.birth import SCHEDULE
from layby.core.endings import OF_TREES, RUNS, STAGES, Stage
from layby.core.model import EMPTY, NEVER
from layby.store.dialect import Dialect, quoted
from layby.store.tables import (
    FLOWS,
    HOLDERS,
    LISTENERS,
    MESSAGES,
    PROMISE_MOVES,
    PROMISES,
    PRUNING,
    SCHEDULES,
    TASK_MOVES,
    TASKS,
    WAITS,
    Column,
    Table,
)

LAST = "\U0010ffff"
"""Sorts after every id that occurs."""


_FOREIGN: Final = f"""
    COALESCE(task_kind, '') <> 'root' AND expired_at IS NULL
        AND substr(id, 1, {len(RUNS)}) <> '{RUNS}'
"""
_COMPLETED: Final = "substr(state, 1, 3) = 'res'"
_FAILED: Final = "settled_at IS NOT NULL AND state <> 'resolved'"
STAGE_INDEXES: Final[dict[Stage, tuple[str, str, str, str]]] = {
    "completed": ("promises", "settled_at", "id", f"task_kind = 'root' AND {_COMPLETED}"),
    "failed": ("promises", "settled_at", "id", f"task_kind = 'root' AND {_FAILED}"),
    "foreign_completed": ("promises", "settled_at", "id", f"{_FOREIGN} AND {_COMPLETED}"),
    "foreign_failed": ("promises", "settled_at", "id", f"{_FOREIGN} AND {_FAILED}"),
    "placeholders": ("promises", "created_at", "id", "placeholder = 1 AND settled_at IS NULL"),
    "ids": ("promises", "expired_at", "id", "expired_at IS NOT NULL"),
    "holders": ("holders", "expires_at", "pid", "standing <> 'alive' AND held = 0"),
}
"""Table, time, id, and what its index holds: as `core.endings.stage_of` says."""


class Statements:
    """Each attribute is one statement, or makes one for a given number of rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        promise = dialect.packed(PROMISES.columns, "promises")
        self.pair = f"json_array({promise}, {self._task()})"
        self.lean_pair = without(self.pair, "promises", param=EMPTY, value=EMPTY)
        self.bare_pair = _without_texts_of_tasks(self.lean_pair)
        self._prepare_loads(dialect.any_of)
        self._prepare_writes(dialect.any_of)
        self._prepare_time()
        self._prepare_pruning(dialect.any_of)

    def _prepare_loads(self, any_of: str) -> None:
        """What a batch declares, and the few reads that are not by id."""
        self.load = self._load()
        self.pairs = self._all(self.pair, f"promises WHERE id IN {any_of}")
        self.lean_pairs = self._all(self.lean_pair, f"promises WHERE id IN {any_of}")
        self.filled = cache(self.dialect.filled)
        self.weights = f"""
            SELECT coalesce({self.dialect.size}(p.param) + {self.dialect.size}(p.value), 0)
            FROM {self.dialect.texts} LEFT JOIN promises AS p ON p.id = r.value
        """
        self.ids_of_branches = f"""
            SELECT json_group_array(json_array(branch, id)) FROM (
                SELECT branch, id FROM promises
                WHERE branch IN {any_of}
                    OR branch IN (SELECT branch FROM promises WHERE id IN {any_of})
                ORDER BY id LIMIT ?)
        """
        self.leased = f"""
            SELECT json_group_array(json_array(task_pid, id)) FROM promises
            WHERE task_ttl IS NOT NULL AND task_holder IS NULL AND task_pid IN {any_of}
        """
        self.holders = self._select(HOLDERS, f"pid IN {any_of}")
        self.notices = self._select(MESSAGES, f"kind = 'lost' AND address IN {any_of}")
        pairs = f"SELECT awaited, awaiter FROM {self.dialect.rows(('awaited', 'awaiter'))}"
        self.standing_waits = self._select(WAITS, f"(awaited, awaiter) IN ({pairs})")
        self.schedules = self._select(SCHEDULES, f"id IN {any_of}")
        self.open_runs = f"""
            SELECT json_group_array(id) FROM (
                SELECT id FROM promises
                WHERE state = 'pending' AND id >= ? AND id < ?
                    AND EXISTS (SELECT 1 FROM tags AS t
                        WHERE t.key = '{SCHEDULE}' AND t.value = ? AND t.id = promises.id)
                ORDER BY id DESC LIMIT ?)
        """
        self.flow = self._select(FLOWS, '"group" = ? AND name = ?')
        self.flow_names = """
            SELECT json_group_array(name) FROM (
                SELECT name FROM flows WHERE "group" = ? ORDER BY name LIMIT ?)
        """
        self.flow_groups = """
            SELECT json_group_array("group") FROM (
                SELECT "group" FROM flows WHERE name = ? ORDER BY "group" LIMIT ?)
        """
        self.living_pids = "SELECT json_group_array(pid) FROM holders WHERE standing = 'alive'"
        self.outbox = self._all(
            self.dialect.packed(MESSAGES.columns, "m"),
            """(SELECT * FROM messages
                WHERE (address, id, kind) > (?, ?, ?) AND address < ?
                ORDER BY address, id, kind LIMIT ?) AS m""",
        )

    def _prepare_writes(self, any_of: str) -> None:
        """What a batch changes: always in this order."""
        tasked = (*PROMISES.names, *TASKS.names[1:])
        self.insert_promises = cache(partial(self._insert_wide, PROMISES.names))
        self.insert_tasks = cache(partial(self._insert_wide, tasked))
        self.move_promises = cache(partial(self._move, PROMISE_MOVES))
        self.move_tasks = cache(partial(self._move, TASK_MOVES))
        self.delete_promises = f"DELETE FROM promises WHERE id IN {any_of}"
        self.insert_tags = (
            self._insert("tags", ("key", "value", "id")) + " WHERE true ON CONFLICT DO NOTHING"
        )
        self.put_waits = self._upsert(WAITS)
        self.drop_waits = self._drop("waits", ("awaited", "awaiter"))
        self.forget_waits = f"DELETE FROM waits WHERE awaiter IN {any_of}"
        self.put_listeners = self._upsert(LISTENERS)
        self.drop_listeners = f"DELETE FROM listeners WHERE awaited IN {any_of}"
        self.silence_listeners = f"DELETE FROM listeners WHERE address IN {any_of}"
        self.silence_messages = f"DELETE FROM messages WHERE address IN {any_of}"
        self.put_messages = self._upsert(MESSAGES)
        self.drop_messages = self._drop("messages", MESSAGES.key)
        self.put_holders = self._upsert(HOLDERS, but="held")
        self.count_held = f"""
            UPDATE holders SET held = held + r.delta
            FROM {self.dialect.rows(("pid", "incarnation", "delta"))}
            WHERE holders.pid = r.pid AND holders.incarnation = r.incarnation
        """
        self.put_flows = self._upsert(FLOWS)
        self.put_schedules = self._upsert(SCHEDULES)
        self.drop_schedules = f"DELETE FROM schedules WHERE id IN {any_of}"

    def _prepare_time(self) -> None:
        """What is due, in the order a tick handles it, and when to look next."""
        self.due_promises = self._ids(
            f"settled_at IS NULL AND internal = 0 AND timeout_at < {NEVER} AND timeout_at <= ?",
            "timeout_at",
        )
        self.due_tasks = f"""
            SELECT json_group_array(json_array(task_state, id)) FROM (
                SELECT task_state, id FROM promises
                WHERE task_wake_at < {NEVER} AND task_wake_at <= ?
                ORDER BY task_wake_at LIMIT ?)
        """
        tail = "tail_at IS NOT NULL AND tail_at <= ?"
        self.due_tails = self._ids(f"{tail} AND expired_at IS NULL", "tail_at")
        self.due_remains = self._ids(f"{tail} AND expired_at IS NOT NULL", "tail_at")
        self.due_holders = """
            SELECT json_group_array(pid) FROM (
                SELECT pid FROM holders WHERE standing = 'alive' AND expires_at <= ?
                ORDER BY expires_at LIMIT ?)
        """
        self.due_schedules = self._all(
            self.dialect.packed(SCHEDULES.columns, "s"),
            """(SELECT * FROM schedules WHERE next_run_at <= ?
                ORDER BY next_run_at, id LIMIT ?) AS s""",
        )
        self.gone_holders = self._select(HOLDERS, "standing <> 'alive' AND held > 0")
        self.nodes_of = """
            SELECT json_group_array(awaited) FROM (
                SELECT awaited FROM waits WHERE awaiter = ? AND mode <> 'any'
                ORDER BY awaited LIMIT ?)
        """
        self.held_ids = self._ids("task_holder = ? AND task_pid = ?", "id")
        self.earliest = f"""
            SELECT
                (SELECT min(timeout_at) FROM promises
                    WHERE settled_at IS NULL AND internal = 0 AND timeout_at < {NEVER}),
                (SELECT min(task_wake_at) FROM promises WHERE task_wake_at < {NEVER}),
                (SELECT min(tail_at) FROM promises WHERE tail_at IS NOT NULL),
                (SELECT min(expires_at) FROM holders WHERE standing = 'alive'),
                (SELECT 0 FROM holders WHERE standing <> 'alive' AND held > 0 LIMIT 1)
        """
        self.next_occurrence = "SELECT min(next_run_at) FROM schedules"
        self.store_time = "SELECT at FROM store_time"
        self.put_store_time = "UPDATE store_time SET at = ? WHERE at < ?"

    def next_rows(self, table: Table, packed: str = "") -> str:
        """The first rows after a key, by key, up to a limit."""
        key = ", ".join(map(quoted, table.key))
        after = f"({key}) > ({', '.join('?' * len(table.key))}) ORDER BY {key} LIMIT ?"
        packed = packed or self.dialect.packed(table.columns, table.name)
        return self._all(packed, f"(SELECT * FROM {table.name} WHERE {after}) AS {table.name}")

    def _prepare_pruning(self, any_of: str) -> None:
        """What a pass finds in each of its stages, and what must be known of it."""
        self.bare_pairs = self._all(self.bare_pair, f"promises WHERE id IN {any_of}")
        self.awaited_ids = f"""
            SELECT json_group_array(id) FROM (
                SELECT awaited AS id FROM waits WHERE awaited IN {any_of}
                UNION SELECT awaited FROM listeners WHERE awaited IN {any_of}
                UNION SELECT id FROM messages WHERE id IN {any_of} AND kind <> 'lost')
        """
        self.ids_below = f"""
            SELECT json_group_array(json_array(r, id)) FROM (
                SELECT i.value AS r, p.id FROM {any_of} AS i JOIN promises AS p
                    ON p.root = i.value AND p.root <> p.id AND p.id > ?
                    AND p.id <= COALESCE(
                        (SELECT x.id FROM promises AS x
                            WHERE x.root = i.value AND x.root <> x.id AND x.id > ?
                            ORDER BY x.id LIMIT 1 OFFSET ?), '{LAST}'))
        """
        self.stages_after = {stage: self._stage(stage, ">") for stage in STAGES}
        self.stages_from = {stage: self._stage(stage, ">=") for stage in OF_TREES}
        self.pruning = self._select(PRUNING, "id = ?")
        self.put_pruning = self._upsert(PRUNING)
        self.drop_tags = self._drop("tags", ("key", "value", "id"))
        self.drop_holders = self._drop("holders", HOLDERS.key)

    def _stage(self, stage: Stage, follows: str) -> str:
        """The next keys of an index by time."""
        table, at, name, where = STAGE_INDEXES[stage]
        return f"""
            SELECT json_group_array(json_array(at, name)) FROM (
                SELECT {at} AS at, {name} AS name FROM {table}
                WHERE {where} AND ({at}, {name}) {follows} (?, ?) AND {at} <= ?
                ORDER BY {at}, {name} LIMIT ?)
        """

    def _task(self) -> str:
        packed = self.dialect.packed(TASKS.columns, "promises")
        return f"json(CASE WHEN task_state IS NULL THEN NULL ELSE {packed} END)"

    def _load(self) -> str:
        """Promises with tasks, their waits (a few more than one step handles) and listeners."""
        any_of = self.dialect.any_of
        waits = f"""
            (SELECT w.* FROM {any_of} AS i JOIN waits AS w ON w.awaited = i.value
                AND w.awaiter <= COALESCE(
                    (SELECT x.awaiter FROM waits AS x WHERE x.awaited = i.value
                        ORDER BY x.awaiter LIMIT 1 OFFSET ?), '{LAST}')
            ) AS w
        """
        return f"""
            SELECT
                ({self._all(self.pair, f"promises WHERE id IN {any_of}")}),
                ({self._all(self.dialect.packed(WAITS.columns, "w"), waits)}),
                ({self._select(LISTENERS, f"awaited IN {any_of}")})
        """

    def _all(self, packed: str, source: str) -> str:
        return self.dialect.packed_all(packed, source)

    def _select(self, table: Table, where: str) -> str:
        packed = self.dialect.packed(table.columns, table.name)
        return self._all(packed, f"{table.name} WHERE {where}")

    def _ids(self, where: str, order: str) -> str:
        return f"""
            SELECT json_group_array(id) FROM (
                SELECT id FROM promises WHERE {where} ORDER BY {order} LIMIT ?)
        """

    def _insert(self, table: str, names: Sequence[str]) -> str:
        columns = ", ".join(quoted(name) for name in names)
        return f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {self.dialect.rows(names)}"

    def _insert_wide(self, names: Sequence[str], count: int) -> str:
        columns = ", ".join(quoted(name) for name in names)
        row = f"({', '.join('?' for _ in names)})"
        return f"INSERT INTO promises ({columns}) VALUES {', '.join([row] * count)}"

    def _upsert(self, table: Table, but: str = "") -> str:
        """Insert or replace by key; the column `but` keeps what is stored (0 for a new row)."""
        cells = ", ".join("0" if name == but else quoted(name) for name in table.names)
        columns = ", ".join(quoted(name) for name in table.names)
        changing = [n for n in table.names if n not in table.key and n != but]
        then = f"UPDATE SET {_excluded(changing)}" if changing else "NOTHING"
        return f"""
            INSERT INTO {table.name} ({columns})
            SELECT {cells} FROM {self.dialect.rows(table.names)} WHERE true
            ON CONFLICT ({", ".join(map(quoted, table.key))}) DO {then}
        """

    def _move(self, columns: Sequence[Column], count: int) -> str:
        names = ["id", *(column.name for column in columns)]
        sets = ", ".join(f"{name} = r.{name}" for name in names[1:])
        source = self.dialect.values(names, count)
        return f"UPDATE promises SET {sets} FROM {source} WHERE promises.id = r.id"

    def _drop(self, table: str, key: Sequence[str]) -> str:
        names = ", ".join(key)
        return (
            f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM {self.dialect.rows(key)})"
        )


def without(packed: str, table: str, **instead: str) -> str:
    """The same expression, with constants in place of these columns."""
    for column, constant in instead.items():
        packed = packed.replace(f"{table}.{quoted(column)}", f"'{constant}'")
    return packed


def _without_texts_of_tasks(pair: str) -> str:
    """The same expression without what tasks have said: errors, progress and history."""
    for column in ("task_error", "task_progress", "task_history"):
        pair = pair.replace(f"promises.{quoted(column)}", "NULL")
    return pair


def _excluded(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names)
