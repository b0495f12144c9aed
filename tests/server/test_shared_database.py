"""Servers on one PostgreSQL database, as processes of their own: who is connected to one of them
hears what was done at another, once.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from layby import Runner
from layby.core.model import NEVER
from layby.store.message_leases import LEASE_MS
from tests.helpers.poll_streams import Stream
from tests.helpers.postgres import PASSWORD, cluster
from tests.helpers.raw_http import Line
from tests.helpers.server_process import PATIENCE_S, Peer, ServerProcess
from tests.runner.postgres_flows import held, steps

SOON_S = 0.3
"""A look at everything, once a second, would mostly come later than this."""
NOTHING = {"headers": {}, "data": ""}


TAKEN_OVER = "layby_messages_taken_over_total"
Servers = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """For all tests here: who ends one starts it again, and each test has a group of its own."""
    url = cluster().tcp_url(cluster().new_database())
    folder = tmp_path_factory.mktemp("servers")
    with ServerProcess(folder, db=url) as a, ServerProcess(folder, db=url) as b:
        yield a, b
    assert PASSWORD not in a.said + b.said


@pytest.fixture
def streams(request: pytest.FixtureRequest) -> Iterator["Streams"]:
    made = Streams()
    made.group = request.node.name
    yield made
    for each in made:
        each.close()


class Streams(list[Stream]):
    """Those of one test."""

    group = ""

    def open(self, server: ServerProcess, name: str) -> Stream:
        """It is connected when this returns."""
        self.append(Stream(server.port, self.group, name))
        return self[-1]

    def call(self, name: str) -> dict[str, Any]:
        """A promise with a task for anybody of the group."""
        data = {"id": f"{self.group}.{name}", "timeoutAt": NEVER, "param": NOTHING}
        return {**data, "tags": {"resonate:target": f"poll://any@{self.group}"}}


def ask(server: ServerProcess, kind: str, data: Any) -> Any:
    peer = Peer(server.port)
    try:
        answer = peer.ask(kind, data)
    finally:
        peer.close()
    assert answer.status in (200, 201), answer
    return answer.data


def metric(server: ServerProcess, name: str) -> float:
    with Line(server.port) as line:
        body = line.send(b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n").answer().body.decode()
    found = re.search(rf"^{name} (\S+)$", body, re.MULTILINE)
    assert found is not None, body
    return float(found[1])


def test_a_stream_gets_what_was_created_at_another_server(
    servers: Servers, streams: Streams
) -> None:
    """At once, by an announcement: most of them, as this machine may be busy now and then."""
    a, b = servers
    stream = streams.open(b, "one")
    took: list[float] = []
    for number in range(20):
        ask(a, "promise.create", streams.call(f"t{number}"))
        began = monotonic()
        stream.until(number + 1)
        took.append(monotonic() - began)
    assert stream.tasks == [f"t{number}" for number in range(20)]
    assert sorted(took)[10] < SOON_S, took


def test_a_listener_at_another_server_is_told(servers: Servers, streams: Streams) -> None:
    a, b = servers
    stream = streams.open(b, "one")
    ask(a, "promise.create", {"id": "p", "timeoutAt": NEVER, "param": NOTHING, "tags": {}})
    ask(
        a,
        "promise.register_listener",
        {"awaited": "p", "address": f"poll://uni@{streams.group}/one"},
    )
    ask(a, "promise.settle", {"id": "p", "state": "resolved", "value": NOTHING})
    [told] = stream.until(1)
    assert (told["kind"], told["data"]["promise"]["id"]) == ("unblock", "p")


def test_nobody_is_told_twice(servers: Servers, streams: Streams) -> None:
    """Both servers have streams of the group, and both create; each message has one receiver."""
    for at, server in enumerate(servers):
        for each in "xy":
            streams.open(server, f"{at}{each}")
    ids = [f"t{number}" for number in range(300)]
    before = [metric(each, TAKEN_OVER) for each in servers]

    def create(at: int) -> None:
        peer = Peer(servers[at].port)
        for each in ids[at::2]:
            assert peer.ask("promise.create", streams.call(each)).status in (200, 201)
        peer.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(create, (0, 1)))
    until = monotonic() + PATIENCE_S
    while sum(len(each.heard) for each in streams) < len(ids):
        assert monotonic() < until
    threading.Event().wait(2.5)  # everything is looked at again twice meanwhile, and sent no more
    assert Counter(each for stream in streams for each in stream.tasks) == Counter(ids)
    assert [metric(each, TAKEN_OVER) for each in servers] == before


def test_what_is_taken_at_another_server_is_not_sent_again(
    servers: Servers, streams: Streams
) -> None:
    """The server of the stream hears of it, and lets the next message to the same task through."""
    a, b = servers
    stream = streams.open(b, "one")
    ask(b, "promise.create", streams.call("t"))
    [told] = stream.until(1)
    task = {"id": told["data"]["task"]["id"], "version": told["data"]["task"]["version"]}
    ask(a, "task.acquire", {**task, "pid": "one", "ttl": 60_000})
    ask(a, "task.release", {**task, "version": task["version"] + 1})
    stream.until(2)
    assert stream.tasks == ["t", "t"]


def test_another_server_goes_on_when_one_is_killed(servers: Servers, streams: Streams) -> None:
    """What the dead one had begun to deliver is delivered again, and counted."""
    a, b = servers
    gone = streams.open(a, "gone")
    ask(b, "promise.create", streams.call("t"))
    gone.until(1)
    before = metric(b, TAKEN_OVER)
    a.kill()
    try:
        heir = streams.open(b, "heir")
        heir.until(1, LEASE_MS / 1000 + 3)
        ask(b, "promise.create", streams.call("u"))
        heir.until(2)
    finally:
        a.start()
    assert heir.tasks == ["t", "u"]
    assert metric(b, TAKEN_OVER) == before + 1


def test_a_server_that_stops_leaves_its_messages_to_others(
    servers: Servers, streams: Streams
) -> None:
    a, b = servers
    gone = streams.open(a, "gone")
    ask(b, "promise.create", streams.call("t"))
    gone.until(1)
    heir = streams.open(b, "heir")
    before = metric(b, TAKEN_OVER)
    a.stop()
    try:
        heir.until(1, LEASE_MS / 1000 / 2)
    finally:
        a.start()
    assert metric(b, TAKEN_OVER) == before


def test_workers_at_one_server_do_what_is_started_at_another(servers: Servers) -> None:
    """Long takes and watches hear of commits elsewhere."""
    a, b = (f"http://127.0.0.1:{each.port}" for each in servers)

    async def main() -> None:
        async with Runner(a, slots=0) as here, Runner(b, slots=2) as there:
            there.register(steps)
            there.register(held)
            runs = [await here.start(steps, {}, run_id=f"r{at}") for at in range(10)]
            await asyncio.gather(*(run.result(timeout=PATIENCE_S) for run in runs))
            run = await here.start(held, {"for": "door"})
            await here.resolve("door", "open")
            assert (await run.result(timeout=PATIENCE_S))["answer"] == "open"

    asyncio.run(main())


def test_a_schedule_occurs_once(servers: Servers, streams: Streams) -> None:
    """Both servers see that it is due."""
    stream = streams.open(servers[1], "one")
    data = {"id": "s", "cron": "* * * * * *", "promiseId": "{{.id}}.{{.timestamp}}"}
    tags = {"resonate:target": f"poll://any@{streams.group}"}
    rest = {"promiseTimeout": 60_000, "promiseParam": NOTHING, "promiseTags": tags}
    before = made_at(servers)
    ask(servers[0], "schedule.create", {**data, **rest})
    stream.until(4)
    ask(servers[0], "schedule.delete", {"id": "s"})
    made = made_at(servers) - before
    stream.until(made)
    assert len(set(stream.tasks)) == len(stream.tasks) == made


def made_at(servers: Servers) -> int:
    return round(sum(metric(each, "resonate_schedule_promises_total") for each in servers))
