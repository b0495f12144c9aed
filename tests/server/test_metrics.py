"""What is counted: under the names that bind us, with bounded labels, in no time."""

import asyncio
import re
from pathlib import Path
from timeit import repeat
from typing import get_args

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from layby.core.stats import StatsData
from layby.errors import StoreUnavailable
from layby.server import metrics
from layby.server.metrics import FAMILIES, LIVE, Metrics
from layby.server.series import Histogram
from layby.workflow.waiting import WaitKind

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


def test_schedules_batches_and_latencies_are_counted():
    """What engine and router tell."""
    counted = Metrics()
    counted.scheduled(3)
    counted.committed(64, 0.002)
    counted.woke(0.0004)
    counted.resumed(61.0)
    assert value(counted, "resonate_schedule_promises_total") == 3
    assert value(counted, "layby_batch_commands_bucket", le="32.0") == 0
    assert value(counted, "layby_batch_commands_bucket", le="64.0") == 1
    assert value(counted, "layby_commit_seconds_bucket", le="0.0025") == 1
    assert value(counted, "layby_wake_latency_seconds_bucket", le="0.0005") == 1
    assert value(counted, "layby_resume_lag_seconds_bucket", le="60.0") == 0
    assert value(counted, "layby_resume_lag_seconds_count") == 1


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

    monkeypatch.setattr(metrics, "STATS_PATIENCE", 0.01)
    assert value(Metrics(hangs), "layby_holders") is None
    assert "no answer" in caplog.text


def test_two_servers_in_one_process_count_apart():
    """No registry is shared."""
    one, other = Metrics(), Metrics()
    one.scheduled(1)
    assert value(other, "resonate_schedule_promises_total") == 0


def test_the_process_itself_is_told():
    """Memory, processor time and open files come for nothing."""
    told = {name for name, _ in samples(Metrics())}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "layby_info"} <= told


def test_kinds_of_waits_are_those_workers_write():
    """A new kind must not end up among the others by accident."""
    assert set(get_args(WaitKind)) == metrics.WAIT_KINDS


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
        (name, sort)
        for name, sort in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
        if not name.startswith("process_")
    }
    assert told == {(family.name, family.sort) for family in FAMILIES}


def table() -> str:
    rows = [
        f"| `{family.name}{labels_of(family)}` | {family.sort} | {family.help} |"
        for family in FAMILIES
    ]
    return "\n".join(("| metric | sort | what it is |", "|---|---|---|", *rows))


def labels_of(family: metrics.Family) -> str:
    return f"{{{', '.join(family.labels)}}}" if family.labels else ""


def test_the_page_shows_every_metric():
    """docs/server.md has exactly the table of the code."""
    assert table() in PAGE.read_text(), f"paste this into {PAGE}:\n{table()}"
