"""PostgreSQL as a store: opening it, what it is told, and what happens while it is away."""

import logging
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, cast

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.clock import SystemClock
from layby.core import commands as c
from layby.core.changes import Changes
from layby.core.footprint import Footprint
from layby.core.model import Wait
from layby.core.queries import SearchPromises
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.opening import clock_of, open_store
from layby.errors import (
    LaybyError,
    StoreAway,
    StoreRefused,
    StoreUnavailable,
    StoreUnreadable,
    UsageError,
)
from layby.store import migrate, postgres_failures
from layby.store.bulk import Bulk, Wide
from layby.store.postgres import PostgresStore
from layby.store.postgres_address import without_password
from layby.store.postgres_connection import (
    BY_INDEX,
    LOOK_UP_S,
    NEWER_LIMITS,
    settings_of,
)
from layby.store.postgres_migrating import prepare_schema
from layby.store.postgres_reader import PostgresReader
from layby.store.postgres_session import _named, _positional, _without_nul
from layby.store.session import packed
from tests.helpers import requests as r
from tests.helpers.keys import write_certificate
from tests.helpers.postgres import PASSWORD, USER, Cluster, cluster, connected, own_cluster
from tests.helpers.two_engines import PATIENCE_S, running, submit, told, until_available


@pytest.fixture
def url() -> str:
    return cluster().url(cluster().new_database())


def opened(url: str) -> PostgresStore:
    return PostgresStore(url, Settings(), next_after)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with running(url) as engine:
        yield engine


# --- pipelines ---------------------------------------------------------------------------


def test_only_the_first_error_of_a_pipeline_is_told(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that follow from it are not logged: nobody could do anything about them."""
    with closing(opened(url)) as store:
        session = store._session
        session.begin()
        session.execute("SELECT 1 / 0")
        for _ in range(100):  # their refusals come back while others are still being sent
            session.execute(f"SELECT '{'x' * 100_000}'")
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.commit()
        session.roll_back()
        assert store.load(Footprint(ids={"p"}), now=0).promises.get("p") is None
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


# --- addresses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:secret@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u:s%40cret@h/d?sslmode=require", "postgresql://u:***@h/d?sslmode=require"),
        ("postgresql://u:a:b@c@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p#SECRET?x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:SEC/RET@h/d", "postgresql://u:***@h/d"),
        ("postgresql:u:secret@/d", "postgresql:***"),
        ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
        ("password = 'a secret' dbname=d", "password=*** dbname=d"),
        ("postgres://h/d?user=u&password=secret", "postgres://h/d?user=u&password=***"),
        ("postgres://h/d?%70ass%57ord=secret", "postgres://h/d?%70ass%57ord=***"),
        ("postgresql://u@/d?host=/tmp", "postgresql://u@/d?host=/tmp"),
        ("postgresql:///d", "postgresql:///d"),
    ],
)
def test_a_password_is_not_shown(address: str, shown: str) -> None:
    assert without_password(address) == shown


@pytest.mark.parametrize(
    "words",
    [
        "host=h password=secret dbname=d",
        "sslmode=prefer host=h password=secret",
        "application_name = 'a b' password=secret",
    ],
)
def test_words_of_libpq_are_not_taken_for_a_file(words: str) -> None:
    with pytest.raises(UsageError, match=r"write it as a URL") as refused:
        open_store(words, "full", Settings())
    assert "secret" not in str(refused.value)


def test_a_wrong_password_is_refused_without_being_repeated() -> None:
    address = cluster().tcp_url("postgres", password="not-the-password")
    with pytest.raises(StoreUnavailable, match="PGPASSWORD") as refused:
        opened(address)
    shown = f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
    assert "not-the-password" not in shown


def test_a_user_who_may_not_connect_is_refused() -> None:
    """Also where PostgreSQL asks for no password: the operating system or it says who you are."""
    name = cluster().new_database()
    cluster().execute(f"CREATE ROLE nobody_{name} NOLOGIN")
    cluster().execute(f"CREATE ROLE stranger_{name} LOGIN")
    cluster().execute(f"REVOKE CONNECT ON DATABASE {name} FROM public")
    for user in ("unheard_of", f"nobody_{name}", f"stranger_{name}"):
        address = cluster().url(name).replace(f"//{USER}@", f"//{user}@")
        with pytest.raises(StoreRefused, match="does not accept this user"):
            opened(address)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ('FATAL:  Peer authentication failed for user "u"', StoreRefused),
        ('FATAL:  LDAP authentication failed for user "u"', StoreRefused),
        ('FATAL:  password authentication failed for user "u"', StoreRefused),
        ('FATAL:  pg_hba.conf rejects connection for host "h"', StoreRefused),
        ("FATAL:  sorry, too many clients already", StoreAway),
        ('FATAL:  too many connections for role "u"', StoreAway),
        ('FATAL:  too many connections for database "d"', StoreAway),
        ("FATAL:  remaining connection slots are reserved for superusers", StoreAway),
    ],
)
def test_what_a_refused_connection_is_told(said: str, failure: type[StoreAway]) -> None:
    """libpq passes on only the words."""
    found = postgres_failures.explained(psycopg.OperationalError(said), "name", connecting=True)
    assert type(found) is failure
    assert "start it, or check" not in str(found)


ANSWERED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
TLS, SETTINGS, ADDRESS = "with the TLS that was asked for", "with these settings", "not an address"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("server does not support SSL, but SSL was required", TLS),
        ("SSL error: certificate verify failed", TLS),
        ("SSL error: tlsv1 alert unknown ca", TLS),
        ("SSL error: tlsv1 alert protocol version", TLS),
        ("SSL error: sslv3 alert handshake failure", TLS),
        ('server certificate for "a" does not match host name "b"', TLS),
        ('root certificate file "/f" does not exist', TLS),
        ('could not read root certificate file "/f": no certificate or crl found', TLS),
        ('could not read certificate file "/f": no start line', TLS),
        ('could not open certificate file "/f": Permission denied', TLS),
        ('could not load private key file "/f": key values mismatch', TLS),
        ('certificate present, but not private key file "/f"', TLS),
        ('private key file "/f" has group or world access; file must have u=rw', TLS),
        ('private key file "/f" is not a regular file', TLS),
        ("server did not request an SSL certificate", TLS),
        ("server accepted connection without a valid SSL certificate", TLS),
        ("channel binding required, but SSL not in use", TLS),
        ('weak sslmode "prefer" may not be used with sslnegotiation=direct', SETTINGS),
        ("invalid SSL protocol version range", SETTINGS),
        ('server only supports protocol 3.0, but "min_protocol_version" was set to 3.2', SETTINGS),
        ('authentication method requirement "gss" failed: server requested SASL', SETTINGS),
        ("GSSAPI encryption required but no credential cache", SETTINGS),
        ('FATAL:  unrecognized configuration parameter "nonsense"', SETTINGS),
        ('FATAL:  invalid value for parameter "client_encoding": "nonsense"', SETTINGS),
        ("FATAL:  --nonsense requires a value", SETTINGS),
        ("FATAL:  connection requires a valid client certificate", "does not accept this user"),
        ('invalid "ssl_min_protocol_version" value: "nonsense"', ADDRESS),
        ('could not parse network address "nonsense": Name or service not known', ADDRESS),
        ("could not match 3 port numbers to 2 hosts", ADDRESS),
        ('Unix-domain socket path "/f" is too long (maximum 107 bytes)', ADDRESS),
    ],
)
def test_what_never_comes_right_by_itself_is_refused(said: str, why: str) -> None:
    """Somebody has to change the address, a file, or PostgreSQL's settings."""
    error = psycopg.OperationalError(ANSWERED + said)
    found = postgres_failures.explained(error, "name", connecting=True)
    assert type(found) is StoreRefused
    assert why in str(found)


@pytest.mark.parametrize(
    "said",
    [
        "Connection refused",
        "SSL error: unexpected eof while reading",
        "SSL error: tlsv1 alert internal error",
        "server closed the connection unexpectedly",
        "session is read-only",
        "server is in hot standby mode",
        "FATAL:  the database system is starting up",
    ],
)
def test_what_may_come_right_by_itself_is_waited_for(said: str) -> None:
    """A start, an end or a change of the primary."""
    error = psycopg.OperationalError(ANSWERED + said)
    assert type(postgres_failures.explained(error, "name", connecting=True)) is StoreAway


def test_of_several_addresses_the_one_that_refuses_is_told() -> None:
    """`localhost` is two: where nothing listens on ::1, that is not what is wrong."""
    refused = f"{ANSWERED}server does not support SSL, but SSL was required"
    away = "connection failed: Connection refused"
    said = f"{away}\nMultiple connection attempts failed. All failures were:\n- {refused}\n- {away}"
    found = postgres_failures.explained(psycopg.OperationalError(said), "name", connecting=True)
    assert type(found) is StoreRefused
    assert refused in str(found)
    assert away not in str(found)


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_server_without_tls_is_refused_where_tls_is_required(mode: str) -> None:
    with pytest.raises(StoreRefused, match=r"sslmode.*server does not support SSL"):
        opened(f"{cluster().tcp_url('postgres')}?sslmode={mode}")


def test_tls_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A certificate that is not trusted or has another name, a missing file, an empty key."""
    with own_cluster() as server:
        certificate = with_tls(server)
        stranger, key = tmp_path / "stranger.crt", tmp_path / "empty.key"
        write_certificate(stranger, key, "stranger.example")
        key.write_text("")
        roots = f"&sslrootcert={certificate}"
        address = f"{server.tcp_url('postgres')}?sslmode="
        for wrong, why in {
            f"verify-full&sslrootcert={stranger}": "certificate verify failed",
            f"verify-full{roots}": "does not match host name",
            "verify-ca&sslrootcert=/nowhere": "does not exist",
            f"require&sslcert={certificate}&sslkey={key}": "private key",
            "require&ssl_max_protocol_version=TLSv1.2": "protocol version",
        }.items():
            with pytest.raises(StoreRefused, match=f"sslmode.*{why}"):
                opened(address + wrong)
        opened(f"{address}verify-ca{roots}").close()


def with_tls(server: Cluster) -> Path:
    """Its certificate; it speaks nothing older than TLS 1.3."""
    if not server.execute("SHOW ssl_library")[0][0]:
        pytest.skip("this PostgreSQL was built without TLS")
    key = server.data / "server.key"
    certificate = server.data / "server.crt"
    write_certificate(certificate, key, "somebody.example")
    for each in (key, certificate):
        shutil.chown(each, server.data.owner())
    server.execute("ALTER SYSTEM SET ssl = on")
    server.execute("ALTER SYSTEM SET ssl_min_protocol_version = 'TLSv1.3'")
    server.stop()
    server.start()
    return certificate


@pytest.mark.parametrize(
    "end",
    [
        "127.0.0.1:1/d?sslmoode=require",
        "127.0.0.1:1/d?sslmode=requires",
        "127.0.0.1:port/d",
        "127.0.0.1:99999/d",
        "[::1/d",
        "/d?service=unheard_of",
    ],
)
def test_an_address_that_libpq_does_not_understand_is_refused(end: str) -> None:
    """Waiting for a database would not help."""
    with pytest.raises(StoreRefused, match="is not an address") as refused:
        opened(f"postgresql://{USER}:{PASSWORD}@{end}")
    assert PASSWORD not in f"{refused.value!r} {refused.value.__cause__!r}"


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("tail@secret", "failed to resolve host 'secret@127.0.0.1'"),
        ("secret/tail", 'invalid integer value "secret" for connection option "port"'),
    ],
)
def test_no_part_of_a_password_is_shown(password: str, said: str) -> None:
    """libpq takes an @ for the end of it, and a / for the end of the host."""
    url = f"postgresql://{USER}:{password}@127.0.0.1:1/d"
    error = psycopg.OperationalError(said)
    found = postgres_failures.explained(error, "name", url, connecting=True)
    assert "write @ as %40 and / as %2F" in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/d",
        f"postgresql://{USER}:{PASSWORD}@127.0.0.1:port/d",
        f"postgresql://{USER}:{PASSWORD}@[::1/d",
    ],
)
def test_an_address_that_leads_nowhere_says_so_without_the_password(address: str) -> None:
    with pytest.raises(LaybyError) as refused:
        opened(address)
    assert PASSWORD not in f"{refused.value!r} {refused.value.__cause__!r}"
    assert address.partition("@")[2] in str(refused.value)


def test_a_database_that_does_not_exist_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere.*does not exist: create it"):
        opened(cluster().url("nowhere"))


# --- the schema --------------------------------------------------------------------------


def test_every_text_is_compared_by_its_bytes(url: str) -> None:
    """Whatever the locale of the database: cursors and ranges of ids depend on it."""
    opened(url).close()
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT table_name, column_name, collation_name FROM information_schema.columns "
            "WHERE table_schema = 'layby' AND data_type = 'text' AND table_name <> ALL (%s)",
            (["task_executions", "triggers", "task_tries"],),
        ).fetchall()
    assert found
    assert [each for each in found if each[2] != "C"] == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_left_alone(encoding: str) -> None:
    name = f"of_{encoding.lower()}"
    cluster().execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    with pytest.raises(StoreUnreadable, match=f"{encoding}.* ENCODING 'UTF8' TEMPLATE template0"):
        opened(cluster().url(name))
    assert not cluster().execute("SELECT FROM pg_namespace WHERE nspname = 'layby'", name)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("where", ["role", "environment"])
def test_texts_are_sent_as_they_are_whatever_the_encoding_of_other_clients(
    monkeypatch: pytest.MonkeyPatch, encoding: str, where: str
) -> None:
    name = cluster().new_database()
    if where == "role":
        cluster().execute(f"ALTER ROLE {USER} IN DATABASE {name} SET client_encoding = {encoding}")
    else:
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with running(cluster().url(name)) as engine:
        assert engine.call(r.promise("für €5 🛒", 10**15)).is_ok
        assert told(engine, c.GetPromise(id="für €5 🛒")).promise.id == "für €5 🛒"


def test_an_idle_connection_is_kept_whatever_the_limit_of_other_clients() -> None:
    name = cluster().new_database()
    cluster().execute(f"ALTER ROLE {USER} IN DATABASE {name} SET idle_session_timeout = '1s'")
    with connected(cluster().url(name)) as connection:
        limit = connection.execute("SHOW idle_session_timeout").fetchone()
    assert limit == ("0",)


@pytest.mark.parametrize(("version", "limit"), [(16_0004, None), (17_0000, "0"), (18_0004, "0")])
def test_a_transaction_has_no_limit_where_postgres_has_one(version: int, limit: str | None) -> None:
    """The one that all of layby's tests use may be older, so it is asked about the number."""
    assert settings_of(version, {"jit": "off"}).get("transaction_timeout") == limit


def test_no_transaction_is_ended_by_the_limit_of_other_clients() -> None:
    """One that is too old to have such a limit must not be told of it: it would refuse us."""
    (version,) = cluster().execute("SHOW server_version_num")[0]
    has_limit = int(version) >= NEWER_LIMITS
    name = cluster().new_database()
    if has_limit:
        cluster().execute(f"ALTER ROLE {USER} IN DATABASE {name} SET transaction_timeout = '1s'")
    with connected(cluster().url(name)) as connection:
        asked = "SELECT setting FROM pg_settings WHERE name = 'transaction_timeout'"
        assert connection.execute(asked).fetchall() == [("0",)] * has_limit


def test_several_processes_may_migrate_at_once(url: str) -> None:
    failures: list[BaseException] = []

    def prepare() -> None:
        try:
            prepare_schema(url)
        except BaseException as failure:  # noqa: BLE001 - shown below
            failures.append(failure)

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT version FROM layby.layby_migrations").fetchall()
    assert sorted(rows) == [(each.version,) for each in migrate.known()]


def test_a_schema_of_another_program_is_left_alone(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA layby")
        connection.execute("CREATE TABLE layby.theirs (x int)")
    with pytest.raises(StoreUnreadable, match="belongs to another program"):
        opened(url)


def test_a_newer_schema_is_refused(url: str) -> None:
    opened(url).close()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO layby.layby_migrations VALUES (9999, 'later', '', 9999)")
    with pytest.raises(StoreUnreadable, match="newer layby"):
        opened(url)


def test_a_user_without_rights_is_told_what_it_needs(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreUnavailable, match="let it create a schema"):
        opened(url.replace(f"{USER}@", "guest@"))


def test_a_user_without_a_right_to_a_table_is_told_which_it_needs() -> None:
    name = cluster().new_database()
    opened(cluster().url(name)).close()
    reader = f"reader_{name}"
    cluster().execute(f"CREATE ROLE {reader} LOGIN")
    cluster().execute(f"GRANT USAGE ON SCHEMA layby TO {reader}", name)
    cluster().execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA layby TO {reader}", name)
    url = cluster().url(name).replace(f"//{USER}@", f"//{reader}@")
    refused = pytest.raises(StoreUnavailable, match=r"INSERT, UPDATE and DELETE .*server_times")
    with closing(opened(url)) as store, refused:
        store.clock_beside(lambda: 0)


# --- plans -------------------------------------------------------------------------------


def test_statements_look_rows_up_by_their_keys(url: str) -> None:
    """On tables of which the planner knows nothing: no statement of a batch reads a whole one."""
    with closing(opened(url)) as store:
        statements = {
            name: each
            for name, each in vars(store._sql).items()
            if isinstance(each, str | Bulk | Wide) and name not in WHOLE
        }
        with connected(url, BY_INDEX) as connection:
            for name, each in statements.items():
                plan = "\n".join(explained(connection, text_of(each)))
                assert not re.search(r"Seq Scan on (?!j|i|r)\w", plan), f"{name}:\n{plan}"
                assert is_bounded(plan), f"{name}:\n{plan}"


def test_which_of_many_rows_have_no_value_is_looked_up(url: str) -> None:
    """One by one, 10,000 items of earlier calls of a map would keep everybody waiting for 1.4 s."""
    with closing(opened(url)) as store, connected(url, BY_INDEX) as connection:
        plan = "\n".join(explained(connection, store._sql.partly_lean_pairs, "(VERBOSE) "))
        assert "hashed SubPlan" in plan


WHOLE = {"pair", "lean_pair", "bare_pair", "store_time", "put_store_time"}
WHOLE |= {"patterns", "permit_holders"}
"""Not statements, meant to read everything, or not used here. Patterns are few, and so are permits
that are out.
"""


def text_of(statement: str | Bulk | Wide) -> str:
    if isinstance(statement, Wide):
        return statement.text(len(statement.names), 1)
    return statement if isinstance(statement, str) else statement.text


def explained(connection: psycopg.Connection, statement: str, how: str = "") -> list[str]:
    text = _positional(statement) if "?" in statement else _named(statement)
    numbers = count(1)
    named, marks = re.subn(r"%s|%\(\w+\)s", lambda _: f"${next(numbers)}", text)
    connection.execute(f"PREPARE looked AS {named}".replace("%%", "%").encode())
    given = ", ".join(["NULL"] * marks)
    look = f"EXPLAIN {how}EXECUTE looked{f'({given})' if marks else ''}"
    rows = connection.execute(look.encode()).fetchall()
    connection.execute("DEALLOCATE looked")
    return [line for (line,) in rows]


def is_bounded(plan: str) -> bool:
    """Every scan of one of our tables has a condition that its index serves."""
    lines = plan.splitlines()
    for at, line in enumerate(lines):
        found = re.search(r"Index (?:Only )?Scan (?:Backward )?using (\w+)", line)
        if not found:
            continue
        following = " ".join(lines[at + 1 : at + 3])
        is_partial = found.group(1) in PARTIAL
        if "Index Cond" not in following and not is_partial and "Limit" not in plan:
            return False
    return True


PARTIAL = {
    "holders_living",
    "holders_gone",
    "holders_expiry",
    "limits_next",
    "limits_patterns",
    "promises_timeout",
    "promises_wake",
    "promises_tail",
    "schedules_next",
    "server_times_pkey",
}
"""Indexes that hold little: all of it may be read."""


def test_a_wait_changes_on_its_own_page(url: str) -> None:
    """So its indexes stay as they are, however many wait besides."""
    blocks = """
        SELECT awaited, (CAST(CAST(ctid AS text) AS point))[0] FROM waits
        WHERE awaited LIKE '%0' ORDER BY awaited
    """
    waits = {(f"s{at:04}", f"t{at:04}"): Wait(f"s{at:04}", f"t{at:04}") for at in range(2_000)}
    read = {key: Wait(*key, "read") for key in waits if key[0].endswith("0")}
    with closing(opened(url)) as store:
        with store.transaction():
            store.save(Changes(waits=waits))
        with store.transaction():
            before = store._session.rows(blocks, {})
        with store.transaction():
            store.save(Changes(waits=read))
        with store.transaction():
            assert store._session.rows(blocks, {}) == before
            assert len({block for _, block in before}) > 10


# --- away --------------------------------------------------------------------------------


def until_refused(engine: Engine) -> None:
    """First the connection ends, and it may take a while until a new one is tried."""
    until = monotonic() + PATIENCE_S
    while monotonic() < until:
        try:
            engine.call(r.promise("meanwhile"))
        except StoreRefused:
            return
        except StoreAway:
            threading.Event().wait(0.05)
    raise AssertionError("it was never refused")


def test_who_had_been_let_in_tries_again() -> None:
    """A password that is not accepted any more is an outage, and ends as one."""
    name = cluster().new_database()
    guest = f"guest_{name}"
    cluster().execute(f"CREATE ROLE {guest} LOGIN PASSWORD 'one'")
    cluster().execute(f"GRANT CREATE ON DATABASE {name} TO {guest}")
    with running(f"postgresql://{guest}:one@127.0.0.1:{cluster().port}/{name}") as engine:
        assert engine.call(r.promise("before")).is_ok
        cluster().execute(f"ALTER ROLE {guest} PASSWORD 'two'")
        cluster().execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{guest}'"
        )
        until_refused(engine)
        cluster().execute(f"ALTER ROLE {guest} PASSWORD 'one'")
        assert until_available(engine, r.promise("afterwards")).is_ok


@pytest.fixture(scope="module")
def fragile() -> Iterator[Cluster]:
    """One that is stopped now and then."""
    with own_cluster() as made:
        yield made


def test_a_restart_is_survived(fragile: Cluster) -> None:
    """Meanwhile callers are told; takes and watches that wait go on waiting."""
    with running(fragile.url(fragile.new_database())) as engine:
        assert engine.call(r.promise("p")).is_ok
        watching, taking = submit(engine, [c.WatchPromise(id="p"), r.take(1, wait_ms=600_000)])
        assert engine.call(c.GetPromise(id="p")).is_ok
        fragile.stop()
        with pytest.raises(StoreAway):
            engine.call(r.promise("q"))
        assert not watching.done()
        assert not taking.done()
        fragile.start()
        settled = until_available(engine, r.settle("p"))
        assert settled.data.promise.state == "resolved"
        assert watching.result(PATIENCE_S).data.promise.state == "resolved"
        assert until_available(engine, r.run(a="")).is_ok
        assert len(taking.result(PATIENCE_S).data.claims) == 1


def test_a_commit_whose_answer_was_lost_is_looked_up(engine: Engine, monkeypatch) -> None:
    """It was done: so it is answered as done, and not done again."""
    lose_the_next_commit(engine, monkeypatch, is_done=True)
    created = told(engine, r.promise("p", 10**15))
    assert engine.replays == 0
    assert told(engine, c.GetPromise(id="p")).promise == created.promise


def test_a_commit_that_did_not_happen_is_replayed(engine: Engine, monkeypatch) -> None:
    lose_the_next_commit(engine, monkeypatch, is_done=False)
    assert engine.call(r.promise("p")).is_ok
    assert engine.replays == 1
    assert engine.call(c.GetPromise(id="p")).is_ok


@pytest.mark.parametrize("is_used_again", [True, False])
def test_a_commit_that_a_crash_has_lost_is_replayed(
    fragile: Cluster, monkeypatch, is_used_again: bool
) -> None:
    """PostgreSQL forgets transaction ids that never reached its log, and gives them to others.

    So it may say of a lost one that it is committed, or that it lies in the future.
    """
    with running(fragile.url(fragile.new_database())) as engine:
        crash_at_the_next_commit(engine, fragile, monkeypatch, is_used_again=is_used_again)
        began = monotonic()
        assert engine.call(r.promise("p")).is_ok
        assert engine.replays == 1
        assert engine.call(c.GetPromise(id="p")).is_ok
        assert monotonic() - began < LOOK_UP_S


def crash_at_the_next_commit(
    engine: Engine, fragile: Cluster, monkeypatch, *, is_used_again: bool
) -> None:
    """Before anything is written."""
    session: Any = cast("Any", engine._store)._session
    run = session._run

    def broken(statements):
        if statements[-1][0] != "COMMIT" or len(statements) == 1:
            return run(statements)
        monkeypatch.setattr(session, "_run", run)
        fragile.stop(signal.SIGQUIT)
        fragile.start()
        if is_used_again:
            use_transaction_ids(fragile, int(session._xact_id))
        session._connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(session, "_run", broken)


def use_transaction_ids(cluster: Cluster, until: int) -> None:
    with psycopg.connect(cluster.url("postgres"), autocommit=True) as connection:
        used = [0]
        while used[-1] < until:
            used += connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()[0]
        assert until in used, "it was not lost"


def lose_the_next_commit(engine: Engine, monkeypatch, *, is_done: bool) -> None:
    """The connection breaks when the writes have been sent: before they are committed, or after."""
    store = engine._store
    assert isinstance(store, PostgresStore)
    session: Any = store._session
    run = session._run

    def broken(statements):
        if statements[-1][0] != "COMMIT" or len(statements) == 1:
            return run(statements)
        monkeypatch.setattr(session, "_run", run)
        run(statements if is_done else statements[:-1])
        session._connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(session, "_run", broken)


def test_a_session_that_is_ended_is_made_again(engine: Engine, url: str) -> None:
    """As an administrator does it, or a failover."""
    assert engine.call(r.promise("p")).is_ok
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert until_available(engine, r.settle("p")).is_ok


def test_the_database_says_what_time_it_is(engine: Engine, url: str) -> None:
    """And how far each process has come is stored, so that no failover sets time back."""
    created = told(engine, r.promise("p")).promise.created_at
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT max(at), (extract(epoch FROM clock_timestamp()) * 1000)::bigint "
            "FROM layby.server_times"
        ).fetchone()
    assert row is not None
    assert created == row[0] <= row[1] < created + 60_000


def test_time_goes_on_where_others_have_come(url: str) -> None:
    ahead = SystemClock().now() + 3_600_000
    with closing(opened(url)), psycopg.connect(url) as connection:
        connection.execute("INSERT INTO layby.server_times VALUES ('other', %s)", (ahead,))
    with running(url) as engine:
        assert told(engine, r.promise("p")).promise.created_at >= ahead


@pytest.mark.parametrize("value", ["50%", "a?b", ":name", "'", '"', "é"])
def test_texts_are_bound_and_never_read_as_sql(engine: Engine, value: str) -> None:
    tags = {"k": value, "resonate:target": r.OTHER}
    made = engine.call(c.CreatePromise(id=f"p{value}", timeout_at=10**15, tags=tags))
    assert engine.call(c.GetPromise(id=f"p{value}")).data == made.data


def test_an_id_with_nul_is_refused_for_itself(engine: Engine) -> None:
    """No text in a database has one: it is looked for in vain, and its neighbours are answered."""
    refused, made, read = submit(
        engine, [r.promise("a\0b"), r.promise("a\\u0000b"), c.GetPromise(id="\\\0")]
    )
    assert [each.result(PATIENCE_S).status for each in (refused, made, read)] == [400, 200, 400]
    assert told(engine, c.GetPromise(id="a\\u0000b")).promise.id == "a\\u0000b"


@given(st.lists(st.text(st.sampled_from('\0\\u0a\1["'))))
def test_nul_is_exchanged_in_lists_and_nothing_else(texts: list[str]) -> None:
    looked_for = msgspec.json.decode(_without_nul(packed(texts)))
    assert looked_for == [each.replace("\0", "\1") for each in texts]


# --- locked tables -----------------------------------------------------------------------


def test_a_table_that_somebody_keeps_locked_is_told_to_whoever_opens_or_reads(url: str) -> None:
    """Nobody replays that. What, which database, what to do: where a bug would be told else."""
    name = without_password(url)
    said = re.escape(name) + ".*locked.*: try again, or look for an open transaction"
    with running(url) as engine, psycopg.connect(url) as other, closing(opened(url)) as store:
        other.execute("LOCK TABLE layby.promises, layby.server_times IN ACCESS EXCLUSIVE MODE")
        [search] = submit(engine, [SearchPromises()])
        with pytest.raises(StoreUnavailable, match=said):
            search.result(PATIENCE_S)
        with (
            closing(PostgresReader(url, Settings(), next_after)) as reader,
            pytest.raises(StoreUnavailable, match=said),
            reader.transaction(),
        ):
            reader.stored_promises(["a"])
        with pytest.raises(StoreUnavailable, match=said):
            clock_of(store, SystemClock())
        with pytest.raises(StoreUnavailable, match=said):
            Engine(store, SystemClock()).start_inline()


def test_a_database_that_only_allows_reading_is_told_without_a_traceback(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second somebody looks whether the messages of this process are still its own."""
    looked = SimpleQueue[int]()

    def refuse(_: PostgresStore, now: int) -> list[Any]:
        looked.put(now)
        raise StoreUnavailable("it only allows reading")

    with running(url):
        monkeypatch.setattr(PostgresStore, "renew_messages", refuse)
        for _ in range(2):
            looked.get(timeout=PATIENCE_S)
    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.getMessage().partition(": ")[2] for each in told] == ["it only allows reading"]
    assert told[0].exc_info is None
