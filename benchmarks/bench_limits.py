"""The bars of limits: what a permit costs while many tasks wait for one, and that waiting is idle.

Both kinds of task are in one store and take turns, so that a slower moment meets both.
"""

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

import reference
from bars import Bench, Result
from bench_worker import commits
from children import numbers_from, run_asked

from layby import Runner, Workflow, task
from layby.clock import SystemClock
from layby.core.commands import FinishTask, Node, SetLimit, StartRun, Take
from layby.core.replies import FinishData, TakeData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.sqlite import SqliteStore

# ruff: noqa: ARG001 - bodies take a context

WAITING = 10_000
CONCURRENCY = 2
ROUNDS = 400
PORTION = 5_000
WATCHED_S = 10.0


class Stream:
    """Tasks of one name: two are held at any time, and each end brings the next."""

    def __init__(self, engine: Engine, name: str, limits: tuple[str, ...]) -> None:
        self._engine = engine
        self._name = name
        numbers = count()
        for start in range(0, WAITING, PORTION):
            nodes = tuple(
                Node(id=f"n{next(numbers)}", name=name, limits=limits) for _ in range(PORTION)
            )
            _sent(engine, StartRun(id=f"run/{name}-{start}", name="w", group="g", nodes=nodes))
        taken = _sent(engine, self._take(CONCURRENCY))
        assert isinstance(taken, TakeData)
        self._held = [(claim.task.id, claim.task.version) for claim in taken.claims]
        assert len(self._held) == CONCURRENCY

    def next(self) -> float:
        """Finish the older one, which brings another; the seconds of processor that took."""
        task_id, version = self._held.pop(0)
        finish = FinishTask(id=task_id, version=version, take=self._take(1))
        began = time.process_time()
        done = _sent(self._engine, finish)
        took = time.process_time() - began
        assert isinstance(done, FinishData)
        (claim,) = done.taken.claims
        self._held.append((claim.task.id, claim.task.version))
        return took

    def _take(self, free: int) -> Take:
        pid = f"p-{self._name}"
        return Take(pid=pid, incarnation="1", group="g", names=(self._name,), free=free)


def _sent(engine: Engine, command: object) -> object:
    reply = engine.call(command)  # type: ignore[arg-type]
    assert reply.is_ok, reply
    return reply.data


def limited_take_and_finish() -> Iterator[Result]:
    with reference.folder() as path:
        engine = Engine(SqliteStore(path / "layby.db", Settings(), next_after), SystemClock())
        engine.start_inline()
        _sent(engine, SetLimit(name="api", concurrency=CONCURRENCY))
        free, limited = Stream(engine, "free", ()), Stream(engine, "limited", ("api",))
        for _ in range(50):
            free.next()
            limited.next()
        pairs = [(free.next(), limited.next()) for _ in range(ROUNDS)]
        engine.stop()
    without, with_limit = (median(each) for each in zip(*pairs, strict=True))
    ratio = with_limit / without
    yield Result(
        f"finish and take under a limit of {CONCURRENCY}, {WAITING:,} waiting for it",
        f"{ratio:.2f} times the {without * 1e6:,.0f} µs of processor without a limit",
        "≤ 1.3 times",
        ratio <= 1.3,
        commits(),
        ratio,
        "times",
    )


@task(limit="api")
async def holds(context):
    await asyncio.sleep(3_600)


HOLDS = Workflow("holds", tasks=[holds])


async def _idle(path: Path, waiting: int) -> None:
    async with Runner(f"sqlite:{path}", slots=8, grace=0) as runner:
        await runner.limit("api", concurrency=CONCURRENCY)
        for start in range(0, waiting, 200):
            await asyncio.gather(*(runner.start(HOLDS) for _ in range(start, start + 200)))
        await asyncio.sleep(1)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(WATCHED_S)
        print((time.process_time() - used) / (time.perf_counter() - began))


def idle_under_a_limit() -> Iterator[Result]:
    with reference.folder() as path:
        (share,) = numbers_from(__file__, "idle", path / "layby.db", WAITING)
    yield Result(
        f"{WAITING:,} tasks wait for a limit of {CONCURRENCY}: idle CPU over {WATCHED_S:.0f} s",
        f"{share:.2%} of a core",
        "≤ 1 %",
        share <= 0.01,
        commits(),
    )


BENCHES: tuple[Bench, ...] = (limited_take_and_finish, idle_under_a_limit)

if __name__ == "__main__":
    run_asked({"idle": _idle})
