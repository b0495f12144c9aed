"""The schema: applied once, equal to the structs of core, and what people see through its views."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from layby.core.commands import (
    AcquireTask,
    AnnotateTask,
    CreatePromise,
    RegisterCallback,
    SuspendAction,
    SuspendTask,
    Take,
)
from layby.core.model import NEVER
from layby.core.queries import SearchSchedules
from layby.core.replies import ScheduleData, SchedulePage
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import StoreUnreadable
from layby.store import tables
from layby.store.dialect import SqliteDialect
from layby.store.migrate import known, migrate
from layby.store.page_bounds import LIGHT
from layby.store.sqlite import SqliteReader, SqliteStore
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock

OURS = {"resonate:target": "poll://any@layby.g", "layby:name": "n"}


def opened(file: Path) -> SqliteStore:
    return SqliteStore(file, Settings(), next_after)


def rows(file: Path, statement: str) -> list[tuple]:
    connection = sqlite3.connect(file)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.fixture
def file(tmp_path):
    """A file with the schema and nothing else."""
    opened(tmp_path / "a.db").close()
    return tmp_path / "a.db"


# --- applied once ------------------------------------------------------------------------


def test_every_migration_is_in_the_ledger_with_its_checksum(file):
    """The ledger says what was applied, and opening again adds nothing to it."""
    ledger = rows(file, "SELECT version, name, checksum FROM layby_migrations ORDER BY version")
    assert ledger == [(each.version, each.name, each.checksum) for each in known()]
    opened(file).close()
    assert rows(file, "SELECT version, name, checksum FROM layby_migrations") == ledger


def test_migrations_are_numbered_without_gaps():
    """A missing number would be a migration that never reaches anybody."""
    assert [each.version for each in known()] == list(range(1, len(known()) + 1))


def test_a_migration_once_released_stays_as_it_is():
    """Files out there carry its checksum: a change needs a migration of its own."""
    assert [each.checksum for each in known()[:1]] == [
        "03d4b84ffdd406a55e7d3e229187044aedce4f254967d0ba1fb364046bce808c"
    ]


def test_a_statement_may_be_for_one_database_only(tmp_path, monkeypatch):
    text = "/*only sqlite*/ CREATE TABLE ours (id TEXT);\n/*only other*/ NONSENSE;\n"
    monkeypatch.setattr(
        "layby.store.migrate.known", lambda: [known()[0].__class__(1, "some", text)]
    )
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    migrate(connection, SqliteDialect())
    assert "ours" in {
        name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()
    }
    connection.close()


def test_what_is_heavy_is_known_by_an_index(file):
    """The same number as everywhere, and no row is looked at to find out."""
    (text,) = rows(file, "SELECT sql FROM sqlite_master WHERE name = 'promises_heavy'")[0]
    assert f"> {LIGHT}" in text
    weights = SqliteDialect.weights.replace("?", "'[]'")
    plan = rows(file, f"EXPLAIN QUERY PLAN {weights}")
    assert "INDEX promises_heavy (id=? AND <expr>>?)" in str(plan)
    table = rows(file, "SELECT rootpage FROM sqlite_master WHERE name = 'promises'")[0][0]
    steps = [row[1:6] for row in rows(file, f"EXPLAIN {weights}")]
    cursors = [p1 for name, p1, p2, *_ in steps if name == "OpenRead" and p2 == table]
    assert not [each for each in steps if each[0] == "Column" and each[1] in cursors]


def test_a_migration_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    """All or nothing: after the failure the file has no table of ours."""
    broken = [
        *known(),
        known()[0].__class__(99, "broken", "CREATE TABLE x (id TEXT);\nNONSENSE;\n"),
    ]
    monkeypatch.setattr("layby.store.migrate.known", lambda: broken)
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    with pytest.raises(sqlite3.Error):
        migrate(connection, SqliteDialect())
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()


def test_two_processes_on_a_fresh_file_migrate_it_once(tmp_path):
    """One of them owns the file, the other is told so; the schema is there once and sound."""
    script = tmp_path / "start.py"
    script.write_text(
        "import sys\n"
        "from layby.core.settings import Settings\n"
        "from layby.engine.calendar import next_after\n"
        "from layby.errors import StoreOwned\n"
        "from layby.store.sqlite import SqliteStore\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    store = SqliteStore(sys.argv[1], Settings(), next_after)\n"
        "except StoreOwned:\n"
        "    print('owned', flush=True)\n"
        "else:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    file = tmp_path / "fresh.db"
    command = [sys.executable, str(script), str(file)]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) for _ in range(2)]
    try:
        assert [heard(each) for each in both] == ["ready\n"] * 2
        for each in both:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        assert sorted(heard(each) for each in both) == ["open\n", "owned\n"]
    finally:
        for each in both:
            each.communicate()
    assert len(rows(file, "SELECT * FROM layby_migrations")) == len(known())


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# --- files from before -------------------------------------------------------------------


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A file of schema 1, with a schedule that has fired."""
    file = tmp_path / "old.db"
    with monkeypatch.context() as before:
        before.setattr("layby.store.migrate.known", lambda: known()[:1])
        connection = sqlite3.connect(file, isolation_level=None)
        migrate(connection, SqliteDialect())
        connection.execute(
            "INSERT INTO schedules VALUES ('s', '* * * * *', '{{.id}}.{{.timestamp}}', 90000,"
            """ '{"data":"eA=="}', '{"resonate:target":"poll://any@other"}', 0, 120000, 60000)"""
        )
        connection.close()
    return file


def test_schedules_from_before_are_kept_and_go_on(old):
    """They create promises, by UTC, and make up for all they missed, as they always did."""
    store = opened(old)
    engine = Engine(store, ManualClock(185_000))
    engine.start_inline()
    try:
        engine.pump()
        state = store.dump()
    finally:
        engine.stop()
    assert sorted(state.promises) == ["s.120000", "s.180000"]
    (row,) = state.schedules.values()
    assert (row.cron, row.promise_param, row.created_at) == ("* * * * *", '{"data":"eA=="}', 0)
    assert (row.last_run_at, row.next_run_at) == (180_000, 240_000)
    assert (row.timezone, row.catch_up, row.flow, row.nodes) == ("UTC", True, None, "[]")


def test_a_file_from_before_takes_schedules_of_runs(old):
    """Beside those it has."""
    engine = Engine(opened(old), ManualClock(60_000))
    engine.start_inline()
    try:
        made = engine.call(r.nightly()).data
        found = engine.call(SearchSchedules()).data
    finally:
        engine.stop()
    assert isinstance(made, ScheduleData)
    assert isinstance(found, SchedulePage)
    assert [each.id for each in found.schedules] == ["nightly", "s"]
    assert found.schedules[0] == replace(made.schedule, nodes="[]")  # which no list shows
    applied = rows(old, "SELECT version FROM layby_migrations ORDER BY version")
    assert [version for (version,) in applied] == [each.version for each in known()]


def test_a_reader_does_not_touch_a_file_from_before(old):
    """It cannot bring it up to date, so it says who can."""
    before = old.read_bytes()
    with pytest.raises(StoreUnreadable, match=r"old\.db.*older layby.*version 1.*with a Runner"):
        SqliteReader(old, Settings(), next_after)
    assert old.read_bytes() == before


# --- files from elsewhere ----------------------------------------------------------------


def test_a_newer_schema_is_refused_and_left_alone(file):
    """The error says which version it is, which this layby knows, and to upgrade."""
    rows(file, "INSERT INTO layby_migrations VALUES (999, 'future', 'x', 999)")
    before = file.read_bytes()
    with pytest.raises(StoreUnreadable, match=r"a\.db.*newer layby.*schema 999.*upgrade layby"):
        opened(file)
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused_by_readers_too(file):
    """A reader would misread it just as well."""
    rows(file, "INSERT INTO layby_migrations VALUES (999, 'future', 'x', 999)")
    with pytest.raises(StoreUnreadable, match=r"a\.db.*newer layby"):
        SqliteReader(file, Settings(), next_after)


def test_a_migration_in_another_form_is_refused(file):
    """A schema that was edited after it was applied is no schema we know."""
    rows(file, "UPDATE layby_migrations SET checksum = 'edited' WHERE version = 1")
    for look in (opened, lambda path: SqliteReader(path, Settings(), next_after)):
        with pytest.raises(StoreUnreadable, match=r"a\.db.*migration 1 \(init\).*another form"):
            look(file)


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path):
    """A wrong path must not put our tables into somebody else's file."""
    file = tmp_path / "theirs.db"
    rows(file, "CREATE TABLE customers (id INTEGER)")
    before = file.read_bytes()
    with pytest.raises(StoreUnreadable, match=r"theirs\.db.*another program.*another path"):
        opened(file)
    assert file.read_bytes() == before
    with pytest.raises(StoreUnreadable, match=r"theirs\.db.*not a layby database"):
        SqliteReader(file, Settings(), next_after)


# --- the schema is what core says --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("promises", (*tables.PROMISES.names, *tables.TASKS.names[1:])),
        ("waits", tables.WAITS.names),
        ("listeners", tables.LISTENERS.names),
        ("messages", tables.LEASED_MESSAGES.names),
        ("holders", tables.HOLDERS.names),
        ("schedules", tables.SCHEDULES.names),
        ("tags", ("key", "value", "id")),
    ],
)
def test_columns_are_the_fields_of_the_structs(file, name, columns):
    """By name, whatever their order: a field added to a struct without a migration fails here."""
    found = rows(file, f"SELECT name FROM pragma_table_info('{name}')")
    assert sorted(column for (column,) in found) == sorted(columns)


@pytest.mark.parametrize(
    "table",
    [tables.WAITS, tables.LISTENERS, tables.LEASED_MESSAGES, tables.HOLDERS, tables.SCHEDULES],
    ids=lambda table: table.name,
)
def test_keys_are_those_the_store_writes_by(file, table):
    """An upsert by another key than the table's would be refused by the database."""
    query = f"SELECT name FROM pragma_table_info('{table.name}') WHERE pk > 0 ORDER BY pk"
    assert tuple(name for (name,) in rows(file, query)) == table.key


# --- the views ---------------------------------------------------------------------------


@pytest.fixture
def looking(file):
    """An engine on the file, inline, and a way to look at the file beside it."""
    engine = Engine(opened(file), ManualClock(1_000))
    engine.start_inline()
    yield engine, lambda statement: rows(file, statement)
    engine.stop()


def taken(engine: Engine, *ids: str) -> None:
    for each in ids:
        engine.call(CreatePromise(id=each, timeout_at=NEVER, tags=OURS))
    take = Take(pid="w", incarnation="1", group="g", names=("n",), free=len(ids), embedded=True)
    assert engine.call(take).is_ok


def test_task_executions_shows_what_an_acquired_task_does(looking):
    """Active is implied by the claim; Deferred is what the worker wrote."""
    engine, look = looking
    taken(engine, "a", "b")
    engine.call(AnnotateTask(id="b", version=1, sub_status="Deferred", waiting_on='{"kind":"x"}'))
    query = "SELECT id, state, sub_status, try_number, pid FROM task_executions ORDER BY id"
    assert look(query) == [
        ("a", "acquired", "Active", 1, "w"),
        ("b", "acquired", "Deferred", 1, "w"),
    ]


def test_task_executions_lists_tasks_only(looking):
    """A promise without a target is no task execution."""
    engine, look = looking
    engine.call(CreatePromise(id="plain", timeout_at=NEVER))
    engine.call(CreatePromise(id="t", timeout_at=NEVER, tags=OURS))
    assert look("SELECT id, name, task_group, state, sub_status FROM task_executions") == [
        ("t", "n", "g", "pending", None)
    ]


def test_a_task_of_an_sdk_that_is_suspended_is_just_suspended(looking):
    """Sub-statuses are those of our own tasks."""
    engine, look = looking
    elsewhere = {"resonate:target": "poll://any@elsewhere"}
    engine.call(CreatePromise(id="a", timeout_at=NEVER, tags=elsewhere))
    engine.call(AcquireTask(id="a", version=0, pid="sdk", ttl=1_000))
    engine.call(CreatePromise(id="p", timeout_at=NEVER))
    wait = RegisterCallback(awaited="p", awaiter="a")
    action = SuspendAction(kind=wait.kind, head={}, data=wait)
    assert engine.call(SuspendTask(id="a", version=1, actions=[action])).status == 200
    assert look("SELECT state, sub_status FROM task_executions") == [("suspended", None)]
