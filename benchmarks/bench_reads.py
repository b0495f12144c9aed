"""The bars of part 12: small writes while others read all they can from a large store.

In process, SQLite FULL. The same store is measured quiet and busy, in turns, so that what the
machine does in this minute is in both.
"""

import base64
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import reference
from bars import Bench, Result, percentile

from layby.clock import SystemClock
from layby.core.commands import CreatePromise, RegisterListener
from layby.core.kinds import Query
from layby.core.model import NEVER
from layby.core.queries import ListWaiting, SearchPromises, SearchTasks, SnapDebug
from layby.core.settings import Settings
from layby.core.stats import GetStats
from layby.core.values import Value
from layby.engine.calendar import next_after
from layby.engine.engine import Engine, EngineConfig
from layby.engine.items import Item
from layby.store.sqlite import SqliteStore

ROWS = 100_000
LARGE = 40
LARGE_BYTES = 4 * 2**20
TURNS = 4
TURN_S = 1.5
PAUSE_S = 0.002
"""Between two writes of the caller whose writes are measured: it is one of many, not a flood."""

READS: dict[str, Query] = {
    "promise.search": SearchPromises(limit=1_000, state="pending"),
    "task.search": SearchTasks(limit=1_000),
    "waiting.list": ListWaiting(limit=1),
    "stats": GetStats(),
    "debug.snap": SnapDebug(),
}

_numbers = count()


def reads_beside_writes() -> Iterator[Result]:
    with _large_store() as engine:
        for name, query in READS.items():
            quiet, busy, read = _in_turns(engine, query)
            calm, loaded = percentile(quiet, 0.99) * 1000, percentile(busy, 0.99) * 1000
            yield Result(
                f"small writes while {name} runs in a loop ({ROWS:,} rows, {LARGE} of 4 MB)",
                f"p99 {loaded / calm:.2f} x quiet ({loaded:.2f} ms; {read} reads)",
                "p99 <= 2 x quiet",
                loaded <= 2 * calm,
                f"quiet p99 {calm:.2f} ms, p50 {percentile(quiet, 0.5) * 1000:.2f}; "
                f"busy p50 {percentile(busy, 0.5) * 1000:.2f} ms",
                value=loaded / calm,
                unit="x",
            )


def _in_turns(engine: Engine, query: Query) -> tuple[list[float], list[float], int]:
    quiet: list[float] = []
    busy: list[float] = []
    read = 0
    for _ in range(TURNS):
        quiet += _writes(engine, TURN_S)
        with _reading(engine, query) as done:
            busy += _writes(engine, TURN_S)
        read += done()
    return quiet, busy, read


def _writes(engine: Engine, seconds: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        reply = engine.call(_small())
        found.append(time.perf_counter() - began)
        assert reply.is_ok, reply
        time.sleep(PAUSE_S)
    return found


@contextmanager
def _reading(engine: Engine, query: Query) -> Iterator[Callable[[], int]]:
    """Two callers who ask again as soon as they are answered."""
    is_over, done = threading.Event(), [0, 0]

    def read(number: int) -> None:
        while not is_over.is_set():
            engine.call(query)
            done[number] += 1

    threads = [threading.Thread(target=read, args=(each,)) for each in range(len(done))]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(done)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


# --- the store -------------------------------------------------------------------------------


@contextmanager
def _large_store() -> Iterator[Engine]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as every Runner does
    with reference.folder() as path:
        engine = Engine(_store(path), SystemClock(), config=EngineConfig(debug=True))
        engine.start()
        try:
            _fill(engine)
            yield engine
        finally:
            engine.stop()
            sys.setswitchinterval(interval)


def _store(path: Path) -> SqliteStore:
    return SqliteStore(path / "large.db", Settings(), next_after)


def _fill(engine: Engine) -> None:
    """Small promises and tasks, and in front of what waits the longest, large ones."""
    for number in range(LARGE):
        large = base64.b64encode(os.urandom(LARGE_BYTES * 3 // 4)).decode()
        promise_id = f"large-{number}"
        create = CreatePromise(id=promise_id, timeout_at=NEVER, param=Value(data=large), tags={})
        assert engine.call(create).is_ok
        listen = RegisterListener(awaited=promise_id, address="http://127.0.0.1:9/")
        assert engine.call(listen).is_ok
    for _ in range(ROWS // 500):
        engine.submit([Item(_small(), _ignore) for _ in range(500)])
    engine.call(_small())


def _small() -> CreatePromise:
    number = next(_numbers)
    tags = {"resonate:target": "poll://any@others"} if number % 4 == 0 else {"n": str(number)}
    return CreatePromise(
        id=f"small-{number:08}", timeout_at=NEVER, param=Value(data="aGVsbG8="), tags=tags
    )


def _ignore(_: object) -> None:
    """Only the last one is waited for."""


BENCHES: tuple[Bench, ...] = (reads_beside_writes,)
