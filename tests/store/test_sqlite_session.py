"""What the SQLite session writes is what it was given."""

import sqlite3

from layby.store.bulk import Wide
from layby.store.sqlite_session import SqliteSession

CELLS = ("a", "b", "c")


def test_none_is_stored_as_null() -> None:
    """A cell that is None becomes NULL, in every column type and beside cells that are not."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE cells (a TEXT, b INTEGER, c)")
    insert = Wide(CELLS, lambda names, count: _insert(len(names), count))
    SqliteSession(connection).write_wide(insert, [("x", 1, True), (None, None, None)])
    stored = connection.execute("SELECT a, b, c, typeof(a), typeof(b), typeof(c) FROM cells")
    assert stored.fetchall() == [
        ("x", 1, 1, "text", "integer", "integer"),
        (None, None, None, "null", "null", "null"),
    ]


def _insert(width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT INTO cells VALUES {', '.join([row] * count)}"
