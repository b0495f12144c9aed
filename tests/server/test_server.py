"""A real server among peers that do not read, vanish, crowd in, or outlive it; and its disk."""

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from layby.cli.doctor import examine
from layby.core.model import NEVER
from layby.wire.decode import VERSION
from tests.helpers.disks import mounted
from tests.helpers.quiet_server import QUIET, peak_mb, resident_mb, served
from tests.helpers.raw_http import Line, envelope, get, post
from tests.helpers.server_process import ServerProcess
from tests.helpers.signals import inherited

PATIENCE_S = 90
NO_RETRY = ("--tasks-retry-timeout", "1h")
SSE = "/poll/g/{name}"


def opened(server: ServerProcess, name: str = "w", **options: Any) -> Line:
    line = Line(server.port, **options)
    assert line.send(get(f"/poll/g/{name}")).head()[0] == 200
    return line


def tags(target: str = "poll://any@g") -> dict[str, str]:
    return {"resonate:target": target}


def create(line: Line, promise_id: str, target: str = "poll://any@g") -> None:
    data = {"id": promise_id, "timeoutAt": NEVER, "tags": tags(target)}
    assert line.ask("promise.create", data).status == 200


def create_many(line: Line, ids: Iterable[str], target: str = "poll://any@g") -> None:
    waiting = iter(ids)
    while some := list(islice(waiting, 1_000)):
        data = [{"id": each, "timeoutAt": NEVER, "tags": tags(target)} for each in some]
        head = {"corrId": "i", "version": VERSION}
        asks = [{"kind": "promise.create", "head": head, "data": each} for each in data]
        answer = line.ask("layby.batch", {"requests": asks})
        assert {each["head"]["status"] for each in answer.json["data"]["replies"]} == {200}


def heard(line: Line, number: int) -> list[str]:
    """The ids of the tasks of the next so many messages."""
    return [each["data"]["task"]["id"] for each in islice(iter(line.events()), number)]


# --- who does not read -----------------------------------------------------------------------


def test_a_reader_that_never_reads_is_let_go(tmp_path: Path) -> None:
    """Its ten thousand messages are for the next one; the server kept a few, and served others."""
    ids = {f"t{number}" for number in range(10_000)}
    with served(tmp_path, *NO_RETRY, "--poll-patience", "500ms") as server:
        stuck = opened(server, "stuck", receive_buffer=4_096)
        before = resident_mb(server)
        with Line(server.port) as line:
            create_many(line, ids)
            assert hung_up(stuck)
            assert line.ask("promise.get", {"id": "t0"}).status == 200
            with opened(server, "reader") as reader:
                assert set(heard(reader, len(ids))) == ids
        stuck.socket.close()
        assert resident_mb(server) < before + 60


def hung_up(line: Line) -> bool:
    """Whether the server hangs up on a peer that does not read a byte."""
    poll = select.poll()
    poll.register(line.socket, 0)  # errors and ends alone
    return bool(poll.poll(PATIENCE_S * 1_000))


def test_large_messages_for_who_never_reads_wait_in_the_store(tmp_path: Path) -> None:
    """Sixty megabytes of them: the server does not grow by that, and tells them later."""
    with served(tmp_path, peak=300) as server, Line(server.port) as line:
        stuck = opened(server, "w", receive_buffer=4_096)
        for number in range(30):
            tell_of_large(line, f"p{number}", "poll://uni@g/w")
        assert peak_mb(server) < 180
        stuck.vanish()
        with opened(server, "w") as reader:
            told = islice(iter(reader.events()), 20)  # the first few are in buffers nobody read
            assert len({each["data"]["promise"]["id"] for each in told}) == 20


def tell_of_large(line: Line, promise_id: str, address: str) -> None:
    listener = {"awaited": promise_id, "address": address}
    settle = {"id": promise_id, "state": "resolved", "value": {"data": "x" * 2_000_000}}
    assert line.ask("promise.create", {"id": promise_id, "timeoutAt": NEVER}).status == 200
    assert line.ask("promise.register_listener", listener).status == 200
    assert line.ask("promise.settle", settle).status == 200


def test_answers_that_nobody_reads_are_not_piled_up(tmp_path: Path) -> None:
    """A peer may ask on and on without reading: it is not read on either."""
    with served(tmp_path, peak=150) as server, Line(server.port) as line:
        promise = {"id": "large", "timeoutAt": NEVER, "param": {"data": "x" * 1_000_000}}
        assert line.ask("promise.create", promise).status == 200
        with Line(server.port, receive_buffer=4_096) as greedy:
            greedy.socket.settimeout(0.5)
            with suppress(TimeoutError):
                greedy.send(post(envelope("promise.get", {"id": "large"})) * 20_000)
            assert line.ask("promise.get", {"id": "large"}).status == 200


# --- who vanishes ----------------------------------------------------------------------------

CHILD = """
import signal, socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"GET /poll/g/child HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
while b'"t"' not in (data := line.recv(65536)):
    print("open", flush=True)
print("told", flush=True)
signal.pause()
"""


@contextmanager
def child(server: ServerProcess) -> Generator[subprocess.Popen[str]]:
    """Another process with a stream; it says when it is open, and when it was told of `t`."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(server.port)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def test_the_task_of_a_killed_worker_goes_to_another_at_once(tmp_path: Path) -> None:
    """Nothing but the end of its socket tells so: no retry, no lease, no ping."""
    with (
        served(tmp_path, *NO_RETRY) as server,
        opened(server, "other") as other,
        child(server) as killed,
        Line(server.port) as line,
    ):
        create(line, "t", "poll://any@g/child")
        assert killed.stdout is not None
        while killed.stdout.readline() != "told\n":
            pass
        killed.kill()
        began = time.monotonic()
        assert heard(other, 1) == ["t"]
        assert time.monotonic() - began < 10


def test_a_stopped_worker_holds_up_nobody(tmp_path: Path) -> None:
    """Its kernel takes messages for it until that is full; then it is let go."""
    with (
        served(tmp_path, *NO_RETRY, "--poll-patience", "500ms") as server,
        child(server) as stopped,
        Line(server.port) as line,
    ):
        stopped.send_signal(signal.SIGSTOP)
        ids = {f"{number}{'x' * 900}" for number in range(3_000)}
        create_many(line, ids)
        with opened(server, "other") as other:
            assert set(heard(other, len(ids))) == ids


def test_peers_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    """In every way there is, a thousand times."""
    with served(tmp_path) as server:
        before = open_files(server)
        beginnings = (b"", b"P", post(b"x")[:-1], get("/poll/g/w"), post(b"{}") * 3, b"\0")
        for number in range(1_000):
            line = Line(server.port)
            with suppress(ConnectionError):
                line.send(beginnings[number % len(beginnings)])
            line.vanish() if number % 2 else line.socket.close()
        until(lambda: open_files(server) <= before)
        with Line(server.port) as line:
            assert line.ask("promise.get", {"id": "x"}).status == 404


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server._process.pid}/fd"))  # noqa: PTH208 - names alone


def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody."""
    pause, end = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.01)


# --- who crowds in ---------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_streams_are_no_burden(tmp_path: Path, many_files: None) -> None:
    """Beside them everybody is served, each of them hears what is for it, and the end is quick."""
    with ServerProcess(tmp_path, *QUIET, *NO_RETRY) as server, ExitStack() as streams:
        before = resident_mb(server)
        lines = [streams.enter_context(opened(server, f"w{n}")) for n in range(1_000)]
        assert resident_mb(server) < before + 100
        with Line(server.port) as line:
            began = time.monotonic()
            for number in range(200):
                create(line, f"plain{number}", "poll://any@nobody")
            assert time.monotonic() - began < 20
            create_many(line, [f"w{n}" for n in range(1_000)], "poll://any@nobody")
            for number in range(0, 1_000, 50):
                create(line, f"for{number}", f"poll://uni@g/w{number}")
        for number in range(0, 1_000, 50):
            assert heard(lines[number], 1) == [f"for{number}"]
        assert ended(server) < HELD_UP_S
        assert all(list(line.events()) == [] for line in lines)


HELD_UP_S = 8
"""Somebody who holds up its end does so for the 10 seconds that it may take."""


def ended(server: ServerProcess) -> float:
    """Seconds that it took to stop in order."""
    began = time.monotonic()
    server._end(server._process.terminate)
    assert server._process.returncode == 0, server.said
    return time.monotonic() - began


FEW_FILES = """
import resource, runpy

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
runpy.run_module("layby.cli", run_name="__main__", alter_sys=True)
"""


def test_the_system_is_asked_for_as_many_files_as_there_may_be_connections(tmp_path: Path) -> None:
    """The limit that a shell sets is not meant for servers."""
    server = ServerProcess(tmp_path, *QUIET, program=("-c", FEW_FILES))
    server.start()
    try:
        with ExitStack() as streams:
            for number in range(300):
                streams.enter_context(opened(server, str(number)))
            with Line(server.port) as line:
                assert line.ask("promise.get", {"id": "x"}).status == 404
    finally:
        server.kill()


def test_where_files_are_few_connections_are_refused_in_order(tmp_path: Path) -> None:
    """A clear answer, not a connection that nobody accepts; and who is there is served."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = ServerProcess(tmp_path, *QUIET)
    server.start()
    try:
        resource.prlimit(server._process.pid, resource.RLIMIT_NOFILE, (60, hard))
        with ExitStack() as opening:
            first = opening.enter_context(Line(server.port))
            assert first.ask("promise.get", {"id": "x"}).status == 404
            for _ in range(100):
                with suppress(ConnectionError):
                    opening.enter_context(Line(server.port))
            assert first.ask("promise.get", {"id": "x"}).status == 404
        until(lambda: is_served(server))
    finally:
        server.kill()


def is_served(server: ServerProcess) -> bool:
    with suppress(OSError, EOFError), Line(server.port) as line:
        return line.ask("promise.get", {"id": "x"}).status == 404
    return False


def test_slow_peers_are_no_burden(tmp_path: Path) -> None:
    """Hundreds of them drip: each is given up in its time, and nobody else waits for them."""
    with served(tmp_path, "--read-timeout", "400ms") as server, ExitStack() as all_:
        slow = [all_.enter_context(Line(server.port)) for _ in range(300)]
        line, endless = all_.enter_context(Line(server.port)), post(b"x" * 100_000)
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < 0.8:
            for each in slow:
                with suppress(ConnectionError):
                    each.send(endless[sent : sent + 1])
            sent += 1
            assert line.ask("promise.get", {"id": "x"}).status == 404
        assert all(is_given_up(each) for each in slow)


def is_given_up(line: Line) -> bool:
    with suppress(ConnectionError, EOFError):
        return line.answer().status == 408
    return True


def test_connections_beyond_the_limit_are_told_so(tmp_path: Path) -> None:
    with served(tmp_path, "--max-connections", "5") as server, ExitStack() as all_:
        lines = [all_.enter_context(Line(server.port)) for _ in range(5)]
        assert {line.ask("promise.get", {"id": "x"}).status for line in lines} == {404}
        with Line(server.port) as surplus:
            answer = surplus.ask("promise.get", {"id": "x"})
            assert (answer.status, answer.json["head"]["status"]) == (503, 503)
            assert "Too many connections" in answer.json["data"]
        assert {line.ask("promise.get", {"id": "x"}).status for line in lines} == {404}


# --- who outlives it -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_messages_are_kept_for_who_comes_later(tmp_path: Path, how: str) -> None:
    """Also when the server is another one by then."""
    server = ServerProcess(tmp_path, *QUIET, *NO_RETRY)
    with server:
        with Line(server.port) as line:
            create(line, "t", "poll://any@g/w")
            create(line, "p", "poll://any@nobody")
            listener = {"awaited": "p", "address": "poll://uni@g/w"}
            assert line.ask("promise.register_listener", listener).status == 200
            assert line.ask("promise.settle", {"id": "p", "state": "resolved"}).status == 200
        server._end(getattr(server._process, how))
        server.start()
        with opened(server, "w") as stream:
            told = list(islice(iter(stream.events()), 2))
        assert {each["kind"] for each in told} == {"execute", "unblock"}
        with opened(server, "w") as stream, Line(server.port) as line:
            create(line, "later", "poll://uni@g/w")
            assert set(heard(stream, 2)) == {"t", "later"}  # nobody has taken it yet


def test_no_acknowledged_write_is_lost_when_it_stops(tmp_path: Path) -> None:
    """With eight clients in full flow it ends in a moment, and whoever was answered was right."""
    with ServerProcess(tmp_path, "--log-level", "error") as server:
        acknowledged: list[str] = []
        with ThreadPoolExecutor(8) as clients:
            for client in range(8):
                clients.submit(write_on, server.port, f"c{client}", acknowledged)
            until(lambda: len(acknowledged) > 200)
            assert ended(server) < HELD_UP_S
        server.start()
        with Line(server.port) as line:
            for promise_id in acknowledged:
                assert line.ask("promise.get", {"id": promise_id}).status == 200
        assert server.said.count("\n") == 2, server.said


def write_on(port: int, name: str, acknowledged: list[str]) -> None:
    """Until the server is gone."""
    with suppress(ConnectionError, EOFError), Line(port) as line:
        for number in count():
            create(line, f"{name}.{number}")
            acknowledged.append(f"{name}.{number}")


@pytest.mark.parametrize("patience", ["100ms", "1h"])
def test_nobody_holds_up_its_end(tmp_path: Path, patience: str) -> None:
    """Neither who does not read, nor who does not go on writing, nor who waits."""
    with (
        ServerProcess(tmp_path, *QUIET, "--poll-patience", patience) as server,
        ExitStack() as all_,
    ):
        line = all_.enter_context(Line(server.port))
        stuck = all_.enter_context(opened(server, "stuck", receive_buffer=4_096))
        create_many(line, (f"{number}{'x' * 900}" for number in range(1_000)))
        late = all_.enter_context(Line(server.port))
        late.send(post(b"hello")[:-1])
        waiting = all_.enter_context(Line(server.port))
        assert waiting.ask("layby.promise.ensure", {"id": "p"}).status == 200
        waiting.send(post(envelope("layby.promise.watch", {"id": "p"})))
        assert line.ask("promise.get", {"id": "p"}).status == 200
        assert ended(server) < HELD_UP_S
        assert (late.answer().status, waiting.answer().status) == (503, 503)
        assert hung_up(stuck)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Even with an answer under way that nobody reads."""
    server = ServerProcess(tmp_path, *QUIET, "--shutdown-timeout", "1h")
    server.start()
    with Line(server.port) as line, Line(server.port, receive_buffer=4_096) as slow:
        large = {"id": "large", "timeoutAt": NEVER, "param": {"data": "x" * 2_000_000}}
        assert line.ask("promise.create", large).status == 200
        one = {"kind": "promise.get", "head": {"corrId": "i", "version": VERSION}}
        ask = one | {"data": {"id": "large"}}
        slow.send(post(envelope("layby.batch", {"requests": [ask] * 20})))
        assert slow.head()[0] == 200
        server._process.send_signal(signal.SIGTERM)
        until(lambda: not is_served(server))
        assert server._process.poll() is None
        threading.Event().wait(1.1)  # two signals in one second are one
        server._end(server._process.terminate)
    assert server._process.returncode == 128 + signal.SIGTERM


def test_a_terminal_that_is_closed_ends_it_in_order(tmp_path: Path) -> None:
    """SIGHUP would end it where it stands, with requests under way."""
    server = ServerProcess(tmp_path, *QUIET)
    with inherited(signal.SIGHUP, signal.SIG_DFL):
        server.start()
    with Line(server.port) as line:
        assert line.ask("layby.promise.ensure", {"id": "p"}).status == 200
        line.send(post(envelope("layby.promise.watch", {"id": "p"})))
        server._process.send_signal(signal.SIGHUP)
        assert line.answer().status == 503
    server._end(lambda: None)
    assert server._process.returncode == 0


def test_who_started_it_with_nohup_may_close_the_terminal(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, *QUIET)
    with inherited(signal.SIGHUP, signal.SIG_IGN):
        server.start()
    with Line(server.port) as line:
        server._process.send_signal(signal.SIGHUP)
        server._process.send_signal(signal.SIGHUP)
        assert line.ask("layby.promise.ensure", {"id": "p"}).status == 200
        assert is_served(server)
    server._end(server._process.terminate)


# --- its disk --------------------------------------------------------------------------------


class FullDisk:
    """A small file system where we may mount one; elsewhere files that may not grow."""

    def __init__(self, folder: Path, *, is_real: bool) -> None:
        self._ballast = folder / "ballast"
        self._is_real = is_real

    def fill(self, server: ServerProcess) -> None:
        if not self._is_real:
            size = max(each.stat().st_size for each in server.file.parent.iterdir())
            limit_files(server, size + 1)
            return
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while ballast.write(b"x" * 4_096):
                pass

    def free(self, server: ServerProcess) -> None:
        if self._is_real:
            self._ballast.unlink()
        else:
            limit_files(server, resource.RLIM_INFINITY)


def limit_files(server: ServerProcess, size: int) -> None:
    _, hard = resource.prlimit(server._process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server._process.pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.parametrize("may_mount", [True, False])
def test_a_full_disk_refuses_writes_and_nothing_else(tmp_path: Path, may_mount: bool) -> None:
    """503 says why; nothing is written by halves; when there is room again, all goes on."""
    with ExitStack() as stack:
        mount = mounted(tmp_path, "-t", "tmpfs", "-o", "size=4m", "layby-test")
        is_real = may_mount and stack.enter_context(mount)
        server = ServerProcess(tmp_path, "--no-push-enabled", "--log-level", "error")
        stack.enter_context(server)
        disk = FullDisk(tmp_path, is_real=is_real)
        line = stack.enter_context(Line(server.port))
        stored = write_until_refused(line, disk, server)
        assert line.ask("promise.get", {"id": "w0"}).status == 200
        assert line.ask("promise.search", {"limit": 1}).status == 200
        assert line.send(get("/health")).answer().status == 200
        disk.free(server)
        until(lambda: line.ask("promise.create", promise("after")).status == 200)
        written = {each["id"] for each in everything(line)}
        assert written == stored | {"after"}
        server.kill()
        assert examine(server.file, limit=0).violations == []
        server.start()
        with Line(server.port) as again:
            assert {each["id"] for each in everything(again)} == stored | {"after"}


def promise(promise_id: str) -> dict[str, Any]:
    return {"id": promise_id, "timeoutAt": NEVER, "param": {"data": "x" * 20_000}}


def write_until_refused(line: Line, disk: FullDisk, server: ServerProcess) -> set[str]:
    """The ids that were acknowledged; after the first refusal some more are tried."""
    stored: set[str] = set()
    refusals = 0
    for number in count():
        if number == 5:
            disk.fill(server)
        answer = line.ask("promise.create", promise(f"w{number}"))
        if answer.status == 200:
            stored.add(f"w{number}")
            continue
        assert answer.status == 503, answer
        assert "disk" in answer.json["data"]
        refusals += 1
        if refusals == 10:
            return stored
    raise AssertionError


def everything(line: Line) -> Iterable[dict[str, Any]]:
    return line.ask("promise.search", {"limit": 1_000}).json["data"]["promises"]
