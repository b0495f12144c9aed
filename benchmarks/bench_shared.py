"""The bars of part 13 for several processes on one PostgreSQL database.

`python benchmarks/bench_shared.py URL NAME SECONDS` is one engine with its callers: it says that it
is ready, waits for a line, and then tells how many commands it has done and its processor time.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bars import Bench, Result, percentile
from bench_core import IN_FLIGHT, VALUE, create_and_settle, far
from bench_postgres import client_on, cluster_on_disk, database, fdatasync_ms
from bench_server import REST_S, server_on, settle_to_code_ms, settle_to_execute_ms

from layby.core.commands import CreatePromise, SettlePromise
from layby.local import LocalClient

# ruff: noqa: RUF001 - results show the sign of times

SECONDS = 8.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


# --- engines ---------------------------------------------------------------------------------


class Done(NamedTuple):
    commands: float
    engines_s: float
    """Processor time of the engines and their callers."""
    database_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        return self.commands / self.wall_s

    @property
    def split(self) -> str:
        share = self.engines_s / self.wall_s, self.database_s / self.wall_s
        return f"engines {share[0]:.2f} + PostgreSQL {share[1]:.2f} cores"


async def engine(url: str, name: str, seconds: float) -> None:
    async with client_on(url) as client:
        await create_and_settle(client, 2_000, f"{name}-warm")
        print("ready", flush=True)
        sys.stdin.readline()
        cpu = time.process_time()
        done = await commands_in(client, name, seconds)
        print(done, time.process_time() - cpu, flush=True)
        sys.stdin.readline()


async def commands_in(client: LocalClient, name: str, seconds: float) -> int:
    """How many are answered; every promise is a root of its own."""
    until, deadline, done = time.perf_counter() + seconds, far(), 0

    async def caller(number: int) -> None:
        nonlocal done
        for index in range(1_000_000):
            if time.perf_counter() > until:
                return
            key = f"{name}-{number}-{index}"
            await client.send(CreatePromise(id=key, timeout_at=deadline, param=VALUE))
            await client.send(SettlePromise(id=key, state="resolved", value=VALUE))
            done += 2

    await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
    return done


def engines(count: int, seconds: float = SECONDS) -> Done:
    """So many at once, on a database of their own; what counts is the time in which all work."""
    with cluster_on_disk() as cluster, ExitStack() as stack:
        url = cluster.url(cluster.new_database())
        made = [stack.enter_context(_child(url, f"e{at}", seconds)) for at in range(count)]
        for each in made:
            assert _said(each) == "ready"
        start, before = time.perf_counter(), database_seconds(cluster.pid)
        for each in made:
            _let_go(each)
        told = [_said(each).split() for each in made]
        wall, database = time.perf_counter() - start, database_seconds(cluster.pid) - before
        for each in made:
            _let_go(each)
    commands, cpu = (sum(float(each[at]) for each in told) for at in (0, 1))
    return Done(commands, cpu, database, wall)


def _child(url: str, name: str, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, url, name, str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _let_go(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def database_seconds(postmaster: int | None) -> float:
    """Processor time of all processes of this PostgreSQL that are still there."""
    stats = [_stat(each) for each in Path("/proc").glob("[0-9]*")]
    ours = [each for each in stats if each and each[1] == str(postmaster)]
    return sum(int(each[11]) + int(each[12]) for each in ours) / TICKS_PER_S


def _stat(folder: Path) -> Sequence[str]:
    """From the state on, which is field 3 in proc(5)."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ()


def postgres_two_engines() -> Iterator[Result]:
    one, two = engines(1), engines(2)
    yield Result(
        "PostgreSQL: two engine processes, in-process callers, disjoint roots",
        f"{two.rate / one.rate:.2f} × one ({one.rate:,.0f} and {two.rate:,.0f} commands/s)",
        "≥ 1.3 × one",
        two.rate >= 1.3 * one.rate,
        f"one: {one.split}; two: {two.split} of {os.cpu_count()}; "
        f"fdatasync p50 {fdatasync_ms():.2f} ms",
    )


# --- servers ---------------------------------------------------------------------------------


def postgres_wake_across() -> Iterator[Result]:
    """Who waits is connected to one server, who settles to the other. Both kinds of workers are
    measured at once and after a rest: figures of the one and of the other do not compare.
    """
    for rest_s, when in (0, ""), (REST_S, f", after {REST_S * 1000:.0f} ms of rest"):
        with database() as url, server_on(url) as here, server_on(url) as there:
            executes = settle_to_execute_ms(here, there, rest_s)
            urls = [f"http://127.0.0.1:{port}" for port in (here, there)]
            code = asyncio.run(settle_to_code_ms(*urls, rest_s=rest_s))
        yield _woken(f"execute received by an SDK worker at another{when}", executes)
        yield _woken(f"code after wait_for in a layby worker of another{when}", code)


def _woken(what: str, found: list[float]) -> Result:
    p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
    return Result(
        f"PostgreSQL: settled at one server → {what}",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms",
        "p50 ≤ 6 ms, p99 ≤ 30 ms",
        p50 <= 6 and p99 <= 30,
        f"fdatasync p50 {fdatasync_ms():.2f} ms; load {os.getloadavg()[0]:.1f}",
    )


BENCHES: tuple[Bench, ...] = (postgres_two_engines, postgres_wake_across)

if __name__ == "__main__":
    asyncio.run(engine(sys.argv[1], sys.argv[2], float(sys.argv[3])))
