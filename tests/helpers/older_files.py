"""SQLite files as an older layby wrote them, cell by cell."""

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from layby.store import migrate
from layby.store.dialect import SqliteDialect

CELLS = {
    "root": "x",
    "param": "{}",
    "tags": '{"resonate:target":"poll://any@layby.g"}',
    "timeout_at": 9_000,
    "created_at": 1,
    "timer": 0,
    "placeholder": 0,
    "state": "pending",
    "value": "{}",
}
TASK = {
    "task_target": "poll://any@layby.g",
    "task_group": "g",
    "task_kind": "node",
    "task_state": "acquired",
    "task_version": 3,
    "task_pid": "p",
    "task_ttl": 5,
    "task_wake_at": 8_000,
    "task_resumes": "[]",
    "task_waits_left": 0,
    "task_failures": 1,
    "task_crashes": 0,
}
"""What a promise with a task has beside its `CELLS`."""


def written_before(
    version: int, file: Path, rows: Iterable[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> sqlite3.Connection:
    """With the schema before this version, and these promises."""
    older = [each for each in migrate.known() if each.version < version]
    connection = sqlite3.connect(file, isolation_level=None)
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "known", lambda: older)
        migrate.migrate(connection, SqliteDialect())
    for row in rows:
        names, marks = ", ".join(row), ", ".join("?" for _ in row)
        connection.execute(f"INSERT INTO promises ({names}) VALUES ({marks})", tuple(row.values()))
    return connection
