"""The bars of part 13: PostgreSQL with `synchronous_commit=on`, through a Unix socket."""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bars import Bench, Result
from bench_core import IN_FLIGHT, create_and_settle
from bench_worker import runs_per_s

from layby.clock import SystemClock
from layby.core.commands import CreatePromise, SettlePromise
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.local import LocalClient
from layby.store.postgres import PostgresStore

sys.path.append(str(Path(__file__).parents[1]))
from tests.helpers.postgres import Cluster

DISK = os.environ.get("BENCH_DIR", "/var/tmp")


@contextmanager
def database() -> Iterator[str]:
    """The address of an empty one on the real disk."""
    with cluster_on_disk() as cluster:
        yield cluster.url(cluster.new_database())


@contextmanager
def cluster_on_disk() -> Iterator[Cluster]:
    cluster = Cluster({}, parent=DISK)
    try:
        yield cluster
    finally:
        cluster.remove()


@asynccontextmanager
async def client_on(url: str) -> AsyncIterator[LocalClient]:
    store = PostgresStore(url, Settings(), next_after)
    engine = Engine(store, store.clock_beside(SystemClock().elapsed))
    engine.start()
    try:
        yield LocalClient(engine)
    finally:
        engine.stop()


def fdatasync_ms(count: int = 300) -> float:
    """What one commit waits for, at least."""
    with tempfile.NamedTemporaryFile(dir=DISK) as file:
        file.write(bytes(2**20))
        file.flush()
        os.fsync(file.fileno())
        found = [_synced(file.fileno(), at) for at in range(count)]
    return statistics.median(found) * 1000


def _synced(file: int, at: int) -> float:
    os.pwrite(file, bytes(8192), at % 100 * 8192)
    start = time.perf_counter()
    os.fdatasync(file)
    return time.perf_counter() - start


def postgres_throughput() -> Iterator[Result]:
    async def measure(url: str) -> float:
        async with client_on(url) as client:
            await create_and_settle(client, 2_000, "warm")
            return await create_and_settle(client, 20_000, "hot")

    before = fdatasync_ms()
    with database() as url:
        found = asyncio.run(measure(url))
    sync = (before + fdatasync_ms()) / 2
    yield Result(
        "PostgreSQL: create + settle in process, 64 in flight",
        f"{found:,.0f} commands/s",
        "≥ 8,000 commands/s",
        found >= 8_000,
        f"fdatasync p50 {sync:.2f} ms; load {os.getloadavg()[0]:.1f}",
    )


def postgres_lone_caller() -> Iterator[Result]:
    """No bar: what a lone caller pays for the round trips of a batch."""

    async def measure(url: str) -> float:
        async with client_on(url) as client:
            found = []
            for index in range(600):
                start = time.perf_counter()
                await create_and_settle_once(client, index)
                found.append((time.perf_counter() - start) / 2 * 1000)
        return statistics.median(found[100:])

    with database() as url:
        found = asyncio.run(measure(url))
    sync = fdatasync_ms()
    yield Result(
        "PostgreSQL: lone caller, one command",
        f"p50 {found:.2f} ms",
        "none",
        met=True,
        reference=f"fdatasync p50 {sync:.2f} ms",
    )


async def create_and_settle_once(client: LocalClient, index: int) -> None:
    await client.send(CreatePromise(id=f"lone-{index}", timeout_at=2**53 - 1))
    await client.send(SettlePromise(id=f"lone-{index}", state="resolved"))


def postgres_runs() -> Iterator[Result]:
    with database() as url:
        wall, cpu = asyncio.run(runs_per_s(url, 4, 1_920))
    yield Result(
        "PostgreSQL: one-task runs, embedded, 64 in flight, 4 slots",
        f"{wall:,.0f} runs/s ({cpu:,.0f} per CPU second)",
        "≥ 1,000 runs/s",
        wall >= 1_000,
        f"fdatasync p50 {fdatasync_ms():.2f} ms; load {os.getloadavg()[0]:.1f}",
    )


BENCHES: tuple[Bench, ...] = (postgres_throughput, postgres_lone_caller, postgres_runs)

assert IN_FLIGHT == 64  # as the names of the results say
