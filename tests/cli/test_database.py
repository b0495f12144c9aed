"""Commands on a PostgreSQL database: the same as on a file, and no password is shown."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layby.cli.connection import find_place
from layby.store.migrate import known
from tests.helpers.cli_processes import Process
from tests.helpers.command_line import Said, typed
from tests.helpers.postgres import PASSWORD, cluster
from tests.helpers.signals import inherited
from tests.helpers.troubled_link import TroubledLink

FLOWS = Path(__file__).with_name("flows.py")


class Database:
    """One that commands are typed for."""

    def __init__(self) -> None:
        self.name = cluster().new_database()
        self.url = cluster().tcp_url(self.name)
        self.masked = self.url.replace(PASSWORD, "***")
        self.all: list[Said] = []

    def typed(self, *arguments: object, **env: str) -> Said:
        said = typed(*arguments, "--db", self.url, **env)
        self.all.append(said)
        return said


@pytest.fixture
def empty() -> Iterator[Database]:
    """Without our tables."""
    made = Database()
    yield made
    for said in made.all:
        assert PASSWORD not in said.out + said.err


@pytest.fixture
def database(empty: Database) -> Database:
    assert empty.typed("migrate").code == 0
    return empty


def test_migrating_says_what_it_does(empty: Database) -> None:
    newest = known()[-1]
    said = empty.typed("migrate", "--check")
    assert (said.code, f"{newest.version:04}_{newest.name} is missing" in said.out) == (1, True)
    assert empty.masked in said.out
    applied = empty.typed("migrate", "--json").json["applied"]
    assert applied[-1] == f"{newest.version:04}_{newest.name}"
    assert "nothing to do" in empty.typed("migrate").lines[0]
    assert empty.typed("migrate", "--check").code == 0


@pytest.mark.parametrize("command", [["runs"], ["doctor"], ["waiting"], ["tasks", "search"]])
def test_reads_do_not_migrate(empty: Database, command: list[str]) -> None:
    """A database without our tables is told from one with them."""
    said = empty.typed(*command)
    said.complains(2, empty.masked, "`layby migrate` makes it one")
    assert cluster().execute("SELECT 1 FROM pg_namespace WHERE nspname = 'layby'", empty.name) == []


def test_promises_and_schedules(database: Database) -> None:
    """Written by one command, read by the next."""
    assert database.typed("promises", "create", "p", "--timeout", "1h").code == 0
    assert database.typed("promises", "get", "p", "--json").json["promise"]["state"] == "pending"
    assert (
        database.typed("promises", "resolve", "p", "--json").json["promise"]["state"] == "resolved"
    )
    assert database.typed("promises", "search", "--json").code == 0
    assert database.typed("schedules", "list", "--json").code == 0
    assert database.typed("tasks", "search", "--json").code == 0


def test_a_run_is_done_and_looked_at(database: Database) -> None:
    said = database.typed("run", f"{FLOWS}:flow", "--id", "r", "--context", "n=2", "--json")
    assert said.code == 0, said
    listed: Any = database.typed("runs", "--json").json
    assert "r" in str(listed)
    for command in (["tree", "r"], ["why", "r"], ["waiting"]):
        assert database.typed(*command).code == 0, command
    assert database.typed("prune", "--completed", "0s", "--dry-run", "--json").json["roots"] == 1
    assert database.typed("prune", "--completed", "0s", "--json").json["roots"] == 1


def test_the_doctor_finds_what_is_wrong(database: Database) -> None:
    assert database.typed("promises", "create", "p", "--timeout", "1h").code == 0
    report = database.typed("doctor", "--json").json
    assert (report["ok"], report["file"], report["counts"]["promises"]) == (
        True,
        database.masked,
        {"pending": 1},
    )
    cluster().execute("INSERT INTO layby.listeners VALUES ('none', 'poll://any@g')", database.name)
    said = database.typed("doctor")
    assert said.code == 1
    assert "none" in said.out


def test_a_worker_works(database: Database) -> None:
    """By LAYBY_DB too, which `ps` does not show."""
    worker = Process(("-m", "layby.cli", "worker", str(FLOWS)), LAYBY_DB=database.url)
    with worker:
        worker.hear(f"layby works for {database.masked}")
        said = database.typed("run", f"{FLOWS}:flow", "--context", "n=2", "--json", "--slots", "1")
        assert said.code == 0, said
        worker.stop()


def test_it_is_away() -> None:
    """What is told names the address, without the password."""
    said = typed("runs", "--db", f"postgresql://layby:{PASSWORD}@127.0.0.1:1/none")
    assert said.code == 2
    assert "postgresql://layby:***@127.0.0.1:1/none" in said.err
    assert PASSWORD not in said.out + said.err


STARTED = {
    "worker": ("worker", str(FLOWS)),
    "serve": ("serve", "--port=0"),
    "dev": ("dev", "--port=0"),
    "run": ("run", f"{FLOWS}:flow"),
    "runs": ("runs",),
    "migrate": ("migrate",),
}


@pytest.mark.parametrize("command", STARTED)
def test_who_is_not_let_in_at_the_start_ends(command: str) -> None:
    """With exit code 2 and one line about it; nobody tries a wrong password for ever."""
    wrong = "not-the-password"
    with Process(
        ("-m", "layby.cli", *STARTED[command]),
        LAYBY_DB=cluster().tcp_url("postgres", password=wrong),
        LAYBY_LOG__LEVEL="debug",
    ) as process:
        assert process.end() == 2, process.tail
    assert [line for line in process.said if "does not accept the password" in line] == [
        process.said[-1]
    ]
    assert process.said[-1].startswith("layby: postgresql://")
    assert wrong not in process.tail


def test_a_worker_ends_when_there_is_no_such_database() -> None:
    """Nobody creates it while the worker waits."""
    with Process(
        ("-m", "layby.cli", "worker", str(FLOWS)), LAYBY_DB=cluster().url("nowhere")
    ) as worker:
        assert worker.end() == 2, worker.tail
    assert "the database does not exist: create it" in worker.said[-1]


@pytest.mark.parametrize("wrong", ["?sslmoode=require", "?sslmode=requires"])
def test_a_worker_ends_when_its_address_cannot_be_understood(wrong: str) -> None:
    """Waiting would not help."""
    with Process(
        ("-m", "layby.cli", "worker", str(FLOWS)),
        LAYBY_DB=f"postgresql://layby@127.0.0.1:1/d{wrong}",
    ) as worker:
        assert worker.end() == 2, worker.tail
    assert "is not an address" in worker.said[-1]


def test_a_worker_ends_when_its_database_has_no_tls() -> None:
    """It waited for ever, though its address asks for TLS and PostgreSQL answers."""
    with Process(
        ("-m", "layby.cli", "worker", str(FLOWS)),
        LAYBY_DB=f"{cluster().tcp_url('postgres')}?sslmode=require",
    ) as worker:
        assert worker.end() == 2, worker.tail
    assert "check `sslmode`" in worker.said[-1]


def test_a_worker_waits_for_a_database_that_does_not_answer() -> None:
    """It may be started before PostgreSQL."""
    address = f"postgresql://layby:{PASSWORD}@127.0.0.1:1/none"
    with Process(("-m", "layby.cli", "worker", str(FLOWS)), LAYBY_DB=address) as worker:
        worker.hear("trying again")
        worker.hear("trying again", after=len(worker.said))
        worker.stop()
    assert PASSWORD not in worker.tail


def test_a_worker_works_for_what_was_typed(database: Database) -> None:
    """Whatever variables name; two addresses are refused."""
    said = typed("worker", FLOWS, "--db", database.url, "--url", "http://h")
    said.complains(2, "give only one of --url")
    assert PASSWORD not in said.err
    with Process(
        ("-m", "layby.cli", "worker", str(FLOWS), "--db", database.url), LAYBY_URL="http://h"
    ) as worker:
        worker.hear(f"layby works for {database.masked}")
        worker.stop()


@pytest.mark.parametrize("command", ["doctor", "migrate"])
def test_the_address_may_stand_alone(database: Database, command: str) -> None:
    """As the file may; named twice, it is refused."""
    said = typed(command, database.url)
    assert (said.code, database.masked in said.out) == (0, True), said
    database.typed(command, database.url).complains(2, "give one of them")


@pytest.mark.parametrize(
    "before", [(), ("runs",), ("schedules",), ("tree", "r"), ("--db",), ("runs", "--limit")]
)
def test_what_was_typed_is_not_repeated_with_a_password(before: tuple[str, ...]) -> None:
    """Though it stands where no address is expected, and the message names it."""
    said = typed(*before, f"postgresql://layby:{PASSWORD}@h/d")
    assert said.code == 2
    assert PASSWORD not in said.out + said.err


def test_hints_and_representations_hide_the_password() -> None:
    place = find_place(None, None, f"postgresql://layby:{PASSWORD}@h/d")
    assert PASSWORD not in repr(place) + str(place) + place.shown
    said = typed("runs", "--db", f"postgresql://layby:{PASSWORD}@h/d", "--url", "http://h")
    assert PASSWORD not in said.err
    said.complains(2, "give only one of --url")


@pytest.mark.parametrize("command", [["runs"], ["doctor"], ["migrate"], ["prune"], ["serve"]])
def test_words_of_libpq_are_refused(command: list[str]) -> None:
    """They are neither a path nor shown with the password, wherever they come from."""
    words = f"sslmode=prefer host=h password={PASSWORD}"
    for said in (typed(*command, "--db", words), typed(*command, LAYBY_DB=words)):
        assert PASSWORD not in said.out + said.err
        assert "write it as a URL" in said.err


def test_another_scheme_is_told_the_right_one() -> None:
    said = typed("runs", "--db", f"postgresql+psycopg://layby:{PASSWORD}@h/d")
    said.complains(2, "postgresql://USER@HOST/DATABASE")
    assert PASSWORD not in said.err


def test_the_list_of_processes_shows_no_password(database: Database) -> None:
    """Though the address was typed with it; who else reads the line can still tell what runs."""
    with Process(("-m", "layby.cli", "worker", str(FLOWS), "--db", database.url)) as worker:
        worker.hear(f"layby works for {database.masked}")
        listed = Path(f"/proc/{worker.pid}/cmdline").read_text().split("\0")
        worker.stop()
    assert listed[-2] == database.url.replace(PASSWORD, "*" * len(PASSWORD))
    assert str(FLOWS) in listed


@pytest.mark.parametrize("command", ["runs", "doctor", "promises create p --timeout 1h"])
def test_who_waits_for_a_silent_database_is_told_and_may_leave(command: str) -> None:
    """Red on 1105883c: nothing was said, and Ctrl-C was not heard."""
    with (
        TroubledLink(("127.0.0.1", cluster().port)) as link,
        inherited(signal.SIGINT, signal.SIG_DFL),
    ):
        link.is_silent = True
        url = cluster().tcp_url(cluster().new_database(), port=link.port)
        with Process(["-m", "layby.cli", *command.split(), "--db", url]) as here:
            masked = url.replace(PASSWORD, "***")
            here.hear(f"layby: waiting for {masked}: ")
            here.send(signal.SIGINT)
            assert (here.end(), here.said[1:]) == (130, ["layby: interrupted"])
