"""Files from before a task that backs off said so: what it waited for is found out once."""

import sqlite3
from pathlib import Path

import pytest

from layby.core.waits import backing_off
from layby.store import migrate
from layby.store.dialect import SqliteDialect
from tests.helpers.older_files import CELLS, TASK, written_before

WAITS = 8
SUSPENDED = {"task_state": "suspended", "task_pid": None, "task_ttl": None, "task_wake_at": None}
NEW = {"task_tries": 3, "task_ahead": 0, "task_waiting_since": 5}
TIMER = {"id": "x.backoff.3", "timer": 1, "timeout_at": 7_000, "tags": "{}"}


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """Written by the layby before: one task that backs off, one that waits for something else."""
    task = CELLS | TASK | SUSPENDED | NEW
    rows = ({"id": "x"} | task, {"id": "y"} | task, CELLS | TIMER)
    connection = written_before(WAITS, tmp_path / "old.db", rows, monkeypatch)
    waits = [("x.backoff.3", "x", "any"), ("p", "y", "any")]
    connection.executemany("INSERT INTO waits VALUES (?, ?, ?)", waits)
    migrate.migrate(connection, SqliteDialect())
    return connection


def test_what_backs_off_says_so(connection: sqlite3.Connection) -> None:
    """In the words of today, with its end; what waits for something else is left alone."""
    found = dict(connection.execute("SELECT id, waiting_on FROM task_executions").fetchall())
    assert found == {"x": backing_off(1, 7_000, 5), "y": None}


def test_neither_is_deferred(connection: sqlite3.Connection) -> None:
    """Nothing was before there were triggers."""
    query = "SELECT id, state FROM task_executions ORDER BY id"
    assert connection.execute(query).fetchall() == [("x", "suspended"), ("y", "suspended")]
