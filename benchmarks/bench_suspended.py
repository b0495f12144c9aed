"""A bar of part 13: suspended tasks cost those that run nothing.

Two stores side by side: few tasks are suspended in one, `SUSPENDED` in the other (50,000 unless
that is set; the bar is about 1,000,000). Each waits for a promise of its own. In turn, 64 are
resumed by settling their promises in one batch, and then taken. Once these are new ones, as of a
run that goes on beside those that wait; once they are chosen at random among those that wait.

Cost is processor time, of the writer's thread and of its connections' backends: what else the
machine does would be in the time by the clock, which is told beside it.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import reference
from bars import Bench, Result
from bench_core import HOUR_MS, IN_FLIGHT, VALUE
from bench_postgres import Cluster, cluster_on_disk, fdatasync_ms
from msgspec.structs import replace

from layby.clock import SystemClock
from layby.core.address import target_of
from layby.core.changes import Changes
from layby.core.commands import (
    AcquireTask,
    CreatePromise,
    FinishTask,
    RegisterCallback,
    SettlePromise,
    SuspendAction,
    SuspendTask,
    Take,
)
from layby.core.model import NEVER
from layby.core.replies import Reply, TakeData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Item
from layby.engine.opening import clock_of
from layby.store.postgres import PostgresStore
from layby.store.sqlite import SqliteStore

SUSPENDED = int(os.environ.get("SUSPENDED", "50000"))
WARM, ROUNDS = 10, 60
RESUMED = (WARM + ROUNDS) * IN_FLIGHT
CHUNK = 2_000
TAGS = {"resonate:target": target_of("bench"), "layby:name": "work"}
TAKE = Take(pid="w", incarnation="1", group="bench", names=("work",), free=IN_FLIGHT, embedded=True)
Store = SqliteStore | PostgresStore
Spent = Callable[[], float]
"""Processor seconds until now."""


class Side:
    """A store with this many suspended tasks, and an engine on it."""

    def __init__(self, store: Store, suspended: int, spent: Spent = time.thread_time) -> None:
        self._store = store
        self._spent = spent
        self._engine = Engine(store, clock_of(store, SystemClock()))
        self._engine.start_inline()
        self._suspend_one()
        self._copies = Copies(store)
        self._copies.add(suspended)
        numbers = random.Random(suspended).sample(range(suspended), RESUMED)
        self._chosen = [f"{number:07}" for number in numbers]
        self.times: dict[str, list[tuple[float, float]]] = {}
        """Of each kind of batch: seconds of a processor, and by the clock."""

    def resume_new(self) -> None:
        first = self._copies.add(IN_FLIGHT)
        self._resume([f"{first + at:07}" for at in range(IN_FLIGHT)], "beside")

    def resume_chosen(self) -> None:
        self._resume([self._chosen.pop() for _ in range(IN_FLIGHT)], "of")

    def _resume(self, some: list[str], which: str) -> None:
        """And end them, which is not measured."""
        settles = [SettlePromise(id=f"s{each}", state="resolved", value=VALUE) for each in some]
        self._timed(f"settle 64 {which}", settles)
        (reply,) = self._timed(f"take 64 {which}", [TAKE])
        assert isinstance(reply.data, TakeData)
        tasks = [claim.task for claim in reply.data.claims]
        assert {each.id for each in tasks} == {f"t{each}" for each in some}
        self._timed("", [FinishTask(id=each.id, version=each.version) for each in tasks])

    def close(self) -> None:
        self._engine.stop()

    def _timed(self, what: str, commands: Sequence[Any]) -> list[Reply]:
        """All in one batch."""
        futures: list[Future[Reply]] = [Future() for _ in commands]
        pairs = zip(commands, futures, strict=True)
        items = [Item(command, _resolve, future) for command, future in pairs]
        spent, start = self._spent(), time.perf_counter()
        self._engine.submit(items)
        self._engine.pump()
        wall = time.perf_counter() - start
        self.times.setdefault(what, []).append((self._spent() - spent, wall))
        return [future.result(0) for future in futures]

    def _suspend_one(self) -> None:
        """By commands, so that copies of it are what the engine itself writes."""
        wait = RegisterCallback(awaited="s", awaiter="t")
        for command in (
            CreatePromise(id="s", timeout_at=NEVER),
            CreatePromise(id="t", timeout_at=NEVER, tags=TAGS),
            AcquireTask(id="t", version=0, pid="p", ttl=HOUR_MS),
            SuspendTask(
                id="t",
                version=1,
                actions=[SuspendAction(kind="promise.register_callback", head={}, data=wait)],
            ),
        ):
            assert self._engine.call(command).is_ok


def _resolve(answers: Any) -> None:
    for item, reply in answers:
        item.token.set_result(reply)


class Copies:
    """Of the one task that was suspended by commands, its promise and its wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        state = store.dump()
        self._signal, self._promise = state.promises["s"], state.promises["t"]
        self._task, self._wait = state.tasks["t"], state.waits["s", "t"]
        self._next = 0

    def add(self, count: int) -> int:
        """The number of the first one."""
        first, self._next = self._next, self._next + count
        for start in range(first, self._next, CHUNK):
            changes = Changes()
            for number in range(start, min(start + CHUNK, self._next)):
                self._copy(changes, f"{number:07}")
            with self._store.transaction():
                self._store.save(changes)
        return first

    def _copy(self, changes: Changes, number: str) -> None:
        signal, key = f"s{number}", f"t{number}"
        changes.promises[signal] = replace(self._signal, id=signal, root=signal)
        changes.promises[key] = replace(self._promise, id=key, root=key)
        changes.tasks[key] = replace(self._task, id=key)
        changes.born |= {signal, key}
        changes.waits[signal, key] = replace(self._wait, awaited=signal, awaiter=key)


def _compare(name: str, few: Side, many: Side, told: Callable[[], str]) -> Iterator[Result]:
    try:
        for number in range(WARM + ROUNDS):
            in_turn = (few, many) if number % 2 else (many, few)
            for each in in_turn:
                each.resume_new()
            for each in in_turn:
                each.resume_chosen()
    finally:
        few.close()
        many.close()
    for what in filter(None, few.times):
        one, other = (_medians_ms(each.times[what][WARM:]) for each in (few, many))
        yield Result(
            f"{name}: {what} {SUSPENDED:,} suspended tasks",
            f"{other[0] / one[0]:.2f} x the empty store's ({other[0]:.2f} ms, {one[0]:.2f} ms; "
            f"by the clock {other[1]:.1f}, {one[1]:.1f})",
            "≤ 1.3 x",
            other[0] <= 1.3 * one[0],
            told(),
            other[0] / one[0],
            "x",
        )


def _medians_ms(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    cpu, wall = zip(*times, strict=True)
    return statistics.median(cpu) * 1000, statistics.median(wall) * 1000


def suspended_sqlite() -> Iterator[Result]:
    with reference.folder() as path:
        few, many = (
            Side(SqliteStore(path / f"{number}.db", Settings(), next_after), number)
            for number in (RESUMED, SUSPENDED)
        )
        told = f"bare FULL commit p50 {reference.commit_p50_ms():.3f} ms"
        yield from _compare("SQLite", few, many, lambda: told)


def suspended_postgres() -> Iterator[Result]:
    def told() -> str:
        return f"fdatasync p50 {fdatasync_ms():.2f} ms"

    with ExitStack() as stack:
        few, many = (
            _side_on(stack.enter_context(cluster_on_disk()), number)
            for number in (RESUMED, SUSPENDED)
        )
        yield from _compare("PostgreSQL", few, many, told)


def _side_on(cluster: Cluster, suspended: int) -> Side:
    """Those that wait have been there for long: they are on disk, and the tables are cleaned up."""
    name = cluster.new_database()
    store = PostgresStore(cluster.url(name), Settings(), next_after)
    with store.transaction():  # connects
        store.store_time()
    backends = cluster.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'layby'", name
    )
    counted = [Path(f"/proc/{pid}/schedstat") for (pid,) in backends]

    def spent() -> float:
        """In this thread, and by what the kernel has counted for the store's connections."""
        return time.thread_time() + sum(int(each.read_text().split()[0]) for each in counted) / 1e9

    side = Side(store, suspended, spent)
    for statement in ("VACUUM ANALYZE", "CHECKPOINT"):
        cluster.execute(statement, name)
    return side


BENCHES: tuple[Bench, ...] = (suspended_sqlite, suspended_postgres)
