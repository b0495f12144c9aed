"""What is counted: under the names that bind us, with bounded labels, in no time."""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from timeit import repeat
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import layby
from layby.core import commands as c
from layby.core.stats import StatsData
from layby.delivery.routing import Router
from layby.engine.engine import Engine
from layby.engine.items import Item
from layby.engine.observer import Observer
from layby.engine.outbox import Outgoing
from layby.errors import StoreUnavailable, UsageError
from layby.server import server_metrics
from layby.server.series import Histogram
from layby.server.server import Server
from layby.server.server_config import HttpConfig, ServerConfig
from layby.server.server_metrics import LIVE, Metrics
from layby.wire.decode import VERSION
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock
from tests.helpers.worlds import new_store, resolve

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
STATS = StatsData(
    now=10_000,
    tasks={"pending": 1, "acquired": 2, "suspended": 3, "halted": 4},
    oldest_waits={"worker": 4_000, "odd": 9_000, "odder": 2_000},
    outbox=5,
    holders=6,
    held=7,
    schedules=8,
)

Labels = tuple[tuple[str, str], ...]


def samples(of: Metrics) -> dict[tuple[str, Labels], float]:
    """What Prometheus reads, by name and labels."""
    text = asyncio.run(of.scrape()).decode()
    families = text_string_to_metric_families(text)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


def value(of: Metrics, name: str, **labels: str) -> float | None:
    return samples(of).get((name, tuple(sorted(labels.items()))))


class Store:
    """Stands in for the store; counts how often it is asked."""

    def __init__(self, answer: StatsData | Exception = STATS) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self) -> StatsData:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_are_counted_by_kind_and_status_and_timed_by_kind():
    """With the protocol's names, and the buckets Prometheus libraries agree on."""
    counted = Metrics()
    for status, seconds in ((200, 0.005), (200, 0.0051), (404, 99.0)):
        counted.request("promise.get", status, seconds)
    assert value(counted, "resonate_request_total", kind="promise.get", status="200") == 2
    assert value(counted, "resonate_request_total", kind="promise.get", status="404") == 1
    bucket = "resonate_request_duration_seconds_bucket"
    for bound, count in (("0.005", 1), ("0.01", 2), ("10.0", 2), ("+Inf", 3)):
        assert value(counted, bucket, kind="promise.get", le=bound) == count
    assert value(counted, "resonate_request_duration_seconds_count", kind="promise.get") == 3
    assert value(counted, "resonate_request_duration_seconds_sum", kind="promise.get") == 99.0101


def test_kinds_nobody_knows_are_one():
    """Whoever sends nonsense cannot fill our memory with labels."""
    counted = Metrics()
    for number in range(1_000):
        counted.request(f"nonsense.{number}", 400, 0.0)
    kinds = {labels for name, labels in samples(counted) if name == "resonate_request_total"}
    assert kinds == {(("kind", "unknown"), ("status", "400"))}
    assert value(counted, "resonate_request_total", kind="unknown", status="400") == 1_000


def test_deliveries_and_messages_are_counted():
    """Each delivery by how it went, each of the protocol's messages by its kind."""
    counted = Metrics()
    for kind, how in (("execute", "success"), ("unblock", "error"), ("lost", "dropped")):
        counted.delivery(kind, how)
    for how in ("success", "error", "dropped"):
        assert value(counted, "resonate_deliveries_total", status=how) == 1
    kinds = [labels for name, labels in samples(counted) if name == "resonate_messages_total"]
    assert kinds == [(("kind", "execute"),), (("kind", "unblock"),)]


def test_commits_are_counted_as_the_engine_makes_them():
    """How many commands each carries, how long it takes, and what schedules made in it."""
    counted = Metrics()
    with engine(counted) as (send, clock):
        tags = {"resonate:target": r.OTHER}
        send(
            c.CreateSchedule(
                id="s",
                cron="* * * * *",
                promise_id="x.{{.timestamp}}",
                promise_timeout=10**9,
                promise_tags=tags,
            )
        )
        clock.advance(180_000)
        send(r.promise("y"), r.promise("z"))
        told = samples(counted)
    assert told["resonate_schedule_promises_total", ()] == 3
    assert told["layby_batch_commands_count", ()] == 3
    assert told["layby_batch_commands_bucket", (("le", "1.0"),)] == 2
    assert told["layby_batch_commands_bucket", (("le", "2.0"),)] == 3
    assert told["layby_commit_seconds_count", ()] == 3
    assert told["layby_commit_seconds_sum", ()] > 0


def test_the_wait_of_a_ready_task_is_counted_when_it_is_handed_out():
    """To a take, and to one that rides on another command."""
    counted = Metrics()
    with engine(counted) as (send, clock):
        send(r.run(a="", b="a"))
        clock.advance(400)
        send(r.take())
        send(r.finish("run/a:a", with_take=r.take()))
        told = samples(counted)
    assert told["layby_resume_lag_seconds_count", ()] == 2
    assert told["layby_resume_lag_seconds_bucket", (("le", "0.0005"),)] == 1
    assert told["layby_resume_lag_seconds_sum", ()] == 0.4


def test_a_commit_that_cannot_be_counted_stands(caplog):
    """Whoever counts badly is told of, and nobody else is harmed."""

    class Broken:
        def committed(self, commit: object) -> None:
            raise ZeroDivisionError

    with engine(Broken()) as (send, _):
        assert [reply.status for reply in send(r.promise("x"))] == [200]
        assert [reply.status for reply in send(c.GetPromise(id="x"))] == [200]
    assert "a commit was not counted" in caplog.text


@contextmanager
def engine(observer: Observer) -> Iterator[tuple[Callable, ManualClock]]:
    """An inline engine, and how to send it commands that share a commit."""
    clock = ManualClock(60_000)
    made = Engine(new_store("sqlite"), clock, observer=observer)
    made.start_inline()

    def send(*commands: c.Command) -> list[Any]:
        futures: list[Future[Any]] = [Future() for _ in commands]
        pairs = zip(commands, futures, strict=True)
        made.submit([Item(command, resolve, future) for command, future in pairs])
        made.pump()
        return [future.result(timeout=0) for future in futures]

    yield send, clock
    made.stop()


def test_a_server_counts_what_happens_in_it(caplog):
    """Wired: requests, commits, connections and the store's own numbers, in one scrape."""
    caplog.set_level("DEBUG", "layby.requests")
    told = asyncio.run(_told_by_a_server())
    [logged] = [record.__dict__ for record in caplog.records]
    assert (logged["kind"], logged["why"]) == ("promise.get", "Promise not found")
    for line in (
        "layby_poll_connections 0.0",
        "layby_free_slots 0.0",
        "layby_pushes_under_way 0.0",
        "layby_store_time_ahead_seconds 0.0",
        'layby_tasks{state="pending"} 1.0',
        "layby_outbox_messages 1.0",
        'resonate_request_total{kind="promise.get",status="404"} 1.0',
        'resonate_messages_total{kind="unblock"} 1.0',
        'resonate_deliveries_total{status="success"} 1.0',
        "layby_wake_latency_seconds_count 1.0",
    ):
        assert f"\n{line}\n" in told
    assert "\nlayby_backlog_requests " in told  # roughly none: the writer counts after it answers
    assert "layby_batch_commands_count 0.0" not in told


def test_a_port_of_its_own_has_nothing_but_metrics():
    """So that it can be opened to Prometheus alone."""
    metrics_answer, other = asyncio.run(_ask_the_metrics_port())
    head, _, body = metrics_answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n" in head
    assert b"\nlayby_holders 0.0\n" in body
    assert other.startswith(b"HTTP/1.1 404")


def test_a_metrics_port_that_is_taken_stops_the_start():
    """With the flag to use instead; and the server lets go of everything."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = HttpConfig(port=0, metrics_port=taken.getsockname()[1])
        server = Server(ServerConfig(db="memory:", server=http))
        with pytest.raises(UsageError, match="or choose another port with --metrics-port"):
            asyncio.run(server.start())


async def _ask_the_metrics_port() -> list[bytes]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(ServerConfig(db="memory:", server=HttpConfig(port=0, metrics_port=port)))
    await server.start()
    try:
        return [await _get(port, path) for path in ("/metrics", "/")]
    finally:
        await server.stop()


async def _get(port: int, path: str) -> bytes:
    return await _ask(port, f"GET {path}", b"")


async def _post(port: int, kind: str, data: dict[str, str]) -> bytes:
    head = {"corrId": "c", "version": VERSION}
    return await _ask(port, "POST /", json.encode({"kind": kind, "head": head, "data": data}))


async def _ask(port: int, what: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{what} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()
        await writer.wait_closed()


async def _told_by_a_server() -> str:
    server = Server(ServerConfig(db="memory:", server=HttpConfig(port=0)))
    await server.start()
    try:
        await server.client.send(r.target("x"))
        await _post(server.port, "promise.get", {"id": "none"})
        worker = Worker(server.router)
        server.router.connect(worker)
        await server.client.send(r.promise("y"))
        await server.client.send(c.RegisterListener(awaited="y", address="poll://uni@g/w"))
        await server.client.send(r.settle("y"))
        await asyncio.wait_for(worker.heard.wait(), 30)
        return (await server._metrics.scrape()).decode()
    finally:
        await server.stop()


class Worker:
    """A receiver that has whatever it gets."""

    group, id, has_room = "g", "w", True

    def __init__(self, router: Router) -> None:
        self._router = router
        self.heard = asyncio.Event()

    def receive(self, outgoing: Outgoing) -> None:
        self._router.arrived([outgoing])
        self.heard.set()


def test_live_gauges_are_read_when_scraped():
    """Those nobody gave are left out."""
    counted = Metrics()
    connections = [1.0]
    counted.watch("poll_connections", lambda: connections[0])
    assert value(counted, "layby_poll_connections") == 1
    connections[0] = 2.0
    assert value(counted, "layby_poll_connections") == 2
    assert value(counted, "layby_free_slots") is None


def test_the_store_is_asked_for_what_only_it_knows():
    """Counts as they are, waits as ages, kinds that workers made up as one."""
    told = samples(Metrics(Store()))
    assert told["layby_tasks", (("state", "suspended"),)] == 3
    assert told["layby_outbox_messages", ()] == 5
    assert told["layby_holders", ()] == 6
    assert told["layby_held_tasks", ()] == 7
    assert told["layby_schedules", ()] == 8
    ages = {labels: age for (name, labels), age in told.items() if "oldest_wait" in name}
    assert ages == {(("kind", "worker"),): 6.0, (("kind", "other"),): 8.0}


def test_the_store_is_asked_seldom_enough():
    """Every few seconds at most, and for a hundredth of the time, however slow it is."""
    store, clock = Store(), Clock()
    counted = Metrics(store, clock)
    for now, asked in ((100.0, 1), (104.9, 1), (105.0, 2), (105.1, 2)):
        clock.now = now
        samples(counted)
        assert store.asked == asked

    async def slow() -> StatsData:
        clock.now += 0.1
        return await store()

    counted = Metrics(slow, clock)
    before = store.asked
    for later in (0.0, 9.0, 1.1):
        clock.now += later
        samples(counted)
    assert store.asked == before + 2


async def _scrape_together(counted: Metrics, times: int) -> list[bytes]:
    return await asyncio.gather(*(counted.scrape() for _ in range(times)))


def test_scrapes_at_the_same_time_share_one_question():
    """Two Prometheus servers cost no more than one."""
    store = Store()
    counted = Metrics(store, Clock())
    assert len(asyncio.run(_scrape_together(counted, 5))) == 5
    assert store.asked == 1


def test_scrapes_at_the_same_time_share_one_text(monkeypatch):
    """To make it takes the event loop, and nobody needs a token to ask for it."""
    made: list[object] = []

    def make(registry: CollectorRegistry) -> bytes:
        made.append(registry)
        return generate_latest(registry)

    monkeypatch.setattr(server_metrics, "generate_latest", make)
    counted = Metrics()
    assert len(set(asyncio.run(_scrape_together(counted, 5)))) == 1
    assert len(made) == 1
    counted.request("promise.get", 200, 0.1)
    assert value(counted, "resonate_request_total", kind="promise.get", status="200") == 1
    assert len(made) == 2


def test_a_store_that_cannot_tell_is_left_out(caplog, monkeypatch):
    """The rest is still scraped, nothing old is repeated, and it is asked again soon."""
    store, clock = Store(), Clock()
    counted = Metrics(store, clock)
    assert value(counted, "layby_holders") == 6
    store.answer, clock.now = StoreUnavailable("disk full"), 106.0
    counted.request("promise.get", 200, 0.1)
    assert value(counted, "layby_holders") is None
    assert value(counted, "resonate_request_total", kind="promise.get", status="200") == 1
    assert "disk full" in caplog.text
    store.answer, clock.now = replace(STATS, holders=9), 111.0
    assert value(counted, "layby_holders") == 9

    async def hangs() -> StatsData:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(server_metrics, "STATS_PATIENCE", 0.01)
    assert value(Metrics(hangs), "layby_holders") is None
    assert "no answer" in caplog.text


def test_two_servers_in_one_process_count_apart():
    """No registry is shared."""
    one, other = Metrics(), Metrics()
    one.delivery("execute", "success")
    assert value(other, "resonate_deliveries_total", status="success") == 0


def test_the_process_itself_is_told():
    """Memory, processor time and open files come for nothing."""
    told = samples(Metrics())
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= {n for n, _ in told}
    assert told["layby_info", (("version", layby.__version__),)] == 1


def test_a_histogram_has_its_bounds_inside():
    """`le` means at most."""
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(number)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]


@pytest.mark.slow
def test_counting_a_request_takes_no_time_worth_speaking_of():
    """Less than two microseconds; measured alone, the best of many rounds."""
    counted = Metrics()
    best = min(
        repeat(lambda: counted.request("promise.create", 200, 0.001), number=10_000, repeat=20)
    )
    assert best / 10_000 < 2e-6


# --- one source --------------------------------------------------------------------------

FAMILIES = [
    family
    for value in vars(server_metrics).values()
    for family in (value.values() if value is LIVE else [value])
    if isinstance(family, server_metrics.Family)
]
"""In the order in which they are declared."""


def everything() -> Metrics:
    """Metrics with something in each family."""
    counted = Metrics(Store())
    counted.request("promise.get", 200, 0.1)
    counted.delivery("execute", "success")
    for name in LIVE:
        counted.watch(name, lambda: 1.0)
    return counted


def test_what_is_declared_is_what_is_told():
    """Every family of the list is scraped, and none besides but the process's own."""
    text = asyncio.run(everything().scrape()).decode()
    told = {
        (name, kind)
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
        if not name.startswith("process_")
    }
    assert told == {(family.name, family.type) for family in FAMILIES}


def table() -> str:
    rows = [
        f"| `{family.name}{labels_of(family)}` | {family.type} | {family.help} |"
        for family in FAMILIES
    ]
    return "\n".join(("| metric | sort | what it is |", "|---|---|---|", *rows))


def labels_of(family: server_metrics.Family) -> str:
    return f"{{{', '.join(family.labels)}}}" if family.labels else ""


def test_the_page_shows_every_metric():
    """docs/server.md has exactly the table of the code."""
    assert table() in PAGE.read_text(), f"paste this into {PAGE}:\n{table()}"
