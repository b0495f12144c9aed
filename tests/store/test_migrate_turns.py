"""Files from before claims ahead: each claim they know of was a try."""

import sqlite3
from pathlib import Path

import pytest

from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store.sqlite import SqliteStore
from tests.helpers.older_files import CELLS, TASK, written_before

TURNS = 7


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written by the layby before, with a task in its third claim and a promise without one."""
    rows = ({"id": "x"} | CELLS | TASK, {"id": "y"} | CELLS | {"tags": "{}"})
    connection = written_before(TURNS, tmp_path / "old.db", rows, monkeypatch)
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
