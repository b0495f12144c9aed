"""The bars of part 12: what a run costs on disk, and pruning beside a steady load.

`RUNS=1000000` prunes a million ended runs; the default is 100,000.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import reference
from bars import Bench, Result, percentile
from bench_core import VALUE, far
from msgspec.structs import replace

from layby import Runner, Workflow, task
from layby.cli.prune_pace import PrunePace
from layby.clock import SystemClock
from layby.core.commands import CreatePromise, Prune, SettlePromise
from layby.core.replies import PruneData
from layby.core.settings import RetentionPolicy, Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.switch_interval import (
    SWITCH_INTERVAL_S,
    lower_switch_interval,
    restore_switch_interval,
)
from layby.local import LocalClient
from layby.store.sqlite import SqliteStore

RUNS = int(os.environ.get("RUNS", "100000"))
GROWN = 2_000
"""Runs through a Runner, of which each byte is counted."""
PER_S = 200
"""Commands of the steady load, evenly spaced."""
QUIET_S = float(os.environ.get("QUIET_S", "5"))
PRUNE_S = float(os.environ.get("PRUNE_S", "15"))
"""Without pruning and with it, in turns; `PROGRESS=1` tells after each turn."""
BY_TIME_S = float(os.environ.get("BY_TIME_S", "20"))
CHUNK = 50_000


@task
async def ship(context):
    return {"shipped": context["n"]}


FLOW = Workflow("orders", [ship])


# --- growth ------------------------------------------------------------------------------


def growth() -> Iterator[Result]:
    """One task a run: bytes of the file, then after pruning, then after the ids have gone."""
    with reference.folder() as folder:
        path = folder / "layby.db"
        asyncio.run(_run_many(path, GROWN))
        sizes = [_size(path)]
        for policy in (Prune(completed=0), Prune(ids=0)):
            _prune_all(path, policy)
            _give_back_all(path)
            sizes.append(_size(path))
    full, pruned, empty = ((each / GROWN) for each in sizes)
    yield Result(
        "growth per run of one task",
        f"{full:,.0f} bytes; {pruned:,.0f} when pruned, {empty:,.0f} when the id is gone",
        "< 2,357 bytes, what it was before (the same script on 9f6378f)",
        full < 2_357,
        f"{GROWN:,} runs; an empty file has {_empty_size() / GROWN:,.0f} bytes per run",
        full,
        "bytes",
    )


async def _run_many(path: Path, number: int) -> None:
    async with Runner(f"sqlite:{path}") as runner:
        for start in range(0, number, 100):
            await asyncio.gather(
                *(runner.execute(FLOW, {"n": n}) for n in range(start, start + 100))
            )


def _size(path: Path) -> int:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.stat().st_size


def _empty_size() -> int:
    with reference.folder() as folder:
        SqliteStore(folder / "layby.db", Settings(), next_after).close()
        return _size(folder / "layby.db")


def _give_back_all(path: Path) -> None:
    """Also the pages that are kept free for new rows: this is about bytes, not about speed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA incremental_vacuum")
    connection.close()


def _prune_all(path: Path, first: Prune) -> None:
    engine = Engine(SqliteStore(path, Settings(), next_after), SystemClock())
    engine.start_inline()
    cursor: str | None = ""
    while cursor is not None:
        done = engine.call(replace(first, cursor=cursor, limit=1_000)).data
        assert isinstance(done, PruneData)
        cursor = done.cursor
    engine.stop()


# --- beside a steady load ----------------------------------------------------------------


def prune_beside_load() -> Iterator[Result]:
    """By command, as `layby prune` does it, all of them; then by time, as retention does it."""
    with reference.folder() as folder:
        path = folder / "layby.db"
        _fill(path, RUNS)
        before = _size(path)
        quiet, pruned, took, rows = asyncio.run(_by_command(path))
        after = _size(path)
        yield _told(f"prune of {RUNS:,} runs, small commands beside it", quiet, pruned, took, rows)
        yield Result(
            "… the file",
            f"{after / before:.0%} of its size",
            "≤ 50 %",
            after <= before / 2,
            f"{before / 2**20:,.0f} MB before, {after / 2**20:,.0f} MB after",
        )
    with reference.folder() as folder:
        path = folder / "layby.db"
        _fill(path, min(RUNS, 100_000))
        quiet, pruned, took, rows = asyncio.run(_by_time(path))
        yield _told("retention at work, small commands beside it", quiet, pruned, took, rows)


def _told(what: str, quiet: list[float], pruned: list[float], took: float, roots: int) -> Result:
    base, beside = percentile(quiet, 0.99), percentile(pruned, 0.99)
    return Result(
        what,
        f"{beside / base:.2f} times as long at p99: {beside:.2f} ms"
        f" (p50 {percentile(pruned, 0.5):.2f}, max {max(pruned):.0f} ms)",
        "p99 ≤ 2 times that without it",
        beside <= 2 * base,
        f"without it: p50 {percentile(quiet, 0.5):.2f}, p99 {base:.2f}, max {max(quiet):.0f} ms;"
        f" {PER_S} commands/s; {roots:,} runs in {took:.0f} s, {roots / took:,.0f}/s",
    )


async def _by_command(path: Path) -> tuple[list[float], list[float], float, int]:
    """With pruning and without it in turns, so that a busy machine is the same for both."""
    engine = Engine(SqliteStore(path, Settings(), next_after), SystemClock())
    lower_switch_interval(SWITCH_INTERVAL_S)  # as every Runner and server does
    engine.start()
    try:
        client = LocalClient(engine)
        quiet, pruned, took, roots = list[float](), list[float](), 0.0, 0
        cursor: str | None = ""
        while cursor is not None:
            quiet += await _load_for(client, QUIET_S)
            stop = threading.Event()
            load = asyncio.create_task(_load(client, stop))
            began = time.perf_counter()
            gone, cursor = await _part(client, cursor, PRUNE_S)
            took, roots = took + time.perf_counter() - began, roots + gone
            stop.set()
            pruned += await load
            _tell_progress(quiet, pruned, took, roots)
        return quiet, pruned, took, roots
    finally:
        engine.stop()
        restore_switch_interval(SWITCH_INTERVAL_S)


def _tell_progress(quiet: list[float], pruned: list[float], took: float, roots: int) -> None:
    if "PROGRESS" in os.environ:
        told = _told("so far", quiet, pruned, took, roots)
        print(time.strftime("%T"), told.measured, told.reference, sep="; ", flush=True)


async def _part(client: LocalClient, cursor: str, seconds: float) -> tuple[int, str | None]:
    """As the command line does it: after each batch, everybody else has as long as it took."""
    roots, until = 0, time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        asked = Prune(completed=0, cursor=cursor, limit=_pace.rows)
        done = (await client.send(asked)).data
        assert isinstance(done, PruneData)
        roots += done.roots
        if done.cursor is None:
            return roots, None
        cursor = done.cursor
        await asyncio.sleep(_pace.pause_after(time.perf_counter() - began))
    return roots, cursor


async def _by_time(path: Path) -> tuple[list[float], list[float], float, int]:
    found = list[list[float]]()
    for settings in (Settings(), Settings(retention=RetentionPolicy(completed_ms=1_000))):
        engine = Engine(SqliteStore(path, settings, next_after), SystemClock())
        engine.start()
        try:
            found.append(await _load_for(LocalClient(engine), BY_TIME_S))
        finally:
            engine.stop()
    connection = sqlite3.connect(path)
    expired = "SELECT count(*) FROM promises WHERE expired_at IS NOT NULL"
    roots = connection.execute(expired).fetchone()[0]
    connection.close()
    return found[0], found[1], BY_TIME_S, roots


async def _load_for(client: LocalClient, seconds: float) -> list[float]:
    stop = threading.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    return await _load(client, stop)


_numbers = count()
_pace = PrunePace()


async def _load(client: LocalClient, stop: threading.Event) -> list[float]:
    """Creates and settles, each at its own time: one that is late does not delay the next."""
    found, running = list[float](), set[asyncio.Task[None]]()

    async def one(key: str, deadline: int) -> None:
        begin = time.perf_counter()
        await client.send(CreatePromise(id=key, timeout_at=deadline, param=VALUE))
        middle = time.perf_counter()
        await client.send(SettlePromise(id=key, state="resolved", value=VALUE))
        found.extend(((middle - begin) * 1000, (time.perf_counter() - middle) * 1000))

    began, deadline = time.perf_counter(), far()
    for number in count():
        if stop.is_set():
            break
        await asyncio.sleep(max(0, began + number * 2 / PER_S - time.perf_counter()))
        running.add(asyncio.create_task(one(f"load-{next(_numbers)}", deadline)))
    await asyncio.gather(*running)
    return found


def _fill(path: Path, number: int) -> None:
    """Ended runs, each a copy of a real one: made by the database, so that a million take seconds.

    `layby doctor` finds nothing wrong with them.
    """
    asyncio.run(_run_many(path, 1))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = off")
    (root,) = connection.execute("SELECT id FROM promises WHERE id = root").fetchone()
    for table in ("promises", "tags"):
        connection.execute(f"CREATE TEMP TABLE first_{table} AS SELECT * FROM main.{table}")
    for start in range(0, number, CHUNK):
        connection.execute("BEGIN")
        for table in ("promises", "tags"):
            _copy(connection, table, root, start, min(start + CHUNK, number))
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    os.sync()  # else the first checkpoints would wait for all of it


def _copy(connection: sqlite3.Connection, table: str, root: str, start: int, end: int) -> None:
    """All rows of this run, for each number with an id of its own."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    new = {
        "id": f"printf('run/%032x', n) || substr(id, {len(root) + 1})",
        "root": "printf('run/%032x', n)",
    }
    cells = ", ".join(new.get(name, f'"{name}"') for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    connection.execute(
        f"""
        WITH RECURSIVE numbers(n) AS
            (SELECT {start} UNION ALL SELECT n + 1 FROM numbers WHERE n < {end - 1})
        INSERT INTO {table} ({names})
        SELECT {cells} FROM numbers CROSS JOIN first_{table} WHERE id = ? OR id LIKE ? || ':%'
        """,
        (root, root),
    )


BENCHES: tuple[Bench, ...] = (growth, prune_beside_load)
