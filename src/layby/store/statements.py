"""The SQL texts of the store, written once for every dialect."""

from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec

from layby.core.endings import OF_TREES, RUNS, STAGES, Stage
from layby.core.limit import ANY, PRIVATE
from layby.core.model import EMPTY, NEVER
from layby.core.rows import MOST_LISTENERS
from layby.core.tag_names import SCHEDULE
from layby.store.bulk import Bulk, Wide
from layby.store.dialect import Dialect, quoted
from layby.store.tables import (
    FLOWS,
    HOLDERS,
    LEASED_MESSAGES,
    LIMITS,
    LISTENERS,
    MESSAGES,
    PROMISE_MOVES,
    PROMISES,
    PRUNING,
    SCHEDULES,
    TASK_MOVES,
    TASKS,
    WAITS,
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


def naming(limit: str) -> str:
    """For LIKE: texts of names with that of this limit among them, or of one under this pattern."""
    encoded = msgspec.json.encode(limit).decode()
    if limit.endswith(ANY):
        encoded = encoded.removesuffix(f'{ANY}"')
    escaped = encoded.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


class Statements:
    """Each attribute is one statement, or makes one for a given number of rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.pair = dialect.pair(
            dialect.packed(PROMISES.columns, "promises"), dialect.packed(TASKS.columns, "promises")
        )
        self.lean_pair = without(self.pair, "promises", param=EMPTY, value=EMPTY)
        self.bare_pair = _without_texts_of_tasks(self.lean_pair)
        self._prepare_loads()
        self._prepare_lists()
        self._prepare_writes()
        self._prepare_ticks()
        self._prepare_time()
        self._prepare_pruning()
        self._prepare_limits()

    def _prepare_loads(self) -> None:
        """What a batch declares."""
        among, cells = self.dialect.among, self.dialect.cells
        self.pairs = self._all(
            self._without_large_texts(self.pair), f"promises WHERE {among('id')}"
        )
        valueless = without(self.pair, "promises", value=EMPTY)
        self.valueless_pairs = self._all(
            self._without_large_texts(valueless), f"promises WHERE {among('id')}"
        )
        self.created = self._all(
            "id", f"promises WHERE {among('id')} AND (placeholder = 0 OR settled_at IS NOT NULL)"
        )
        self.lean_pairs = self._all(self.lean_pair, f"promises WHERE {among('id')}")
        self.filled = cache(self.dialect.filled)
        self.waits = self._waits_on()
        self.listeners = self._listeners_on()
        self.ids_of_branches = self._all(
            cells("branch", "id"),
            f"""(SELECT branch, id FROM promises
                WHERE {among("branch")}
                    OR branch IN (SELECT branch FROM promises WHERE {among("id")})
                ORDER BY id LIMIT ?) AS found""",
        )
        self.leased = self._all(
            cells("task_pid", "id"),
            f"""promises
            WHERE task_ttl IS NOT NULL AND task_holder IS NULL AND {among("task_pid")}""",
        )
        self.leased_after = self._all(
            cells("task_pid", "id"),
            """(SELECT task_pid, id FROM promises
                WHERE task_ttl IS NOT NULL AND task_holder IS NULL AND task_pid = ? AND id > ?
                ORDER BY id LIMIT ?) AS found""",
        )
        self.holders = self._select(HOLDERS, among("pid"))
        self.notices = self._select(MESSAGES, f"kind = 'lost' AND {among('address')}")
        pairs = f"SELECT awaited, awaiter FROM {self.dialect.rows(('awaited', 'awaiter'))}"
        self.standing_waits = Bulk(
            self._select(WAITS, f"(awaited, awaiter) IN ({pairs})"), ("awaited", "awaiter")
        )
        self.schedules = self._select(SCHEDULES, among("id"))
        self.open_runs = self._all(
            "id",
            f"""(SELECT id FROM promises
                WHERE state = 'pending' AND id >= ? AND id < ?
                    AND EXISTS (SELECT 1 FROM tags AS t
                        WHERE t.key = '{SCHEDULE}' AND t.value = ? AND t.id = promises.id)
                ORDER BY id DESC LIMIT ?) AS found""",
        )

    def _prepare_lists(self) -> None:
        """The few reads that are not by id."""
        self.item_states = self._all(
            self.dialect.cells("state", "task_state", "task_sub_status", "found"),
            """(SELECT state, task_state, task_sub_status, count(*) AS found FROM promises
                WHERE id > ? AND id < ? AND task_kind = 'node'
                    AND substr(id, CAST(? AS integer)) NOT LIKE ?
                GROUP BY state, task_state, task_sub_status) AS counted""",
        )
        self.flow = self._select(FLOWS, '"group" = ? AND name = ?')
        self.flow_names = self._all(
            "name", '(SELECT name FROM flows WHERE "group" = ? ORDER BY name LIMIT ?) AS f'
        )
        self.flow_groups = self._all(
            '"group"', '(SELECT "group" FROM flows WHERE name = ? ORDER BY "group" LIMIT ?) AS f'
        )
        self.living_pids = self._all("pid", "holders WHERE standing = 'alive'")
        self.outbox = self._all(
            self.dialect.packed(MESSAGES.columns, "m"),
            """(SELECT * FROM messages
                WHERE (address, id, kind) > (?, ?, ?) AND address < ?
                ORDER BY address, id, kind LIMIT ?) AS m""",
        )

    def _prepare_writes(self) -> None:
        """What a batch changes: always in this order."""
        among = self.dialect.among
        tasked = (*PROMISES.names, *TASKS.names[1:])
        self.insert_promises = Wide(tasked, self.dialect.insert_wide)
        self.adopt_promises = Wide(tasked, self._move)
        self.move_promises = Wide(("id", *(each.name for each in PROMISE_MOVES)), self._move)
        self.date_promises = Wide(("id", "timeout_at"), self._move)
        self.move_tasks = Wide(("id", *(each.name for each in TASK_MOVES)), self._move)
        self.insert_tags = self._insert("tags", ("key", "value", "id"))
        self.put_waits = self._upsert(WAITS)
        self.drop_waits = self._drop("waits", ("awaited", "awaiter"))
        self.forget_waits = Bulk(f"DELETE FROM waits WHERE {among('awaiter')}")
        self.put_listeners = self._upsert(LISTENERS)
        self.drop_listeners = self._drop("listeners", LISTENERS.key)
        self.silence_listeners = Bulk(f"DELETE FROM listeners WHERE {among('address')}")
        self.silence_messages = Bulk(f"DELETE FROM messages WHERE {among('address')}")
        self.put_messages = self._upsert(MESSAGES)
        self.put_leased = self._upsert(LEASED_MESSAGES)
        self.drop_messages = self._drop("messages", MESSAGES.key)
        self.drop_delivered = self._drop("messages", MESSAGES.names)
        self.put_holders = self._upsert(HOLDERS, but="held")
        deltas = ("pid", "incarnation", "delta")
        self.count_held = Bulk(
            f"""
            UPDATE holders SET held = held + r.delta
            FROM {self.dialect.rows(deltas)}
            WHERE holders.pid = r.pid AND holders.incarnation = r.incarnation
            """,
            deltas,
        )
        self.insert_holders = self._add(HOLDERS, but="held")
        self.put_flows = self._upsert(FLOWS)
        self.put_schedules = self._upsert(SCHEDULES)
        self.insert_schedules = self._add(SCHEDULES)
        self.drop_schedules = Bulk(f"DELETE FROM schedules WHERE {among('id')}")

    def _prepare_ticks(self) -> None:
        """What is due, in the order a tick handles it."""
        self.due_promises = self._ids(
            f"settled_at IS NULL AND internal = 0 AND timeout_at < {NEVER} AND timeout_at <= ?",
            "timeout_at, id",
        )
        self.due_tasks = self._all(
            self.dialect.cells("task_state", "id"),
            f"""(SELECT task_state, id FROM promises
                WHERE task_wake_at < {NEVER} AND task_wake_at <= ?
                ORDER BY task_wake_at LIMIT ?) AS due""",
        )
        tail = "tail_at IS NOT NULL AND tail_at <= ?"
        self.due_tails = self._ids(f"{tail} AND expired_at IS NULL", "tail_at, id")
        self.due_remains = self._ids(f"{tail} AND expired_at IS NOT NULL", "tail_at, id")
        self.due_holders = self._all(
            "pid",
            """(SELECT pid FROM holders WHERE standing = 'alive' AND expires_at <= ?
                ORDER BY expires_at LIMIT ?) AS due""",
        )
        self.due_schedules = self._all(
            without(self.dialect.packed(SCHEDULES.columns, "s"), "s", promise_param=EMPTY),
            """(SELECT * FROM schedules WHERE next_run_at <= ?
                ORDER BY next_run_at, id LIMIT ?) AS s""",
        )
        self.gone_holders = self._select(HOLDERS, "standing <> 'alive' AND held > 0")
        self.nodes_of = self._all(
            "awaited",
            """(SELECT awaited FROM waits WHERE awaiter = ? AND mode NOT IN ('any', 'read', 'below')
                ORDER BY awaited LIMIT ?) AS nodes""",
        )
        self.held_ids = self._ids("task_holder = ? AND task_pid = ?", "id")

    def _prepare_time(self) -> None:
        """When to look next, and what a store keeps of itself."""
        self.earliest = f"""
            SELECT
                (SELECT min(timeout_at) FROM promises
                    WHERE settled_at IS NULL AND internal = 0 AND timeout_at < {NEVER}),
                (SELECT min(task_wake_at) FROM promises WHERE task_wake_at < {NEVER}),
                (SELECT min(tail_at) FROM promises WHERE tail_at IS NOT NULL),
                (SELECT min(expires_at) FROM holders WHERE standing = 'alive'),
                (SELECT 0 FROM holders WHERE standing <> 'alive' AND held > 0 LIMIT 1),
                (SELECT min(next_at) FROM limits WHERE next_at IS NOT NULL)
        """
        self.next_occurrence = "SELECT min(next_run_at) FROM schedules"
        self.store_time = "SELECT at FROM store_time"
        self.kept = "SELECT secret FROM secrets WHERE name = ?"
        self.keep = "INSERT INTO secrets VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
        self.put_store_time = "UPDATE store_time SET at = ? WHERE at < ?"

    def next_rows(self, table: Table, packed: str = "") -> str:
        """The first rows after a key, by key, up to a limit."""
        key = ", ".join(map(quoted, table.key))
        after = f"({key}) > ({', '.join('?' * len(table.key))}) ORDER BY {key} LIMIT ?"
        packed = packed or self.dialect.packed(table.columns, table.name)
        return self._all(packed, f"(SELECT * FROM {table.name} WHERE {after}) AS {table.name}")

    def _prepare_pruning(self) -> None:
        """What a pass finds in each of its stages, and what must be known of it."""
        among, cells = self.dialect.among, self.dialect.cells
        self.bare_pairs = self._all(self.bare_pair, f"promises WHERE {among('id')}")
        self.awaited_ids = self._all(
            "id",
            f"""(SELECT awaited AS id FROM waits WHERE {among("awaited")}
                UNION SELECT awaited FROM listeners WHERE {among("awaited")}
                UNION SELECT id FROM messages WHERE {among("id")} AND kind <> 'lost'
                ) AS subquery""",
        )
        self.existing = self._all("id", f"promises WHERE {among('id')}")
        self.ids_below = self._all(
            cells("r", "id"),
            f"""(SELECT i.value AS r, p.id FROM {self.dialect.any_text} JOIN promises AS p
                    ON p.root = i.value AND p.root <> p.id AND p.id > ?
                    AND p.id <= COALESCE(
                        (SELECT x.id FROM promises AS x
                            WHERE x.root = i.value AND x.root <> x.id AND x.id > ?
                            ORDER BY x.id LIMIT 1 OFFSET ?), '{LAST}')) AS below""",
        )
        self.stages_after = {stage: self._stage(stage, ">") for stage in STAGES}
        self.stages_from = {stage: self._stage(stage, ">=") for stage in OF_TREES}
        self.pruning = self._select(PRUNING, "id = ?")
        self.put_pruning = self._upsert(PRUNING)
        self.drop_pruning = Bulk(f"DELETE FROM pruning WHERE {among('id')}")
        self.delete_promises = Bulk(f"DELETE FROM promises WHERE {among('id')}")
        self.drop_tags = self._drop("tags", ("key", "value", "id"))
        self.drop_holders = self._drop("holders", HOLDERS.key)

    def _prepare_limits(self) -> None:
        among = self.dialect.among
        self.own_limits = self._select(LIMITS, among("name"))
        self.patterns = self._select(LIMITS, "pattern = 1")
        self.limits = self._select(LIMITS, f"{among('name')} OR pattern = 1")
        self.put_limits = self._upsert(LIMITS)
        self.insert_limits = self._add(LIMITS)
        self.drop_limits = Bulk(f"DELETE FROM limits WHERE {among('name')}")
        self.due_limits = self._all(
            self.dialect.packed(LIMITS.columns, "due"),
            """(SELECT * FROM limits WHERE next_at IS NOT NULL AND next_at <= ?
                ORDER BY next_at LIMIT ?) AS due""",
        )
        self.limit_names = self._all(
            "name",
            f"""(SELECT name FROM limits
                WHERE name > ? AND name >= ? AND name < ? AND substr(name, 1, 1) <> '{PRIVATE}'
                ORDER BY name LIMIT ?) AS used""",
        )
        self.permit_holders = self._all(
            "id",
            """(SELECT id FROM promises
                WHERE task_permits IS NOT NULL AND task_permits LIKE ? ESCAPE '!'
                ORDER BY id LIMIT ?) AS held""",
        )
        self.parked_under = self._all(
            "id",
            """(SELECT id FROM promises
                WHERE task_state = 'acquired' AND task_state <> 'fulfilled' AND id > ?
                    AND task_sub_status = 'Deferred' AND task_limits LIKE ? ESCAPE '!'
                ORDER BY id LIMIT ?) AS parked""",
        )
        self.count_waiting = """
            SELECT count(*) FROM (SELECT 1 FROM promises WHERE task_gate = ? LIMIT ?) AS waiting
        """

    def _stage(self, stage: Stage, follows: str) -> str:
        """The next keys of an index by time."""
        table, at, name, where = STAGE_INDEXES[stage]
        return self._all(
            self.dialect.cells("at", "name"),
            f"""(SELECT {at} AS at, {name} AS name FROM {table}
                WHERE {where} AND ({at}, {name}) {follows} (?, ?) AND {at} <= ?
                ORDER BY {at}, {name} LIMIT ?) AS next""",
        )

    def _without_large_texts(self, pair: str) -> str:
        """The pair of a row, with empty texts if it is heavy and they are fetched by themselves."""
        is_heavy = self.dialect.is_heavy
        for column in ("param", "value") if is_heavy else ():
            text = f"promises.{quoted(column)}"
            pair = pair.replace(text, f"CASE WHEN {is_heavy} THEN '' ELSE {text} END")
        return pair

    def _waits_on(self) -> str:
        """The waits on some promises: of each a few more than one step handles."""
        waits = f"""
            (SELECT w.* FROM {self.dialect.any_text} JOIN waits AS w ON w.awaited = i.value
                AND w.mode <> 'read' AND w.awaiter <= COALESCE(
                    (SELECT x.awaiter FROM waits AS x WHERE x.awaited = i.value AND x.mode <> 'read'
                        ORDER BY x.awaiter LIMIT 1 OFFSET ?), '{LAST}')
            ) AS w
        """
        return self._all(self.dialect.packed(WAITS.columns, "w"), waits)

    def _listeners_on(self) -> str:
        """The first who listen to each of some promises, and not too many in all."""
        listeners = f"""
            (SELECT l.* FROM {self.dialect.any_text} JOIN listeners AS l ON l.awaited = i.value
                AND l.address <= COALESCE(
                    (SELECT x.address FROM listeners AS x WHERE x.awaited = i.value
                        ORDER BY x.address LIMIT 1 OFFSET ?), '{LAST}')
                LIMIT {MOST_LISTENERS}
            ) AS l
        """
        return self._all(self.dialect.packed(LISTENERS.columns, "l"), listeners)

    def _all(self, packed: str, source: str) -> str:
        return self.dialect.all_of(packed, source)

    def _select(self, table: Table, where: str) -> str:
        packed = self.dialect.packed(table.columns, table.name)
        return self._all(packed, f"{table.name} WHERE {where}")

    def _ids(self, where: str, order: str) -> str:
        found = f"(SELECT id FROM promises WHERE {where} ORDER BY {order} LIMIT ?) AS subquery"
        return self._all("id", found)

    def _insert(self, table: str, names: tuple[str, ...]) -> Bulk:
        """What is there already stays."""
        columns = ", ".join(quoted(name) for name in names)
        text = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {self.dialect.rows(names)}"
        return Bulk(f"{text} WHERE true ON CONFLICT DO NOTHING", names)

    def _upsert(self, table: Table, but: str = "") -> Bulk:
        """Insert or replace by key; the column `but` keeps what is stored."""
        changing = [n for n in table.names if n not in table.key and n != but]
        then = f"UPDATE SET {_excluded(changing)}" if changing else "NOTHING"
        key = ", ".join(map(quoted, table.key))
        text = f"{self._add(table, but).text} WHERE true ON CONFLICT ({key}) DO {then}"
        return Bulk(text, table.names)

    def _add(self, table: Table, but: str = "") -> Bulk:
        """Insert what is new; the column `but` begins with 0."""
        cells = ", ".join("0" if name == but else quoted(name) for name in table.names)
        columns = ", ".join(quoted(name) for name in table.names)
        text = f"""
            INSERT INTO {table.name} ({columns})
            SELECT {cells} FROM {self.dialect.rows(table.names)}
        """
        return Bulk(text, table.names)

    def _move(self, names: Sequence[str], count: int) -> str:
        sets = ", ".join(f"{name} = r.{name}" for name in names[1:])
        source = self.dialect.values(names, count)
        return f"UPDATE promises SET {sets} FROM {source} WHERE promises.id = r.id"

    def _drop(self, table: str, key: tuple[str, ...]) -> Bulk:
        names, rows = ", ".join(key), self.dialect.rows(key)
        return Bulk(f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM {rows})", key)


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
