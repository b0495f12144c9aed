"""What servers on one database do by themselves, each for all: deadlines, pushes and retention.

Each is done once, by whoever is there.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from layby import Runner
from layby.core.model import NEVER
from layby.errors import ResultExpired
from layby.store.message_leases import LEASE_MS
from tests.helpers.postgres import cluster
from tests.helpers.server_process import PATIENCE_S, Peer, ServerProcess
from tests.runner.postgres_flows import steps

pytestmark = pytest.mark.shared

NOTHING = {"headers": {}, "data": ""}
MANY = 60
TWICE_S = 2.5
"""Meanwhile everything is looked at again twice."""
Servers = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    url = cluster().tcp_url(cluster().new_database())
    folder = tmp_path_factory.mktemp("servers")
    flags = ("--retention-completed", "500ms", "--retention-ids", "1h", "--log-format", "text")
    with ServerProcess(folder, *flags, db=url) as a, ServerProcess(folder, *flags, db=url) as b:
        yield a, b
    assert " ERROR " not in a.said + b.said


class Hook(HTTPServer):
    """Somebody that messages are pushed to, at an address of this machine."""

    request_queue_size = 2 * MANY

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Hears)
        self.has_heard = threading.Condition()
        self.heard: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def until(self, count: int) -> list[str]:
        with self.has_heard:
            assert self.has_heard.wait_for(lambda: len(self.heard) >= count, PATIENCE_S)
            return list(self.heard)


class _Hears(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        content = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
        told = content["data"]["promise" if content["kind"] == "unblock" else "task"]["id"]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        with self.server.has_heard:
            self.server.heard.append(told)
            self.server.has_heard.notify_all()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def hook(port: int = 0) -> Iterator[Hook]:
    with Hook(port) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


def ask(server: ServerProcess, *requests: tuple[str, dict[str, Any]]) -> None:
    peer = Peer(server.port)
    for kind, data in requests:
        answer = peer.ask(kind, data)
        assert answer.status == 200, answer
    peer.close()


def promise(name: str, timeout_at: int = NEVER, target: str = "") -> tuple[str, dict[str, Any]]:
    tags = {"resonate:target": target} if target else {}
    data = {"id": name, "timeoutAt": timeout_at, "param": NOTHING, "tags": tags}
    return "promise.create", data


def test_a_push_is_made_once(servers: Servers):
    """Both servers can reach the address, and both cause pushes to it."""
    ids = [f"pushed-{number}" for number in range(MANY)]
    with hook() as receiver:
        for at, server in enumerate(servers):
            ask(server, *(promise(each, target=receiver.address) for each in ids[at::2]))
        receiver.until(MANY)
        threading.Event().wait(TWICE_S)
        assert Counter(receiver.heard) == Counter(ids)


def test_another_server_pushes_when_one_is_killed(servers: Servers):
    """What the dead one could not push yet arrives, once."""
    dying, other = servers
    with hook() as receiver:
        port, address = receiver.server_port, receiver.address
    ids = [f"left-{number}" for number in range(5)]
    ask(dying, *(promise(each, target=address) for each in ids))
    dying.kill()
    try:
        with hook(port) as receiver:
            began = time.monotonic()
            receiver.until(len(ids))
            assert time.monotonic() - began < LEASE_MS / 1000 + 3
            threading.Event().wait(TWICE_S)
            assert Counter(receiver.heard) == Counter(ids)
    finally:
        dying.start()
    ask(other, promise("afterwards"))


def test_a_deadline_is_met_once(servers: Servers):
    """By one of them, and whoever listens is told once."""
    due = time.time_ns() // 1_000_000 + 3_000  # by then all are there
    ids = [f"due-{number}" for number in range(MANY)]
    with hook() as receiver:
        for at, server in enumerate(servers):
            ask(server, *(promise(each, due) for each in ids[at::2]))
            heard = ({"awaited": each, "address": receiver.address} for each in ids[at::2])
            ask(server, *(("promise.register_listener", each) for each in heard))
        receiver.until(MANY)
        threading.Event().wait(TWICE_S)
        assert Counter(receiver.heard) == Counter(ids)


def test_each_run_is_pruned_whoever_does_it(servers: Servers):
    """Ids answer afterwards, at both servers."""
    a, b = (f"http://127.0.0.1:{each.port}" for each in servers)

    async def main() -> None:
        async with Runner(a, slots=4) as here, Runner(b, slots=0) as there:
            runs = [await here.start(steps, {}, run_id=f"kept-{at}") for at in range(30)]
            for runner in (here, there):
                for run in runs:
                    await expired(runner, run.id)

    asyncio.run(main())


async def expired(runner: Runner, run_id: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await (await runner.get(run_id)).result()
            except ResultExpired:
                return
            await asyncio.sleep(0.05)
