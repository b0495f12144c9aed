"""Files from before claims ahead: each claim they know of was a try."""

import sqlite3
from pathlib import Path

import pytest

from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store import migrate
from layby.store.dialect import SqliteDialect
from layby.store.sqlite import SqliteStore

TURNS = 7
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


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written by the layby before, with a task in its third claim and a promise without one."""
    older = [each for each in migrate.known() if each.version < TURNS]
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "known", lambda: older)
        connection = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
        migrate.migrate(connection, SqliteDialect())
    for row in ({"id": "x"} | CELLS | TASK, {"id": "y"} | CELLS | {"tags": "{}"}):
        names, marks = ", ".join(row), ", ".join("?" for _ in row)
        connection.execute(
            f"INSERT INTO promises ({names}) VALUES ({marks})",
            tuple(row.values()),
        )
    connection.close()
    return tmp_path / "old.db"


def test_claims_from_before_were_tries(file: Path) -> None:
    """And none of them was ahead of a slot."""
    store = SqliteStore(file, Settings(), next_after)
    with store.transaction():
        state = store.dump()
    assert (state.tasks["x"].tries, state.tasks["x"].ahead) == (3, False)
    assert state.tasks.keys() == {"x"}
    store.close()


def test_the_view_shows_tries(file: Path) -> None:
    """A claim ahead is none, and who keeps a halted task does not run it."""
    SqliteStore(file, Settings(), next_after).close()
    connection = sqlite3.connect(file)
    look = "SELECT try_number, pid FROM task_executions WHERE id = 'x'"
    assert connection.execute(look).fetchone() == (3, "p")
    connection.execute("UPDATE promises SET task_tries = 2, task_state = 'halted' WHERE id = 'x'")
    assert connection.execute(look).fetchone() == (2, None)
    connection.close()
