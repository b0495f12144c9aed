"""How a command finds layby, and what it says when it does not."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from layby.cli.connection import Place, ask, find_place, is_served, reach, socket_of
from layby.clock import SystemClock
from layby.core.commands import GetPromise
from layby.errors import UsageError
from tests.cli.test_runs import start
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed
from tests.helpers.troubled_server import play, served, soon

URL = "http://127.0.0.1:8001"


@pytest.mark.parametrize(
    ("flags", "environ", "found"),
    [
        ({}, {}, Place(URL, is_default=True)),
        ({"url": "http://h:1"}, {}, Place("http://h:1")),
        ({"url": "http://h:1/"}, {}, Place("http://h:1")),
        ({"url": "http://h:1", "token": "t"}, {}, Place("http://h:1", "t")),
        ({"url": "http://h:1"}, {"LAYBY_TOKEN": "t"}, Place("http://h:1", "t")),
        ({"db": "sqlite:a.db"}, {}, Place(file=Path("a.db"))),
        ({"db": "sqlite:///a.db"}, {}, Place(file=Path("/a.db"))),
        ({"db": "a.db"}, {}, Place(file=Path("a.db"))),
        ({}, {"LAYBY_URL": "http://h:1"}, Place("http://h:1")),
        ({}, {"LAYBY_DB": "sqlite:a.db"}, Place(file=Path("a.db"))),
        ({}, {"LAYBY_DB": ""}, Place(URL, is_default=True)),
        ({"db": "a.db"}, {"LAYBY_URL": "http://h:1"}, Place(file=Path("a.db"))),
        ({"url": "http://h:1"}, {"LAYBY_DB": "a.db"}, Place("http://h:1")),
    ],
)
def test_flags_come_before_variables(tmp_path, flags, environ, found):
    """And variables before what is tried when nobody says anything."""
    given = {"url": None, "token": None, "db": None} | flags
    assert find_place(**given, environ=environ, folder=tmp_path) == found


def test_a_file_in_this_folder_comes_before_a_server(tmp_path):
    """Whoever has one means it."""
    (tmp_path / "layby.db").touch()
    place = find_place(None, None, None, {}, tmp_path)
    assert place == Place(file=tmp_path / "layby.db", is_default=True)


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"url": "http://h", "db": "a.db"}, {}, "give only one of --url"),
        ({}, {"LAYBY_URL": "http://h", "LAYBY_DB": "a.db"}, "give only one of --url"),
        ({"url": "h:8001"}, {}, "not the URL of a server: write for example http://127.0.0.1:8001"),
        ({"db": "http://h"}, {}, "give it as --url"),
        ({"db": "postgresql:d"}, {}, "write for example"),
        ({"db": "mysql://h/d"}, {}, "write for example sqlite:layby.db"),
        ({"db": "sqlite:"}, {}, "write for example sqlite:layby.db"),
        ({"db": "memory:"}, {}, "memory: keeps nothing"),
    ],
)
def test_what_is_no_place_is_refused(tmp_path, flags, environ, said):
    """With what to write instead."""
    given = {"url": None, "token": None, "db": None} | flags
    with pytest.raises(UsageError, match=said):
        find_place(**given, environ=environ, folder=tmp_path)


def test_looking_owns_nothing(desk: Desk):
    """A process that starts at this very moment must not be turned away by somebody who looks."""
    desk.do(r.promise("x"))
    (lock,) = desk.file.parent.glob("*.lock")
    lock.unlink()
    assert typed("promises", "get", "x").code == 0
    assert not lock.exists()


def test_a_file_that_is_in_use_can_still_be_looked_at(desk: Desk):
    """Also where its owner does not listen; writing would need the owner, who is named."""
    engine = desk.opened()
    engine.call(r.promise("x"))
    try:
        assert "pending" in typed("promises", "get", "x").out
        typed("promises", "resolve", "x").complains(2, "is already open in this process")
    finally:
        engine.stop()


def test_a_socket_left_behind_is_no_owner(desk: Desk):
    """Its process was killed: the file is free."""
    desk.do(r.promise("x"))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(socket_of(desk.file)))
    assert not is_served(desk.file)
    assert typed("promises", "resolve", "x").code == 0


def test_a_missing_file_is_named_and_not_made(tmp_path, monkeypatch):
    """A typing error must not make an empty database that knows nothing."""
    monkeypatch.chdir(tmp_path)
    typed("runs", "--db", "sqlite:gone.db").complains(2, "gone.db does not exist", "--db")
    typed("resolve", "x", "--null", "--db", "gone.db").complains(2, "gone.db does not exist")
    typed("runs", "--db", tmp_path).complains(2, "is a folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["notes.txt", "other.db"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path, file):
    """It says so, in one line."""
    path = tmp_path / file
    path.write_text("hello " * 1_000)
    typed("runs", "--db", path).complains(2, str(path), "not a layby database")


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_server_that_is_not_there(tmp_path, monkeypatch):
    """The URL, what came of it, what to do."""
    monkeypatch.chdir(tmp_path)
    url = f"http://127.0.0.1:{closed_port()}"
    typed("runs", "--url", url).complains(2, url, "nobody listens there", "is it running")
    typed("runs", LAYBY_URL=url).complains(2, url)
    said = typed("runs", "--url", url.replace("http", "https"))
    assert said.err.count("https://") == said.err.count("is it running") == 1, said.err
    said = typed("runs", "--url", "http://nobody.invalid:1")
    assert said.err.count("http://") == said.err.count("is it running") == 1, said.err


def test_who_names_nothing_hears_what_was_tried(tmp_path, monkeypatch):
    """That there is no file here, and that therefore a server was looked for."""
    monkeypatch.chdir(tmp_path)
    url = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setattr("layby.cli.connection.DEFAULT_URL", url)
    typed("runs").complains(2, url, "no layby.db in this folder", "layby serve", "--db")


def test_what_may_be_pasted_means_the_same_place(desk: Desk):
    """A command that is told carries the flags that were typed; a worker's its address."""
    desk.do(r.promise("x"), start("o-7"))
    resolve, worker = "  $ layby resolve x --value JSON", "  $ layby worker MODULE --group default"
    assert typed("why", "x").lines[1] == resolve
    assert typed("why", "x", "--db", "layby.db").lines[1] == f"{resolve} --db layby.db"
    assert typed("why", "o-7").lines[1] == f"{worker} --url sqlite:layby.db"
    (row,) = typed("waiting", "--db", "sqlite:layby.db").lines[1:]
    assert row.endswith(f"{worker.strip(' $')} --url sqlite:layby.db")


@pytest.fixture
def day_ahead(desk: Desk, monkeypatch) -> Desk:
    """A file that was written while the clock was a day ahead."""
    here = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda clock: here(clock) + 86_400_000)
    desk.do(start("o-7"), r.target("call"))
    monkeypatch.setattr(SystemClock, "now", here)
    return desk


def test_a_file_whose_time_is_ahead_of_the_clock_is_read_and_written_in_its_own_time(day_ahead):
    target = ("--tag", "resonate:target=poll://any@default")
    assert (
        typed("promises", "create", "p", "--timeout", "1h", "--json").json["promise"]["state"]
        == "pending"
    )
    typed("tasks", "create", "t", "--pid", "me", "--timeout", "1h", *target)
    assert typed("promises", "get", "t", "--json").json["promise"]["state"] == "pending"
    typed("invoke", "i", "-f", "f", "-t", "1h")
    assert typed("promises", "get", "i", "--json").json["promise"]["state"] == "pending"
    for arguments in (
        ("runs",),
        ("waiting",),
        ("tree", "o-7"),
        ("why", "call"),
        ("promises", "get", "call"),
    ):
        said = typed(*arguments)
        assert said.code == 0
        assert "in 23 h" not in said.out
        assert "in 1 d" not in said.out


@contextmanager
def silent_port() -> Iterator[int]:
    """Somebody accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listening:
        yield listening.getsockname()[1]


def test_a_server_that_says_nothing_is_told_of_and_given_up(tmp_path, monkeypatch):
    """Nobody sits before a silent command: a line soon, an end not much later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("layby.cli.connection.FIRST_ANSWER_S", 0.3)
    monkeypatch.setattr("layby.client.first_answer.TELL_AFTER_S", 0.05)
    with silent_port() as port:
        url = f"http://127.0.0.1:{port}"
        said = typed("runs", "--url", url)
    told, end = said.err.splitlines()
    assert said.code == 2
    assert told == f"layby: waiting for {url}: no answer yet; gives up after 0.3 s"
    assert end.startswith(f"layby: no layby server answers at {url} (no answer in time)")


def test_whoever_asks_may_say_how_long():
    """As a run that was interrupted does, to say how it stands."""
    with silent_port() as port, pytest.raises(TimeoutError):
        ask(Place(f"http://127.0.0.1:{port}"), lambda client: client.send(GetPromise(id="p")), 0.01)


def _drip(connection: socket.socket) -> None:
    pause = threading.Event()
    with suppress(OSError), connection:
        for letter in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b" " * 99_000:
            connection.sendall(bytes([letter]))
            pause.wait(0.02)


def _say(text: bytes, connection: socket.socket) -> None:
    with connection:
        connection.recv(4096)
        connection.sendall(text)


@contextmanager
def odd_port(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Somebody who listens there and is not a layby server; the URL."""
    threads: list[threading.Thread] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threads.append(threading.Thread(target=answer, args=[connection]))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=8) as listening:
        threads.append(threading.Thread(target=serve))
        threads[0].start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


REDIRECT = b"HTTP/1.1 301 Moved\r\nLocation: https://x.invalid/\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_drip, "no answer in time"),
        (partial(_say, b"SSH-2.0-OpenSSH_9\r\n"), "what came back is not HTTP"),
        (partial(_say, REDIRECT), "HTTP 301 from something that is not a layby server"),
        (partial(_say, b""), "it hung up"),
    ],
    ids=["drips", "other protocol", "redirect", "hangs up"],
)
@pytest.mark.parametrize("command", ["runs", "doctor"])
@pytest.mark.timeout(60)
def test_whoever_else_listens_there_is_named_and_given_up(
    tmp_path, monkeypatch, answer, why, command
):
    """Even if bytes keep coming: what counts is an answer."""
    monkeypatch.chdir(tmp_path)
    limit = 0.5 if answer is _drip else 30.0  # whatever else is said comes long before that
    monkeypatch.setattr("layby.cli.connection.FIRST_ANSWER_S", limit)
    monkeypatch.setattr("layby.cli.server_checks.FIRST_ANSWER_S", limit)
    with odd_port(answer) as url:
        said = typed(command, "--url", url)
    assert said.code == 2
    end = said.err.splitlines()[-1]
    assert end.startswith(f"layby: no layby server answers at {url} ({why})"), said.err


def test_a_command_may_wait_for_a_server(monkeypatch, caplog):
    """With --wait, as long as it takes."""
    monkeypatch.setattr("layby.client.first_answer.TELL_AFTER_S", 0.05)
    port = closed_port()
    place = Place(f"http://127.0.0.1:{port}", waits=True)

    async def look() -> int:
        async with reach(place) as client:
            return (await client.send(GetPromise(id="nobody"))).status

    async def scene() -> None:
        looking = asyncio.create_task(look())
        await soon(lambda: caplog.messages)
        assert caplog.messages[0].startswith(f"waiting for {place.url}: ")
        async with served({"server.port": port}):
            assert await looking == 404

    play(scene)


@pytest.mark.parametrize("command", ["runs", "run", "why", "schedules search"])
def test_commands_that_ask_a_server_can_wait_for_it(command):
    """It is one of the options of all of them."""
    assert "--wait" in typed(*command.split(), "--help").out
