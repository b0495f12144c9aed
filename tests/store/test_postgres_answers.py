"""Connections to PostgreSQL that are open on one side only: what waits for an answer goes on."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import psycopg
import pytest

from layby.core import commands as c
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import StoreAway
from layby.store import postgres_answers
from layby.store.postgres_migrating import prepare_schema
from layby.store.postgres_reader import PostgresReader
from tests.helpers import requests as r
from tests.helpers.open_files import beyond_select
from tests.helpers.postgres import (
    PASSWORD,
    USER,
    being_migrated,
    cluster,
    connected,
    migrated_database,
    until_waiting_to_migrate,
)
from tests.helpers.troubled_link import Cut, TroubledLink
from tests.helpers.two_engines import running, told, until_available

QUICK_S = 0.2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here has to wait for as long as in earnest."""
    monkeypatch.setattr(postgres_answers, "SILENT_S", QUICK_S)
    monkeypatch.setattr(postgres_answers, "LOOK_S", QUICK_S / 4)
    monkeypatch.setattr(postgres_answers, "PROBE_S", 1)


@pytest.fixture
def database() -> str:
    return cluster().new_database()


@pytest.fixture
def acting(database: str) -> Iterator[str]:
    """A user who acts as another, from the first statement on, and has no rights of its own."""
    user, owner = f"{database}_user", f"{database}_owner"
    cluster().execute(f"CREATE ROLE {owner}")
    cluster().execute(f"GRANT CREATE ON DATABASE {database} TO {owner}")
    cluster().execute(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' NOINHERIT IN ROLE {owner}")
    cluster().execute(f"ALTER ROLE {user} SET role = '{owner}'")
    yield user
    for role in (user, owner):
        cluster().execute(f"DROP OWNED BY {role} CASCADE", database)
        cluster().execute(f"DROP ROLE {role}")


@pytest.fixture
def link() -> Iterator[TroubledLink]:
    with TroubledLink(("127.0.0.1", cluster().port)) as link:
        yield link


@pytest.fixture
def engine(link: TroubledLink, database: str) -> Iterator[Engine]:
    with running(cluster().tcp_url(database, port=link.port)) as engine:
        yield engine


@pytest.mark.parametrize("how", ["silent", "far", "near", "reset"])
def test_a_connection_that_is_only_half_open_is_left(
    engine: Engine, link: TroubledLink, how: Cut
) -> None:
    """Whoever asks is told after a few seconds, and served through the next connection."""
    assert engine.call(r.promise("p", 10**15)).is_ok
    assert link.cut(how) >= 2
    assert until_available(engine, r.settle("p")).is_ok


def test_locks_of_a_connection_that_was_lost_are_not_waited_for(
    engine: Engine, link: TroubledLink, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not hear that it is over: its end of the transaction is ended."""
    assert engine.call(r.promise("p", 10**15)).is_ok
    session = engine._store._session  # pyright: ignore[reportAttributeAccessIssue] - as it is
    run, is_cut = session._run, threading.Event()

    def cut_before_the_commit(statements):
        writes = any("promises" in str(text) for text, _ in statements)  # not a look at the clock
        if ("COMMIT", None) in statements and writes and not is_cut.is_set():
            is_cut.set()
            run(statements[:-1])
            link.cut("near")
        return run(statements)

    monkeypatch.setattr(session, "_run", cut_before_the_commit)
    settled = told(engine, r.settle("p"))
    assert is_cut.is_set()
    assert settled.promise.state == "resolved"
    assert told(engine, c.GetPromise(id="p")).promise == settled.promise
    assert engine.replays == 1


def test_a_statement_that_takes_long_is_waited_for(database: str) -> None:
    """Somebody works on it."""
    with connected(cluster().url(database)) as connection:
        connection.execute("SELECT pg_sleep(%s)", (5 * QUICK_S,))


def test_a_statement_that_takes_long_is_waited_for_by_a_user_who_acts_as_another(
    database: str, acting: str
) -> None:
    """The other one may not see what the connections of this user do."""
    url = cluster().tcp_url(database).replace(USER, acting, 1)
    with connected(url) as connection:
        connection.execute("SELECT pg_sleep(%s)", (5 * QUICK_S,))
        assert connection.execute("SELECT current_user").fetchone() == (f"{database}_owner",)


def test_a_user_who_acts_as_another_ends_what_it_has_lost(database: str, acting: str) -> None:
    url = cluster().tcp_url(database).replace(USER, acting, 1)
    with connected(url) as lost, connected(url) as connection:
        lost.execute("BEGIN")
        connection.end(lost.backend)
        with pytest.raises(psycopg.OperationalError):
            lost.execute("SELECT 1")


def test_a_statement_is_asked_about_in_a_process_with_a_thousand_open_files(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with beyond_select():
        test_a_statement_that_takes_long_is_waited_for(database)
    assert [each.getMessage() for each in caplog.records] == []


def test_a_database_that_cannot_be_asked_does_not_work(link: TroubledLink, database: str) -> None:
    """Neither does who is asked about the silence answer."""
    url = cluster().tcp_url(database, port=link.port)
    with connected(url) as connection:
        link.is_silent = True
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def ask_twice(connection: psycopg.Connection[Any], between: Callable[[], object]) -> None:
    with connection.pipeline():
        assert connection.execute("SELECT 1").fetchone() == (1,)
        between()
        connection.execute("SELECT 2").fetchone()


@pytest.mark.timeout(30)
def test_a_database_that_waits_for_the_rest_does_not_work(
    link: TroubledLink, database: str
) -> None:
    """It calls itself active until it has heard the end of what it is sent, and that is lost."""
    url = cluster().tcp_url(database, port=link.port)
    with connected(url) as connection, pytest.raises(psycopg.OperationalError):
        ask_twice(connection, between=lambda: link.cut("silent"))


@pytest.mark.timeout(30)
def test_whoever_waits_to_migrate_notices_that_its_connection_went_silent(
    link: TroubledLink, database: str
) -> None:
    """A server that starts would never come up, nor end when it is asked."""
    with being_migrated(database), ThreadPoolExecutor(1) as threads:
        preparing = threads.submit(prepare_schema, cluster().tcp_url(database, port=link.port))
        until_waiting_to_migrate(database)
        assert link.cut("silent") == 1
    with pytest.raises(StoreAway):
        preparing.result()


@pytest.mark.timeout(30)
def test_whoever_only_looks_notices_that_its_connection_went_silent(
    link: TroubledLink, caplog: pytest.LogCaptureFixture
) -> None:
    url = cluster().tcp_url(migrated_database(), port=link.port)
    with closing(PostgresReader(url, Settings(), next_after)) as reader:
        with reader.transaction():
            assert reader.now() > 0
        link.cut("silent")
        with pytest.raises(StoreAway), reader.transaction():
            reader.now()
    assert "nothing works on a statement" in caplog.text  # nothing else has interrupted it


# --- interrupted -------------------------------------------------------------------------


@contextmanager
def interrupted_when(happens: Callable[[], object]) -> Iterator[None]:
    """As by Ctrl-C, then."""

    def interrupt() -> None:
        while not happens():
            threading.Event().wait(0.01)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


SLEEPERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = '{}'"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("is_alone", [True, False])
def test_whoever_is_interrupted_leaves_nothing_at_work(
    database: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_alone: bool,
) -> None:
    """Neither alone nor among others, of which psycopg would tell that they failed."""
    monkeypatch.setattr(postgres_answers, "END_S", 20.0)  # the machine may be busy
    sleepers = SLEEPERS.format(database)

    def sleep() -> None:
        with (
            connected(cluster().url(database)) as connection,
            interrupted_when(lambda: cluster().execute(sleepers) == [(1,)]),
            nullcontext() if is_alone else connection.pipeline(),
        ):
            connection.execute("SELECT pg_sleep(100)").fetchall()

    with pytest.raises(KeyboardInterrupt):
        sleep()
    while cluster().execute(sleepers) == [(1,)]:
        threading.Event().wait(0.01)
    assert caplog.messages == []


@pytest.mark.timeout(30)
def test_whoever_is_interrupted_does_not_wait_for_a_database_that_is_silent(
    link: TroubledLink, database: str
) -> None:
    """Red on 1105883c: it went on waiting, and was told then that PostgreSQL was away."""

    def ask() -> None:
        with connected(cluster().tcp_url(database, port=link.port)) as connection:
            watch = connection.watch
            assert watch is not None
            link.is_silent = True
            with interrupted_when(lambda: watch._waiting):
                connection.execute("SELECT 1")

    with pytest.raises(KeyboardInterrupt):
        ask()
