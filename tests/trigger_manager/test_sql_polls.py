"""SqlPoll on real databases: rows, bounds, and that nothing is written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from layby.errors import TriggerError
from layby.trigger_manager.access_checks import AccessChecks, AccessRefused
from layby.trigger_manager.sql_polls import MAX_COLUMNS, SqlPolls
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.triggers import Compare, SqlPoll
from tests.helpers.postgres import cluster

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture(name="shop")
def _shop(tmp_path: Path) -> Path:
    file = tmp_path / "sh?p.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE orders (id, state, body)")
        database.execute("INSERT INTO orders VALUES (7, 'paid', x'00ff'), (8, 'open', NULL)")
        database.commit()
    return file


@pytest.fixture(name="polls")
def _polls(shop: Path) -> SqlPolls:
    return SqlPolls(AccessChecks(TriggerAccess(connections={"shop": f"sqlite:{shop}"})))


def poll(query: str, *params: object, **more: object) -> SqlPoll:
    return SqlPoll("shop", query, params, **more)  # type: ignore[arg-type]


def test_the_first_row_fires(polls):
    """By column; bytes come as hexadecimal digits."""
    wanted = poll("SELECT * FROM orders WHERE state = ? ORDER BY id", "paid")
    assert polls.ask(wanted) == {"id": 7, "state": "paid", "body": "00ff"}
    assert polls.ask(poll("SELECT * FROM orders WHERE state = ?", "sent")) is None


def test_a_comparison_of_the_row(polls):
    """For a query that always has one."""
    counted = "SELECT count(*) AS n FROM orders"
    assert polls.ask(poll(counted, until=Compare("/n", ">=", 3))) is None
    assert polls.ask(poll(counted, until=Compare("/n", ">=", 2))) == {"n": 2}


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        "UPDATE orders SET id = 9 RETURNING id",
        "CREATE TABLE other (id)",
        "ATTACH 'other.db' AS other",
        "PRAGMA query_only = off",
        "PRAGMA database_list",
        "SELECT 1; DELETE FROM orders",
        "nonsense",
    ],
)
def test_nothing_but_reads(polls, shop, query):
    """Whoever may start a task must not write, or reach other files."""
    with pytest.raises(TriggerError):
        polls.ask(poll(query))
    with closing(sqlite3.connect(shop)) as database:
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (2,)


def test_a_query_without_end(polls):
    """It is interrupted."""
    with pytest.raises(TriggerError, match="interrupted"):
        polls.ask(poll(ENDLESS, timeout=0.1))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT hex(zeroblob(400000000))",
        "SELECT zeroblob(2000000)",
        "SELECT count(hex(zeroblob(2000000)))",
        f"SELECT {', '.join(['zeroblob(900000)'] * 2 * MAX_COLUMNS)}",
    ],
)
def test_a_row_without_measure(polls, query):
    """SQLite refuses to make it: it would be held in memory as a whole, several times."""
    with pytest.raises(TriggerError, match=r"too big|too many columns"):
        polls.ask(poll(query))


def test_wide_tables_and_long_rows_may_be_asked(shop, polls):
    """The bounds are for what a query handles, not for what else a file has."""
    with closing(sqlite3.connect(shop)) as database:
        names = ", ".join(f"c{each}" for each in range(2 * MAX_COLUMNS))
        database.execute(f"CREATE TABLE wide (body, {names}, state)")
        database.execute("INSERT INTO wide (body, state) VALUES (zeroblob(3000000), 'paid')")
        database.commit()
    assert polls.ask(poll("SELECT state, c7 FROM wide ORDER BY state")) == {
        "state": "paid",
        "c7": None,
    }


def test_numbers_that_json_does_not_have(polls):
    """They come as text: the query has found its row."""
    assert polls.ask(poll("SELECT 9e999 AS n, -9e999 AS m")) == {"n": "inf", "m": "-inf"}


@pytest.mark.parametrize("query", ["-- SELECT 1", ";"])
def test_a_query_that_never_has_a_row(polls, query):
    """It is told: nobody waits for a row that cannot come."""
    with pytest.raises(TriggerError, match="has no columns"):
        polls.ask(poll(query))


def test_a_file_that_is_not_there(tmp_path):
    """It is not created by looking."""
    polls = SqlPolls(
        AccessChecks(TriggerAccess(connections={"shop": f"sqlite:{tmp_path / 'none.db'}"}))
    )
    with pytest.raises(TriggerError, match="unable to open"):
        polls.ask(poll("SELECT 1"))
    assert list(tmp_path.iterdir()) == []


def test_a_connection_without_a_name(polls):
    """The error names those there are, and never an address."""
    with pytest.raises(AccessRefused, match=r"no connection named 'bank' here \(shop\)"):
        polls.ask(SqlPoll("bank", "SELECT 1"))


def test_postgres():
    """The same on PostgreSQL: rows, JSON columns, read-only, bounded, one statement."""
    polls = SqlPolls(AccessChecks(TriggerAccess(connections={"shop": cluster().url("postgres")})))
    found = polls.ask(poll("SELECT %s::int AS n, '{\"a\": [1]}'::jsonb AS j, now() AS t", 3))
    assert found is not None
    assert (found["n"], found["j"], found["t"][:2]) == (3, {"a": [1]}, "20")
    assert polls.ask(poll("SELECT 1 WHERE false")) is None
    numbers = "SELECT 'NaN'::float8 AS n, '[12345678901234567890123]'::jsonb AS j"
    assert polls.ask(poll(numbers)) == {"n": "nan", "j": ["12345678901234567890123"]}
    for query, why in (
        ("CREATE TABLE polled (id int)", "SyntaxError"),
        ("SELECT 1; COMMIT; CREATE TABLE polled (id int)", "SyntaxError"),
        ("SELECT set_config('transaction_read_only', 'off', false)", "ActiveSqlTransaction"),
        ("SET TRANSACTION READ WRITE", "SyntaxError"),
        ("SELECT repeat('x', 4000000)", "longer than 1000000 bytes: select less"),
        ("SELECT 1) r LIMIT 1) q, (SELECT * FROM (SELECT repeat('x', 4000000)", "SyntaxError"),
        ("nonsense", "SyntaxError"),
    ):
        with pytest.raises(TriggerError, match=why):
            polls.ask(poll(query))
    with pytest.raises(TriggerError, match="QueryCanceled"):
        polls.ask(poll("SELECT pg_sleep(5)", timeout=0.1))
    assert polls.ask(poll("SELECT 4 AS n; ")) == {"n": 4}
    sizes = "SELECT i AS n, repeat('x', i) AS t FROM generate_series(3000000, 1, -1000000) i"
    assert polls.ask(poll(f"{sizes} UNION SELECT 2, 'é%' ORDER BY n -- the shortest")) == {
        "n": 2,
        "t": "é%",
    }
    polls.close()
