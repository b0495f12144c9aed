"""Files from before lanes had groups: who was let in by then is let in again by a tick."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from layby.store import migrate
from layby.store.dialect import SqliteDialect
from tests.helpers.older_files import CELLS, TASK, written_before

LANES_BY_GROUP = 29
PENDING = {"task_state": "pending", "task_pid": None, "task_ttl": None, "task_wake_at": None}
LIMITED: dict[str, Any] = {"task_name": "f", "task_limits": '["db","api"]', "task_gate_at": 5}
USED = "INSERT INTO limits VALUES (?, 1, 0, 1, NULL, 1, 0, 0, 0, ?, NULL, NULL, NULL, 0, 0)"


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """Written by the layby before: one was let in, one waits, and one was let in and refused."""
    task = CELLS | TASK | PENDING | LIMITED
    rows = (
        task | {"id": "let-in", "task_ready_at": 5},
        task | {"id": "waiting", "task_gate": "api", "task_gate_at": 6},
        task | {"id": "refused", "task_ready_at": 4, "task_refused": '{"codes":["c"]}'},
    )
    connection = written_before(LANES_BY_GROUP, tmp_path / "old.db", rows, monkeypatch)
    for name, opened in (("api", '{"f":[1,5,1]}'), ("db", '{"f":[1,5,1]}'), ("idle", None)):
        connection.execute(USED, (name, opened))
    migrate.migrate(connection, SqliteDialect())
    return connection


def test_who_was_let_in_waits_at_its_place(connection: sqlite3.Connection) -> None:
    query = "SELECT id, task_gate, task_gate_at, task_ready_at FROM promises ORDER BY id"
    assert connection.execute(query).fetchall() == [
        ("let-in", "db", 5, None),
        ("refused", None, 5, 4),
        ("waiting", "api", 6, None),
    ]


def test_a_tick_looks_at_the_limits_that_had_let_somebody_in(
    connection: sqlite3.Connection,
) -> None:
    query = "SELECT name, opened, next_at FROM limits ORDER BY name"
    assert connection.execute(query).fetchall() == [
        ("api", None, 0),
        ("db", None, 0),
        ("idle", None, None),
    ]
