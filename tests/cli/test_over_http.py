"""The same commands against a real server: over HTTP, and through the socket beside its file."""

import base64
import json
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from layby.clock import SystemClock
from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.core.values import Value
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.sqlite import SqliteStore
from tests.cli.test_schedules import NIGHTLY
from tests.helpers.command_line import typed
from tests.helpers.server_process import Peer, ServerProcess

KEY = "layby_test_key_of_the_command_line"
CI_KEY = "layby_test_key_of_the_nightly_build"
AUTH = f"""
[[auth.api_keys]]
name = "desk"
key = "{KEY}"
role = "admin"

[[auth.api_keys]]
name = "ci"
key = "{CI_KEY}"
prefix = "run/ci-"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    """One server for all of these, with a bit of everything in it."""
    with ServerProcess(tmp_path_factory.mktemp("server"), "--debug") as running:
        url = url_of(running)
        for arguments in (
            ("invoke", "c1", "-f", "hello", "--arg", "Anna"),
            ("tasks", "claim", "c1", "--version", "0", "--pid", "me", "--ttl", "1h"),
            ("promises", "create", "p1", "--timeout", "1h"),
            ("tasks", "suspend", "c1", "--version", "1", "--on", "p1"),
            ("invoke", "c2", "-f", "hello", "--timeout", "2h"),
            ("halt", "c2", "--by", "anna", "--reason", "look first"),
            ("resolve", "event", "--value", '{"a": 1}', "--by", "anna"),
            ("schedules", "create", *NIGHTLY),
        ):
            said = typed(*arguments, "--url", url)
            assert said.code == 0, said
        yield running


def url_of(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("waiting",),
        ("why", "c1"),
        ("why", "c2"),
        ("tree", "c1"),
        ("promises", "search"),
        ("promises", "get", "event"),
        ("tasks", "search"),
        ("tasks", "get", "c1"),
        ("schedules", "search"),
        ("schedules", "get", "nightly"),
    ],
    ids=" ".join,
)
def test_url_and_file_tell_the_same(server, arguments):
    """The owner's socket is found by itself; either way it is one document, and the same."""
    over_http = told(*arguments, "--url", url_of(server))
    assert over_http == told(*arguments, "--db", server.file)
    assert over_http == told(*arguments, LAYBY_URL=url_of(server))


def told(*arguments: str, **variables: str) -> Any:
    """All but how long ago or ahead it is, which changes while the test runs."""
    text = json.dumps(typed(*arguments, "--json", **variables).json)
    return json.loads(re.sub(r" \(in [^)]*\)|, for [^,;]* now\b", "", text))


def test_what_people_read(server):
    """The sentence of a real wait in a real server."""
    sentence, command = typed("why", "c1", "--url", url_of(server)).lines
    assert re.fullmatch(
        r"call c1 of hello\(\) waits for promise p1, "
        r"which has not been settled by anybody(, for \d+ s now)?, "
        r"until 20.* UTC at most \(in .*\); whoever settles it can unblock it",
        sentence,
    )
    assert command == f"  $ layby resolve p1 --value JSON --url {url_of(server)}"
    table = typed("waiting", "--kind", "manual", "--url", url_of(server)).lines
    assert "is halted by anna (look first) until somebody continues it" in table[1]


def test_refusals_and_unknown_ids(server):
    """As in a file."""
    url = url_of(server)
    typed("why", "c11", "--url", url).complains(1, "did you mean 'c1'?")
    typed("promises", "get", "p11", "--url", url).complains(1, "did you mean 'p1'?")
    typed("tasks", "release", "c1", "--version", 9, "--url", url).complains(1, "task 'c1'")
    typed("promises", "create", "", "--url", url).complains(2, "promise ID is required")


def test_waiting_for_a_call_prints_its_result(server):
    """A worker elsewhere answers; who waits hears it at once."""
    worker = threading.Thread(target=answer, args=(server.port, "c3"))
    worker.start()
    said = typed("invoke", "c3", "-f", "hello", "--wait", "--url", url_of(server))
    worker.join()
    assert said.lines == ["[", '  "hi"', "]"]


def answer(port: int, call: str) -> None:
    """A worker that has been waiting for this call."""
    peer = Peer(port)
    while peer.ask("task.get", {"id": call}).status != 200:
        pass
    peer.ask("task.acquire", {"id": call, "version": 0, "pid": "me", "ttl": 60_000})
    value = {"headers": {}, "data": base64.b64encode(b'["hi"]').decode()}
    settle = {"kind": "", "head": {}, "data": {"id": call, "state": "resolved", "value": value}}
    assert peer.ask("task.fulfill", {"id": call, "version": 1, "action": settle}).status == 200
    peer.close()


def test_waiting_for_a_call_that_is_rejected(server):
    """Exit code 1 and its error."""
    url = url_of(server)
    typed("invoke", "c4", "-f", "hello", "--url", url)
    typed("promises", "reject", "c4", "--value", '{"name": "Oops", "message": "no"}', "--url", url)
    said = typed("invoke", "c4", "-f", "hello", "--wait", "--url", url)
    said.complains(1, "call 'c4' is rejected: Oops: no")


def test_waiting_for_a_call_that_nobody_answers(server):
    """What has become of it, in words."""
    url = url_of(server)
    said = typed("invoke", "c5", "-f", "hello", "--timeout", "1ms", "--wait", "--url", url)
    said.complains(1, "call 'c5' has timed out: nobody answered it")
    typed("invoke", "c6", "-f", "hello", "--url", url)
    typed("promises", "cancel", "c6", "--url", url)
    said = typed("invoke", "c6", "-f", "hello", "--wait", "--url", url)
    said.complains(1, "call 'c6' was cancelled\n")


# --- the doctor --------------------------------------------------------------------------


def checks(said) -> dict[str, str]:
    return {line.split()[0]: line.split()[1] for line in said.out.splitlines()[1:]}


def test_a_server_that_is_well(server):
    """Each check has its line; debug is worth a note."""
    said = typed("doctor", "--url", url_of(server))
    assert said.code == 0, said
    assert checks(said) == {
        "reachable": "ok",
        "ready": "ok",
        "version": "ok",
        "access": "ok",
        "clock": "ok",
        "debug": "note",
        "sound": "ok",
    }
    assert "invariants over a snapshot hold" in said.out


def test_a_server_too_large_for_a_snapshot(tmp_path):
    """Debug is on nevertheless; what is in it is searched, page by page."""
    engine = Engine(SqliteStore(tmp_path / "server.db", Settings(), next_after), SystemClock())
    engine.start_inline()
    for key in "abcde":
        large = Value(data="x" * 4 * 10**6)
        assert engine.call(CreatePromise(id=key, timeout_at=NEVER, param=large, tags={})).is_ok
    engine.stop()
    with ServerProcess(tmp_path, "--debug") as server:
        said = typed("doctor", "--url", url_of(server))
        assert said.code == 0, said
        assert checks(said)["debug"] == "note"
        assert "invariants that can be checked by requests hold" in said.out


def test_the_doctor_as_json(server):
    """One document."""
    told = typed("doctor", "--url", url_of(server), "--json").json
    assert list(told) == ["ok", "url", "checks", "violations"]
    assert (told["ok"], told["violations"]) == (True, [])


def test_a_clock_that_is_wrong(server, monkeypatch):
    """Deadlines would mean something else there."""
    an_hour_later = SystemClock().now() + 3_600_000
    monkeypatch.setattr("layby.cli.server_checks.SystemClock.now", lambda _: an_hour_later)
    said = typed("doctor", "--url", url_of(server))
    assert said.code == 1
    assert "1 h" in said.out or "59 min" in said.out
    assert "behind: deadlines that SDK workers" in said.out


def test_a_server_with_keys(tmp_path):
    """Without a key it says what to give; with it all is well, and asked for without debug."""
    (tmp_path / "layby.toml").write_text(AUTH)
    with ServerProcess(tmp_path) as server:
        url = url_of(server)
        typed("runs", "--url", url).complains(2, "give --token, or set LAYBY_TOKEN")
        typed("runs", "--url", url, "--token", "wrong").complains(2, "needs a valid token")
        assert typed("runs", "--url", url, "--token", KEY).code == 0
        assert typed("runs", LAYBY_URL=url, LAYBY_TOKEN=KEY).code == 0
        refused = typed("doctor", "--url", url)
        assert refused.code == 1
        assert "refuses reading with 401: give --token" in refused.out
        well = typed("doctor", "--url", url, "--token", KEY)
        assert well.code == 0
        assert "invariants that can be checked by requests hold" in well.out


def test_a_token_with_a_prefix_steers_what_it_covers(tmp_path):
    """By the names that people type: that needs no explanations and no searches."""
    (tmp_path / "layby.toml").write_text(AUTH)
    with ServerProcess(tmp_path) as server:
        here = ("--url", url_of(server), "--token", CI_KEY)
        typed("promises", "create", "run/ci-1", *here)
        assert typed("cancel", "ci-1", *here).lines == ["ci-1 is cancelled"]
        typed("promises", "create", "run/ci-1:ask.c.promise.ok", *here)
        settled = typed("resolve", "ci-1:ask.c.promise.ok", "--value", "1", *here)
        assert settled.lines == ["ci-1:ask.c.promise.ok is resolved"]
        typed("cancel", "ci-2", *here).complains(1, "there is no run, task or promise 'ci-2'")
        remedy = "the token does not allow this; one for all ids does, by --token or LAYBY_TOKEN"
        typed("resolve", "other", "--null", *here).complains(2, remedy)
        typed("cancel", "other", *here).complains(2, "the token does not allow this")


def test_a_doctor_needs_one_patient(tmp_path):
    """A file or a server; and somebody must answer."""
    typed("doctor", "x.db", "--url", "http://h:1").complains(2, "give one of them")
    with closed() as port:
        url = f"http://127.0.0.1:{port}"
        typed("doctor", "--url", url).complains(2, url, "nobody listens there")


@contextmanager
def closed() -> Iterator[int]:
    """A port that nobody else gets, and nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found.getsockname()[1]


def test_a_server_whose_clock_was_put_back(tmp_path):
    """Its time goes on from where the file was: worth a note, and not our clock's fault."""
    with ServerProcess(tmp_path) as server:
        typed("promises", "create", "p", "--url", url_of(server))
    with closing(sqlite3.connect(server.file)) as connection, connection:
        connection.execute("UPDATE store_time SET at = at + 3600000")
    with ServerProcess(tmp_path) as server:
        said = typed("doctor", "--url", url_of(server))
    assert said.code == 0
    assert checks(said)["clock"] == "note"
    assert "ahead of the clock: it was set back" in said.out


@pytest.mark.parametrize("minutes", [-5, 5])
def test_the_clock_of_this_machine_does_not_matter(server, monkeypatch, minutes):
    """Deadlines are made of store time, and "ago" and "in" are measured from it."""
    here, url = SystemClock.now, ("--url", url_of(server))
    monkeypatch.setattr(SystemClock, "now", lambda clock: here(clock) + minutes * 60_000)
    target = ("--tag", "resonate:target=poll://any@default")
    for arguments in (
        ("promises", "create", f"made{minutes}", "--timeout", "2m"),
        ("invoke", f"called{minutes}", "-f", "hello", "-t", "2m"),
        ("tasks", "create", f"taken{minutes}", "--pid", "me", "--timeout", "2m", *target),
    ):
        assert typed(*arguments, *url).code == 0
        name = arguments[2 if arguments[1] == "create" else 1]
        said = typed("promises", "get", name, *url).out
        assert "pending" in said
        assert "just now" in said
        assert "in 5 min" not in said
    assert "is ready" in typed("why", f"called{minutes}", *url).out
    assert "is due" not in typed("waiting", *url).out
