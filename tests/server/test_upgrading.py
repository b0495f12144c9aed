"""A server of today, and tomorrow's layby that comes to the same database: real processes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from layby.core.model import NEVER
from tests.helpers.postgres import cluster
from tests.helpers.raw_http import Line
from tests.helpers.server_process import Peer, ServerProcess

PLAIN = {"timeoutAt": NEVER, "tags": {}, "param": {"headers": {}, "data": ""}}
RESOLVED = {"state": "resolved", "value": {"headers": {}, "data": ""}}


def tomorrows(address: str, manner: str) -> "subprocess.CompletedProcess[str]":
    """Tomorrow's layby opens it."""
    command = [sys.executable, "-m", "tests.helpers.newer_layby", address, manner]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def url() -> str:
    return cluster().url(cluster().new_database())


@pytest.fixture
def server(tmp_path: Path, url: str) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, db=url) as server:
        yield server


def create(server: ServerProcess, name: str) -> tuple[int, object]:
    with closing(Peer(server.port)) as peer:
        return peer.ask("promise.create", {"id": name, **PLAIN})


def settle(server: ServerProcess, name: str) -> tuple[int, object]:
    with closing(Peer(server.port)) as peer:
        return peer.ask("promise.settle", {"id": name, **RESOLVED})


def is_ready(server: ServerProcess) -> bool:
    line = Line(server.port)
    with line.socket:
        line.send(b"GET /ready HTTP/1.1\r\nhost: here\r\n\r\n")
        return line.head()[0] == 200


def test_a_server_while_its_database_is_upgraded(server: ServerProcess, url: str) -> None:
    """It goes on, and starts again, on what it can use; on what it cannot it writes nothing."""
    assert create(server, "p")[0] == 200
    assert tomorrows(url, "gentle").returncode == 0
    assert settle(server, "p")[0] == 200
    server.stop()
    server.start()
    assert create(server, "q")[0] == 200
    assert is_ready(server)
    assert tomorrows(url, "harsh").returncode == 0
    status, said = settle(server, "q")
    assert (status, "upgrade layby here, then restart this process" in str(said)) == (503, True)
    assert not is_ready(server)
    assert cluster().execute("SELECT state FROM layby.promises WHERE id = 'q'", database(url)) == [
        ("pending",)
    ]


def database(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.slow
def test_a_file_is_upgraded_when_nobody_uses_it(tmp_path: Path) -> None:
    """Whoever would migrate it meanwhile is told who has it; afterwards today's code goes on."""
    with ServerProcess(tmp_path) as server:
        address = f"sqlite:{server.file}"
        assert create(server, "p")[0] == 200
        refused = tomorrows(address, "gentle")
        assert refused.returncode == 1
        assert (
            f"StoreOwned: {server.file} is in use by process {server.process_id}" in refused.stderr
        )
        server.stop()
        assert tomorrows(address, "gentle").returncode == 0
        server.start()
        assert settle(server, "p")[0] == 200
