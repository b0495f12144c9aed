"""The bars of part 1: the durable core, embedded on SQLite with synchronous=FULL."""

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import reference
from bars import Bench, Result, percentile
from children import numbers_from

from layby.clock import SystemClock
from layby.core.address import target_of
from layby.core.commands import (
    AcquireTask,
    CreatePromise,
    FinishTask,
    GetPromise,
    HeartbeatWorker,
    Node,
    RegisterCallback,
    SettlePromise,
    StartRun,
    SuspendAction,
    SuspendTask,
    Take,
    Value,
    WatchPromise,
)
from layby.core.replies import HeartbeatData, TakeData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Item
from layby.local import LocalClient
from layby.store.sqlite import SqliteStore

VALUE = Value(headers={}, data="aGVsbG8gd29ybGQ=")
HOUR_MS = 3_600_000
IN_FLIGHT = 64


def far() -> int:
    return time.time_ns() // 1_000_000 + 10 * HOUR_MS


def opened(path: Path) -> Engine:
    engine = Engine(SqliteStore(path, Settings(), next_after), SystemClock())
    engine.start()
    return engine


@asynccontextmanager
async def client_on(path: Path) -> AsyncIterator[tuple[Engine, LocalClient]]:
    engine = opened(path)
    try:
        yield engine, LocalClient(engine)
    finally:
        engine.stop()


async def create_and_settle(client: LocalClient, pairs: int, prefix: str) -> float:
    """Commands per second with 64 coroutines in flight, each creating and settling in turn."""
    deadline = far()

    async def caller(number: int) -> None:
        for index in range(pairs // IN_FLIGHT):
            key = f"{prefix}-{index * IN_FLIGHT + number}"
            await client.send(CreatePromise(id=key, timeout_at=deadline, param=VALUE))
            await client.send(SettlePromise(id=key, state="resolved", value=VALUE))

    start = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
    return pairs // IN_FLIGHT * IN_FLIGHT * 2 / (time.perf_counter() - start)


def throughput() -> Iterator[Result]:
    async def measure(path: Path) -> float:
        async with client_on(path / "layby.db") as (_, client):
            await create_and_settle(client, 2_000, "warm")
            return await create_and_settle(client, 40_000, "hot")

    bare = reference.statements_per_s()
    with reference.folder() as path:
        found = asyncio.run(measure(path))
    bare = (bare + reference.statements_per_s()) / 2
    narrow = reference.statements_per_s(narrow=True)
    yield Result(
        "create + settle, 64 in flight",
        f"{found:,.0f} commands/s = {found / bare:.0%} of bare",
        "≥ 30 % of bare statements/s (12,000/s expected)",
        found >= 0.3 * bare,
        f"bare sqlite3 loop on the same table: {bare:,.0f} statements/s; on a table of three"
        f" columns without indexes: {narrow:,.0f} ({found / narrow:.0%})",
    )


def lone_caller() -> Iterator[Result]:
    async def measure(path: Path) -> list[float]:
        async with client_on(path / "layby.db") as (_, client):
            deadline, found = far(), list[float]()
            for index in range(1_500):
                start = time.perf_counter()
                await client.send(
                    CreatePromise(id=f"lone-{index}", timeout_at=deadline, param=VALUE)
                )
                found.append((time.perf_counter() - start) * 1000)
        return found[500:]

    before = reference.commit_p50_ms()
    with reference.folder() as path:
        p50 = percentile(asyncio.run(measure(path)), 0.5)
    bare = (before + reference.commit_p50_ms()) / 2
    yield Result(
        "lone caller, one command",
        f"p50 {p50:.3f} ms = {p50 / bare:.2f} x bare",
        "p50 ≤ 2 x one bare FULL commit",
        p50 <= 2 * bare,
        f"bare FULL commit p50 {bare:.3f} ms",
    )


def busy_neighbour() -> Iterator[Result]:
    """Another thread computes all the time; the Runner's switch interval is set."""

    async def measure(path: Path) -> list[float]:
        async with client_on(path / "layby.db") as (_, client):
            deadline, found = far(), list[float]()
            for index in range(600):
                start = time.perf_counter()
                await asyncio.gather(
                    *(
                        client.send(
                            CreatePromise(id=f"b-{index}-{n}", timeout_at=deadline, param=VALUE)
                        )
                        for n in range(IN_FLIGHT)
                    )
                )
                found.append((time.perf_counter() - start) * 1000)
        return found

    stop = threading.Event()
    busy = threading.Thread(target=_compute_until, args=(stop,), daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    busy.start()
    try:
        with reference.folder() as path:
            found = asyncio.run(measure(path))
    finally:
        stop.set()
        busy.join()
        sys.setswitchinterval(interval)
    p99 = percentile(found, 0.99)
    yield Result(
        "a batch of 64, answered, beside a busy Python thread",
        f"p50 {percentile(found, 0.5):.1f} ms, p99 {p99:.1f} ms",
        "commit p99 ≤ 20 ms",
        p99 <= 20,
        f"bare FULL commit loop: {reference.commits_per_s():,.0f} commits/s",
    )


def _compute_until(stop: threading.Event) -> None:
    total = 0
    while not stop.is_set():
        for number in range(10_000):
            total += number * number


def resume_latency() -> Iterator[Result]:
    """A task suspended on a promise; from sending the settle to the waiting take's answer."""

    async def measure(path: Path) -> list[float]:
        async with client_on(path / "layby.db") as (_, client):
            return [await _one_resume(client, index) for index in range(500)][100:]

    with reference.folder() as path:
        found = asyncio.run(measure(path))
    p50 = percentile(found, 0.5)
    yield Result(
        "settle → waiting taker has the resumed task",
        f"p50 {p50:.2f} ms, p99 {percentile(found, 0.99):.2f} ms",
        "p50 ≤ 1.5 ms",
        p50 <= 1.5,
        f"bare FULL commit p50 {reference.commit_p50_ms():.3f} ms",
    )


async def _one_resume(client: LocalClient, index: int) -> float:
    task_id, signal = f"task-{index}", f"signal-{index}"
    tags = {"resonate:target": target_of("bench"), "layby:name": "work"}
    deadline = far()
    await client.send(CreatePromise(id=signal, timeout_at=deadline))
    await client.send(CreatePromise(id=task_id, timeout_at=deadline, tags=tags))
    await client.send(AcquireTask(id=task_id, version=0, pid="p", ttl=HOUR_MS))
    callback = RegisterCallback(awaited=signal, awaiter=task_id)
    action = SuspendAction(kind="promise.register_callback", head={}, data=callback)
    await client.send(SuspendTask(id=task_id, version=1, actions=[action]))
    take = Take(
        pid="w",
        incarnation="1",
        group="bench",
        names=("work",),
        free=1,
        embedded=True,
        wait_ms=60_000,
    )
    waiting = asyncio.ensure_future(client.send(take))
    await client.send(GetPromise(id=signal))  # the take is waiting in the engine by now
    start = time.perf_counter()
    settled = asyncio.ensure_future(client.send(SettlePromise(id=signal, state="resolved")))
    reply = await waiting
    elapsed = (time.perf_counter() - start) * 1000
    await settled
    assert isinstance(reply.data, TakeData)
    task = reply.data.claims[0].task
    await client.send(FinishTask(id=task.id, version=task.version))
    return elapsed


def heartbeat_cost() -> Iterator[Result]:
    """Writer time of one heartbeat: the call on an inline engine, commit included."""
    held = 100_000
    with reference.folder() as path:
        engine = Engine(SqliteStore(path / "layby.db", Settings(), next_after), SystemClock())
        engine.start_inline()
        for start in range(0, held, 5_000):
            nodes = tuple(Node(id=f"n{number}", name="work") for number in range(5_000))
            take = Take(pid="w", incarnation="1", group="bench", names=("work",), free=5_000)
            engine.call(
                StartRun(
                    id=f"run/{start}",
                    name="flow",
                    group="bench",
                    nodes=nodes,
                    take=take,
                )
            )
        seconds = list[float]()
        for _ in range(200):
            begin = time.perf_counter()
            reply = engine.call(HeartbeatWorker(pid="w", incarnation="1", held=held))
            seconds.append((time.perf_counter() - begin) * 1000)
            assert isinstance(reply.data, HeartbeatData)
            assert reply.data.agrees
        engine.stop()
    p99 = percentile(seconds, 0.99)
    yield Result(
        f"heartbeat of a holder with {held:,} tasks",
        f"p50 {percentile(seconds, 0.5):.3f} ms, p99 {p99:.3f} ms",
        "≤ 2 ms of writer time",
        p99 <= 2,
        f"bare FULL commit p50 {reference.commit_p50_ms():.3f} ms",
    )


def timers() -> Iterator[Result]:
    """100,000 promises that time out over 30 s; meanwhile a prober asks every 5 ms."""
    count, spread_ms = 100_000, 30_000
    with reference.folder() as path:
        lateness, probes = asyncio.run(_fire_timers(path, count, spread_ms))
    p99 = percentile(lateness, 0.99)
    commits = reference.commits_per_s()
    yield Result(
        f"{count:,} timers firing over 30 s: lateness",
        f"p50 {percentile(lateness, 0.5):.1f} ms, p99 {p99:.1f} ms, max {max(lateness):.1f} ms",
        "p99 ≤ 50 ms",
        p99 <= 50 and len(lateness) == count,
        f"bare FULL commit loop: {commits:,.0f} commits/s",
    )
    yield Result(
        "… other commands meanwhile (a create every 5 ms)",
        f"p50 {percentile(probes, 0.5):.1f} ms, max {max(probes):.1f} ms, {len(probes):,} probes",
        "never over 100 ms",
        max(probes) <= 100,
        f"bare FULL commit loop: {commits:,.0f} commits/s",
    )


async def _fire_timers(path: Path, count: int, spread_ms: int) -> tuple[list[float], list[float]]:
    lateness: list[float] = []

    def fired(answers: Any) -> None:
        now = time.time() * 1000
        lateness.extend(now - reply.data.promise.timeout_at for _, reply in answers)

    async with client_on(path / "layby.db") as (engine, client):
        first_at = time.time_ns() // 1_000_000 + 20_000
        due = {f"timer-{n}": first_at + n * spread_ms // count for n in range(count)}
        keys = list(due)
        for start in range(0, count, 500):
            part = keys[start : start + 500]
            await asyncio.gather(
                *(client.send(CreatePromise(id=key, timeout_at=due[key])) for key in part)
            )
            engine.submit([Item(WatchPromise(id=key), fired) for key in part])
        assert time.time() * 1000 < first_at, "creating took too long for a fair start"
        await asyncio.sleep(first_at / 1000 - time.time())
        return lateness, await _probe_until(client, first_at + spread_ms + 500)


async def _probe_until(client: LocalClient, until_ms: int) -> list[float]:
    found: list[float] = []
    while time.time() * 1000 < until_ms:
        start = time.perf_counter()
        await client.send(CreatePromise(id=f"probe-{len(found)}", timeout_at=far()))
        found.append((time.perf_counter() - start) * 1000)
        await asyncio.sleep(0.005)
    return found


def million() -> Iterator[Result]:
    """A million pending promises in the file; opened and used by a process of its own."""
    with reference.folder() as path:
        opened(path / "empty.db").stop()
        opened(path / "full.db").stop()
        _fill(path / "full.db", 1_000_000)
        full, empty = _in_own_process(path / "full.db"), _in_own_process(path / "empty.db")
        again = _in_own_process(path / "full.db")
    share = max(full["rate"], again["rate"]) / empty["rate"]
    commits = f"bare FULL commit loop: {reference.commits_per_s():,.0f} commits/s"
    yield Result(
        "1,000,000 pending promises: open",
        f"{full['open']:.3f} s",
        "≤ 2 s",
        full["open"] <= 2,
        commits,
    )
    yield Result(
        "… RSS after use",
        f"{full['rss']:.0f} MB",
        "≤ 120 MB",
        full["rss"] <= 120,
        f"empty store, same use: {empty['rss']:.0f} MB",
    )
    yield Result(
        "… throughput, create + settle, 64 in flight",
        f"{share:.0%} of the empty store",
        "≥ 80 %",
        share >= 0.8,
        f"empty store: {empty['rate']:,.0f} commands/s; {commits}",
    )


def _fill(path: Path, count: int) -> None:
    """Straight into the table: what is measured is the full store, not the filling."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(_FILL, {"count": count, "far": far()})
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert connection.execute("SELECT count(*) FROM promises").fetchone()[0] == count
    connection.close()


_FILL = """
    WITH RECURSIVE numbers(n) AS (
        SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count),
    keys AS (SELECT n, lower(hex(randomblob(8))) AS id FROM numbers)
    INSERT INTO promises
        (id, root, param, tags, timeout_at, created_at, timer, placeholder, state, value)
    SELECT id, id, '{"headers":{},"data":"aGVsbG8gd29ybGQ="}', '{}', :far + n, 1, 0, 0,
        'pending', '{}'
    FROM keys
"""


def _in_own_process(path: Path) -> dict[str, float]:
    return dict(zip(("open", "rate", "rss"), numbers_from(__file__, "use", path), strict=True))


async def _use(path: Path) -> None:
    start = time.perf_counter()
    engine = opened(path)
    client = LocalClient(engine)
    await client.send(GetPromise(id="nothing"))
    seconds = time.perf_counter() - start
    prefix = os.urandom(4).hex()
    await create_and_settle(client, 2_000, "warm" + prefix)
    rate = await create_and_settle(client, 40_000, prefix)
    engine.stop()
    print(seconds, rate, _rss_mb())


def _rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


BENCHES: tuple[Bench, ...] = (
    throughput,
    lone_caller,
    busy_neighbour,
    resume_latency,
    heartbeat_cost,
    timers,
    million,
)

if __name__ == "__main__" and sys.argv[1:2] == ["use"]:
    asyncio.run(_use(Path(sys.argv[2])))
