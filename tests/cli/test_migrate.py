"""Schemas: what a file lacks, and giving it that."""

import sqlite3

import pytest

from layby.store.dialect import SqliteDialect
from layby.store.migrate import known, migrate
from tests.helpers.command_line import Desk, typed
from tests.helpers.newer_layby import DAY_AFTER, NEW, TODAY, TOMORROW, knowing, migrate_tomorrow


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A file as the first release made it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "layby.db"
    connection = sqlite3.connect(file, isolation_level=None)
    with monkeypatch.context() as patch:
        patch.setattr("layby.store.migrate.known", lambda: known_at_first)
        migrate(connection, SqliteDialect())
    connection.close()
    return file


known_at_first = known()[:1]


def test_what_is_missing_is_told_and_exit_code_1(old):
    """Nothing is changed by looking."""
    before = old.read_bytes()
    said = typed("migrate", "--check")
    assert said.code == 1
    assert f"is not at schema {max(each.version for each in known())} yet" in said.out
    assert "0002_waiting is missing" in said.out
    assert old.read_bytes() == before


def test_it_is_applied_once(old):
    """Then there is nothing to do."""
    assert "  0002_waiting applied" in typed("migrate").lines
    assert typed("migrate").lines == [
        f"layby.db is at schema {max(each.version for each in known())}: nothing to do"
    ]
    assert typed("migrate", "--check").code == 0


def test_as_json(old):
    """The same for programs."""
    missing = [f"{each.version:04}_{each.name}" for each in known()[1:]]
    checked = typed("migrate", "--check", "--json")
    assert checked.code == 1
    assert f'"missing": [\n    "{missing[0]}"' in checked.out
    assert typed("migrate", "--json").json["applied"] == missing


def test_it_says_what_stops_an_older_layby(desk: Desk):
    """Before it is done: whoever has the older one would refuse the file."""
    with knowing(*known(), *NEW["harsh"]):
        lines = typed("migrate", "--check", "--db", desk.file).out.splitlines()
    assert lines[1:] == [
        f"  {TOMORROW:04}_gentle is missing",
        f"  {DAY_AFTER:04}_harsh is missing: an older layby cannot use it any more after that",
    ]


def test_a_newer_schema_that_may_be_used_is_left_alone(desk: Desk):
    """Nothing is missing there; what this layby knows is told."""
    migrate_tomorrow(str(desk.file), "gentle")
    told = f"is at schema {TOMORROW}, newer than this layby ({TODAY}), which may use it"
    for flags in ([], ["--check"]):
        said = typed("migrate", "--db", desk.file, *flags)
        assert (said.code, told in said.out) == (0, True)
    assert typed("runs", "--db", desk.file).code == 0


def test_an_old_file_says_what_to_do(old):
    """Reading does not change it behind your back."""
    typed("runs").complains(2, "older layby", "layby migrate")


def test_an_old_file_keeps_what_it_holds(desk: Desk):
    """A file of today is left as it is."""
    assert typed("migrate", "--db", desk.file).code == 0


def test_bad_places(tmp_path, monkeypatch):
    """Named; a server does this by itself."""
    monkeypatch.chdir(tmp_path)
    typed("migrate").complains(2, "no layby.db here", "a server migrates its file")
    typed("migrate", "--db", "gone.db").complains(2, "gone.db does not exist")
    (tmp_path / "x.db").write_text("no database at all " * 99)
    typed("migrate", "--db", "x.db").complains(2, "x.db")


def test_a_write_brings_an_older_file_up_to_date(old):
    """Its store time cannot be read before that: the clock of this machine stands in."""
    said = typed("promises", "create", "p", "--timeout", "1h", "--json")
    assert said.json["promise"]["state"] == "pending"
