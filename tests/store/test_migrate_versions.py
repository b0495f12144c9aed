"""Old and new code on one database: who may go on, who must not, and who waits for whom."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core import commands as c
from layby.core.model import Message
from layby.core.queries import SearchPromises
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.opening import open_store
from layby.errors import StoreBusy, StoreError, StoreMigrated, StoreUnavailable, StoreUnreadable
from layby.store import migrate, postgres_migrating
from layby.store.dialect import SqliteDialect
from layby.store.message_leases import LEASE_MS
from layby.store.migrate import Migration, known
from layby.store.postgres import PostgresStore
from layby.store.postgres_migrating import prepare_schema
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock
from tests.helpers.new_files import migrated
from tests.helpers.newer_layby import (
    DAY_AFTER,
    NEW,
    TABLES,
    TODAY,
    TOMORROW,
    Manner,
    knowing,
    migrate_tomorrow,
)
from tests.helpers.postgres import USER, cluster
from tests.helpers.two_engines import PATIENCE_S, running, submit, told

# --- what a migration says ---------------------------------------------------------------


def test_every_migration_says_which_code_may_go_on() -> None:
    """From 17 on, in its first line; those before let no older code go on."""
    for each in known()[16:]:
        assert each.text.startswith("-- oldest code: "), each.title
        assert 17 <= each.oldest <= each.version, each.title
    assert [each.oldest for each in known()[:16]] == list(range(1, 17))


@given(st.data())
def test_code_may_use_what_every_later_migration_allows(data: st.DataObject) -> None:
    """Whatever the later ones are: as long as none of them shuts this code out."""
    count = data.draw(st.integers(1, 5))
    later = [
        Migration(TODAY + at, "later", f"-- oldest code: {oldest}\n")
        for at in range(1, count + 1)
        for oldest in [data.draw(st.integers(TODAY - 1, TODAY + at))]
    ]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(migrated())
        with knowing(*known(), *later):
            migrate.migrate(database, SqliteDialect())
        if all(each.oldest <= TODAY for each in later):
            assert migrate.schema_of(database) == migrate.Schema(TODAY + count, ())
        else:
            with pytest.raises(StoreUnreadable, match="upgrade layby here"):
                migrate.schema_of(database)


# --- on either database ------------------------------------------------------------------


class Place:
    """A database that two versions of layby open."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        if self.address.startswith("postgresql"):
            with psycopg.connect(self.address, options="-c search_path=layby") as database:
                cursor = database.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self.address.removeprefix("sqlite:"))) as file, file:
            return file.execute(statement).fetchall()

    def open(self) -> Engine:
        return Engine(open_store(self.address, "full", Settings()), ManualClock(1_000))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return Place(cluster().url(cluster().new_database()))
    return Place(f"sqlite:{tmp_path / 'a.db'}")


def live(engine: Engine) -> None:
    """Write to every table, and change what was written."""
    for request in (
        r.promise("p"),
        r.target("t"),
        r.acquire("t", 0),
        r.suspend("t", 1, "p"),
        c.RegisterListener(awaited="p", address="poll://uni@other/w"),
        r.nightly(),
        r.run(a="", b="a"),
        r.take(4),
    ):
        assert engine.call(request).is_ok, request


def test_old_code_lives_on_a_schema_that_allows_it(place: Place) -> None:
    """It goes on with what it finds, and leaves alone what it does not know."""
    engine = place.open()
    engine.start_inline()
    live(engine)
    engine.stop()
    migrate_tomorrow(place.address, "gentle")
    for table in TABLES:
        place.ask(f"UPDATE {table} SET mood = 'calm'")
    place.ask("UPDATE promises SET weight = 9")
    engine = place.open()
    engine.start_inline()
    assert engine.call(r.settle("p")).is_ok
    assert engine.call(r.promise("q")).is_ok
    assert engine.call(r.acquire("t", 1)).is_ok
    assert [each.id for each in told(engine, SearchPromises(state="resolved")).promises] == ["p"]
    engine.stop()
    found = dict(place.ask("SELECT id, weight FROM promises WHERE id IN ('p', 'q', 't')"))
    assert found == {"p": 9, "q": 7, "t": 9}
    assert place.ask("SELECT mood FROM promises WHERE id = 't'") == [("calm",)]
    assert place.ask("SELECT mood FROM schedules") == [("calm",)]
    migrate_tomorrow(place.address, "gentle")  # and tomorrow's code finds it as it left it


def test_old_code_refuses_a_schema_that_shuts_it_out(place: Place) -> None:
    """Which schema, which code it needs, and what to do; nothing is changed."""
    migrate_tomorrow(place.address, "harsh")
    before = place.ask("SELECT * FROM layby_migrations ORDER BY version")
    needs = f"schema {DAY_AFTER}.*knows schema {DAY_AFTER}.*this one knows {TODAY}.*upgrade layby"
    with pytest.raises(StoreUnreadable, match=needs):
        open_store(place.address, "full", Settings())
    assert place.ask("SELECT * FROM layby_migrations ORDER BY version") == before


# --- a server that runs meanwhile --------------------------------------------------------


@pytest.fixture
def url() -> str:
    return cluster().url(cluster().new_database())


def test_an_engine_goes_on_through_a_gentle_migration(url: str) -> None:
    with running(url) as engine:
        assert engine.call(r.promise("p")).is_ok
        migrate_tomorrow(url, "gentle")
        assert engine.call(r.settle("p")).is_ok
        assert told(engine, SearchPromises(state="resolved")).promises[0].id == "p"


def test_an_engine_stops_at_a_harsh_migration(url: str) -> None:
    """Writes, reads and what waits are told why; nothing is written, not even at the end."""
    with running(url) as engine:
        assert engine.call(r.promise("p")).is_ok
        (watching,) = submit(engine, [c.WatchPromise(id="p")])
        migrate_tomorrow(url, "harsh")
        with psycopg.connect(url) as database:
            database.execute("DELETE FROM layby.server_times")
        needs = f"knows schema {DAY_AFTER}.*upgrade layby here.*restart this process"
        for request in (r.settle("p"), c.GetPromise(id="p"), SearchPromises()):
            with pytest.raises(StoreMigrated, match=needs):
                engine.call(request)
        with pytest.raises(StoreMigrated):
            watching.result(PATIENCE_S)
    with psycopg.connect(url) as database:
        assert database.execute("SELECT state FROM layby.promises").fetchall() == [("pending",)]
        assert database.execute("SELECT * FROM layby.server_times").fetchall() == []


def test_a_transaction_that_only_writes_asks_first(url: str) -> None:
    """All of it travels with the commit: it must not be sent before the answer."""
    with closing(PostgresStore(url, Settings(), next_after)) as store:
        migrate_tomorrow(url, "harsh")
        with pytest.raises(StoreMigrated), store.transaction():
            store._session.execute("INSERT INTO server_times VALUES ('x', 1)")
    with psycopg.connect(url) as database:
        assert database.execute("SELECT * FROM layby.server_times").fetchall() == []


def test_a_lease_on_a_message_is_not_taken_if_we_may_not(url: str) -> None:
    """It is committed in the round trip in which that is asked."""
    message = Message("t", "execute", "poll://any@g")
    with running(url) as engine:
        assert engine.call(r.target("t", target=message.address)).is_ok
    with closing(PostgresStore(url, Settings(), next_after)) as store:
        store._leases.wants = lambda _: True
        with store.transaction():
            assert [each.message for each in store.lease_messages([message], 1)] == [message]
        migrate_tomorrow(url, "harsh")
        with pytest.raises(StoreMigrated), store.transaction():
            store.lease_messages([message], 10**14)
    with psycopg.connect(url) as database:
        found = database.execute("SELECT offered_until FROM layby.messages").fetchall()
        assert found == [(1 + LEASE_MS,)]


def test_a_harsh_migration_waits_for_what_has_begun(url: str) -> None:
    """A transaction that was let in is finished; the next one is not let in."""
    with closing(PostgresStore(url, Settings(), next_after)) as store, Migrating(url) as migrating:
        with store.transaction():
            store.store_time()
            migrating.begin("harsh")
            migrating.until_told("cannot lock its tables")
            store._session.execute("INSERT INTO server_times VALUES ('x', 1)")
        migrating.result()
        with pytest.raises(StoreMigrated), store.transaction():
            store.store_time()
    with psycopg.connect(url) as database:
        assert database.execute("SELECT server FROM layby.server_times").fetchall() == [("x",)]


# --- waiting for locks -------------------------------------------------------------------


class Migrating:
    """Tomorrow's migration in a thread, and what it tells."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._said: list[str] = []
        self._has_said = threading.Condition()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def begin(self, manner: Manner = "gentle") -> None:
        self._future = self._thread.submit(self._migrate, manner)

    def result(self) -> list[Migration]:
        return self._future.result(PATIENCE_S)

    def until_told(self, text: str, times: int = 1) -> str:
        def has_told() -> bool:
            return sum(text in each for each in self._said) >= times

        with self._has_said:
            assert self._has_said.wait_for(has_told, PATIENCE_S), self._said
            return self._said[-1]

    def _migrate(self, manner: Manner) -> list[Migration]:
        with knowing(*known(), *NEW[manner]):
            return prepare_schema(self._url, self._tell)

    def _tell(self, sentence: str) -> None:
        with self._has_said:
            self._said.append(sentence)
            self._has_said.notify_all()


@pytest.fixture
def blocked(url: str) -> Iterator[tuple[Engine, "psycopg.Connection[Any]"]]:
    """An engine, and somebody who has read a table and keeps their transaction open."""
    with running(url) as engine, psycopg.connect(url, application_name="report") as reading:
        reading.execute("SELECT count(*) FROM layby.promises")
        yield engine, reading


def test_a_migration_steps_back_while_a_table_is_in_use(url: str, blocked: Any) -> None:
    """It says who is in the way, and nobody stands in line behind it; then it is applied."""
    engine, reading = blocked
    with Migrating(url) as migrating:
        migrating.begin()
        said = migrating.until_told("cannot lock its tables")
        assert f"{TOMORROW:04}_gentle" in said
        assert "report, has been in a transaction for" in said
        assert engine.call(r.promise("p")).is_ok
        migrating.until_told("cannot lock its tables", times=2)
        reading.rollback()
        assert [each.version for each in migrating.result()] == [TOMORROW]
    assert engine.call(r.settle("p")).is_ok


def test_a_migration_gives_up_in_the_end(url: str, blocked: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(postgres_migrating, "PATIENCE_S", 0.0)
    with (
        knowing(*known(), *NEW["gentle"]),
        pytest.raises(StoreBusy, match=r"report.*run `layby migrate`"),
    ):
        prepare_schema(url)
    with psycopg.connect(url) as database:
        (newest,) = database.execute("SELECT max(version) FROM layby.layby_migrations").fetchall()
    assert newest == (TODAY,)


def test_others_wait_for_who_migrates(url: str, monkeypatch: Any) -> None:
    """And find that there is nothing left to do."""
    prepare_schema(url)
    monkeypatch.setitem(postgres_migrating._SETTINGS, "lock_timeout", "50ms")
    with psycopg.connect(url) as other, Migrating(url) as migrating:
        other.execute(postgres_migrating.TAKE_TURN.encode())
        migrating.begin()
        migrating.until_told("another process migrates it")
        other.close()
        assert [each.version for each in migrating.result()] == [TOMORROW]
        migrating.begin()
        assert migrating.result() == []


@pytest.mark.timeout(30)
def test_others_are_told_soon_that_somebody_migrates(url: str, monkeypatch: Any) -> None:
    """However long they wait before they are told again."""
    prepare_schema(url)
    monkeypatch.setitem(postgres_migrating._SETTINGS, "lock_timeout", "0")
    monkeypatch.setattr(postgres_migrating, "TOLD_AFTER", "50ms")
    with psycopg.connect(url) as other, Migrating(url) as migrating:
        other.execute(postgres_migrating.TAKE_TURN.encode())
        migrating.begin()
        migrating.until_told("another process migrates it")
        other.close()
        assert [each.version for each in migrating.result()] == [TOMORROW]


def test_a_schema_that_another_layby_makes_meanwhile_is_ours(url: str, monkeypatch: Any) -> None:
    """Two servers start at once on a new database: one looks while the other makes the tables."""
    look = postgres_migrating.has_ledger

    def looked_too_early(connection: Any) -> bool:
        has_ledger = look(connection)
        monkeypatch.undo()
        prepare_schema(url)
        return has_ledger

    monkeypatch.setattr(postgres_migrating, "has_ledger", looked_too_early)
    assert prepare_schema(url) == []


# --- one transaction each ----------------------------------------------------------------


def test_what_was_applied_before_a_failure_stays(url: str) -> None:
    """Each is a transaction of its own, so a later one holds no lock for an earlier one."""
    broken = Migration(DAY_AFTER, "broken", "-- oldest code: 17\nNONSENSE;\n")
    with knowing(*known(), *NEW["gentle"], broken), pytest.raises(StoreError, match="NONSENSE"):
        prepare_schema(url)
    with psycopg.connect(url) as database:
        rows = database.execute(
            "SELECT version, oldest FROM layby.layby_migrations WHERE version >= 17 ORDER BY 1"
        ).fetchall()
    assert rows == [*((each.version, each.oldest) for each in known()[16:]), (TOMORROW, TODAY)]


# --- rights ------------------------------------------------------------------------------


def role(url: str, name: str, *rights: str) -> str:
    """The address for a user with these rights."""
    with psycopg.connect(url) as database:
        database.execute(f"DROP ROLE IF EXISTS {name}".encode())
        database.execute(f"CREATE ROLE {name} LOGIN".encode())
        for right in rights:
            database.execute(right.format(name=name).encode())
    return url.replace(f"{USER}@", f"{name}@")


def test_a_server_needs_no_right_to_change_the_schema(url: str) -> None:
    """If somebody else migrates; else it is told what it needs."""
    prepare_schema(url)
    own = role(
        url,
        "server_only",
        "GRANT USAGE ON SCHEMA layby TO {name}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA layby TO {name}",
    )
    with running(own) as engine:
        assert engine.call(r.promise("p")).is_ok
    with pytest.raises(StoreUnavailable, match="`layby migrate`"):
        migrate_tomorrow(own, "gentle")


def test_the_owner_of_the_schema_needs_no_right_to_create_one(url: str) -> None:
    own = role(url, "schema_owner", "CREATE SCHEMA layby AUTHORIZATION {name}")
    assert [each.version for each in prepare_schema(own)] == [each.version for each in known()]


def test_a_new_database_is_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """How its tables came about, migration by migration, is nobody's question; a later one is."""
    url = cluster().url(cluster().new_database())
    with caplog.at_level("INFO", postgres_migrating.__name__):
        prepare_schema(url)
        (told,) = caplog.messages
        assert f"tables made, schema {known()[-1].version}, " in told
        with knowing(*known(), *NEW["gentle"]):
            prepare_schema(url)
    assert f"{NEW['gentle'][0].title} applied, " in caplog.messages[-1]
