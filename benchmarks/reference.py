"""Bare loops that say what this machine can do in this minute; every bar is read beside them."""

import asyncio
import heapq
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from layby.store.dialect import SqliteDialect
from layby.store.migrate import migrate

QUIET_COMMITS_PER_S = 4_000
"""Absolute bars are meant for a minute in which a bare FULL commit loop makes at least these."""

_PARAM = '{"headers":{},"data":"aGVsbG8gd29ybGQ="}'


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on the real disk (a RAM disk would flatter), removed afterwards."""
    path = Path(
        tempfile.mkdtemp(prefix="layby-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp"))
    )
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Row(msgspec.Struct):
    id: str
    state: str
    version: int
    tags: dict[str, str]
    value: str


def turns_per_s(slices: int = 7, slice_s: float = 0.05) -> float:
    """How fast this processor is at what layby does all day, and nothing of it on a disk.

    A turn encodes a row, decodes it, keeps it by its id, gives it a place in a heap of 1,000 and
    takes out the first: what another machine, or another hour, makes slower is seen here as well.
    """
    return statistics.median(_turns_per_s(slice_s) for _ in range(slices))


def _turns_per_s(seconds: float) -> float:
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(_Row)
    rows: dict[str, _Row] = {}
    heap = [(number, f"first-{number}") for number in range(1_000)]
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(100):
            done += 1
            row = _Row(f"run/{done}:task", "pending", done, {"layby:name": "task"}, _PARAM)
            again = decoder.decode(encoder.encode(row))
            rows[again.id] = again
            heapq.heappush(heap, (done * 7_919 % 1_000, again.id))
            rows.pop(heapq.heappop(heap)[1], None)
    return done / (time.perf_counter() - start)


def commits_per_s(count: int = 2_000) -> float:
    seconds = sum(commit_seconds(count))
    return count / seconds


def commit_p50_ms(count: int = 1_000) -> float:
    return statistics.median(commit_seconds(count)) * 1000


def commit_seconds(count: int) -> list[float]:
    """One row, one FULL commit, again and again."""
    with folder() as path:
        connection = _connect(path / "bare.db")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)")
        found = [_timed(connection, "INSERT INTO t (value) VALUES ('x')") for _ in range(count)]
        connection.close()
    return found


def handed_over_p50_ms(rest_s: float, count: int = 200) -> float:
    """A loop rests, hands one row to a thread, which commits it (FULL), and hears of it.

    The least that an asyncio program does to have something on the disk by a thread of its own,
    with nothing decided, looked up or woken. Processors that have rested are slow at first:
    whatever is measured after a rest is read beside this.
    """
    return statistics.median(asyncio.run(_handed_over(rest_s, count))) * 1000


async def _handed_over(rest_s: float, count: int) -> list[float]:
    found: list[float] = []
    loop = asyncio.get_running_loop()
    with folder() as path, ThreadPoolExecutor(1) as thread:
        connection = _connect(path / "bare.db", check_same_thread=False)
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)")
        for _ in range(count):
            await asyncio.sleep(rest_s)
            start = time.perf_counter()
            await loop.run_in_executor(
                thread, connection.execute, "INSERT INTO t (value) VALUES ('x')"
            )
            found.append(time.perf_counter() - start)
        connection.close()
    return found


def statements_per_s(rows: int = 20_000, per_commit: int = 64, *, narrow: bool = False) -> float:
    """Insert a row, later update it; one FULL commit per 64 statements.

    The table is layby's own, indexes included: what SQLite alone needs to keep the same data.
    `narrow` is a table of three columns and no index but its key.
    """
    with folder() as path:
        connection = _connect(path / "bare.db")
        if narrow:
            connection.execute(_NARROW_TABLE)
        else:
            migrate(connection, SqliteDialect())
        start = time.perf_counter()
        done = _insert_and_update(connection, rows, per_commit, _NARROW if narrow else _FULL)
        seconds = time.perf_counter() - start
        connection.close()
    return done / seconds


_FULL = """
    INSERT INTO promises
    (id, root, param, tags, timeout_at, created_at, timer, placeholder, state, value)
    VALUES (?1, ?1, ?2, '{}', 1700000060000, 1700000000000, 0, 0, 'pending', '{}')
"""
_NARROW_TABLE = "CREATE TABLE promises (id TEXT PRIMARY KEY, state TEXT, value TEXT)"
_NARROW = "INSERT INTO promises VALUES (?1, 'pending', ?2)"
_UPDATE = "UPDATE promises SET state = 'resolved', value = ? WHERE id = ?"


def _insert_and_update(
    connection: sqlite3.Connection, rows: int, per_commit: int, insert: str
) -> int:
    done = 0
    connection.execute("BEGIN")
    for index in range(rows + per_commit):
        if index < rows:
            connection.execute(insert, (f"promise-{index}", _PARAM))
            done = _count(connection, done, per_commit)
        if index >= per_commit:
            connection.execute(_UPDATE, (_PARAM, f"promise-{index - per_commit}"))
            done = _count(connection, done, per_commit)
    connection.execute("COMMIT")
    return done


def _count(connection: sqlite3.Connection, done: int, per_commit: int) -> int:
    if (done + 1) % per_commit == 0:
        connection.execute("COMMIT")
        connection.execute("BEGIN")
    return done + 1


def _connect(path: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=check_same_thread)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _timed(connection: sqlite3.Connection, statement: str) -> float:
    start = time.perf_counter()
    connection.execute(statement)
    return time.perf_counter() - start
