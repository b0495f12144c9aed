"""Work that an older layby has left waiting, and that this one finishes.

Run by a layby, it leaves a store as a process does that was killed, and prints the rows of it:

    git worktree add /tmp/older COMMIT
    PYTHONPATH=/tmp/older/src python tests/store/old_rows/parked.py sqlite:/tmp/a.db > FILE
    PYTHONPATH=/tmp/older/src python tests/store/old_rows/parked.py postgresql://… > FILE

`sqlite_0008.sql` is of commit 4cff5b9, `sqlite_0016.sql` and `postgres_0016.sql` of 1cd4c13. The
number is that of the schema. Bodies must stay as they are: what is recorded of them is compared
with what they do.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from layby import Context, RetryPolicy, Runner, TaskHandle, Workflow, task
from layby.clock import SystemClock
from layby.core import commands as c
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine

NEVER = 2**53 - 1
bodies: list[str] = []
"""Which bodies were begun, or parts of them done, in this process."""


@task
async def order(context: Context) -> None:
    bodies.append("order")
    context["ordered"] = 2


@task(dependencies=["order"])
async def pay(context: Context, handle: TaskHandle) -> None:
    bodies.append("pay")
    await handle.checkpoint("reserve", lambda: bodies.append("reserve"))
    context["paid"] = await handle.wait_for("payment-1")


@task(dependencies=["pay"])
async def ship(context: Context) -> None:
    bodies.append("ship")
    context["shipped"] = context["paid"]["amount"] * context["ordered"]


@task
async def nap(context: Context, handle: TaskHandle) -> None:
    bodies.append("nap")
    await handle.sleep(20)
    context["rested"] = True


@task(retry=RetryPolicy(max_attempts=3, backoff="fixed", delay=20))
async def stumble(context: Context, handle: TaskHandle) -> None:
    bodies.append("stumble")
    if handle.try_number == 1:
        raise RuntimeError("the first try fails")
    context["tries"] = handle.try_number


ORDERS = Workflow("orders", tasks=[order, pay, ship])
NAPS = Workflow("naps", tasks=[nap])
STUMBLES = Workflow("stumbles", tasks=[stumble])


def suspend_a_task_of_an_sdk(engine: Engine) -> None:
    """It waits for the promise `signal`, which somebody else listens to."""
    tags = {"resonate:target": "poll://any@sdk"}
    wait = c.RegisterCallback(awaited="signal", awaiter="theirs")
    listen = c.RegisterListener(awaited="signal", address="poll://uni@sdk/me")
    for command in (
        c.CreatePromise(id="signal", timeout_at=NEVER),
        c.CreatePromise(id="theirs", timeout_at=NEVER, tags=tags),
        c.AcquireTask(id="theirs", version=0, pid="sdk", ttl=60_000),
        c.SuspendTask(
            id="theirs",
            version=1,
            actions=[c.SuspendAction("promise.register_callback", {}, wait)],
        ),
        listen,
    ):
        assert engine.call(command).status == 200, command


async def park(address: str) -> None:
    lease: dict[str, Any] = {"lease": 1} if address.startswith("postgres") else {}
    runner = Runner(address, **lease)  # a short one, so that whoever goes on need not wait
    await runner.__aenter__()
    for run_id, flow in (("o", ORDERS), ("n", NAPS), ("s", STUMBLES)):
        await runner.start(flow, run_id=run_id)
    while not {"pay", "reserve", "nap", "stumble"}.issubset(bodies):  # noqa: ASYNC110 - a script
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)  # until all of it is written
    os._exit(0)


def engine_on(address: str) -> Engine:
    if address.startswith("postgres"):
        from layby.store.postgres import PostgresStore

        store: Any = PostgresStore(address, Settings(), next_after)
        return Engine(store, store.clock_beside(SystemClock().elapsed))
    from layby.store.sqlite import SqliteStore

    path = address.removeprefix("sqlite:")
    return Engine(SqliteStore(path, Settings(), next_after), SystemClock())


# --- rows --------------------------------------------------------------------------------


def rows_of(address: str) -> Iterator[str]:
    """As statements; what is NULL is left out."""
    if address.startswith("postgres"):
        import psycopg

        with psycopg.connect(address, options="-c search_path=layby") as database:
            found = database.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'layby' ORDER BY 1"
            )
            yield from inserts([name for (name,) in found], database.execute)
        return
    with closing(sqlite3.connect(address.removeprefix("sqlite:"))) as file:
        found = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        yield from inserts([name for (name,) in found], file.execute)


def inserts(tables: Iterable[str], execute: Any) -> Iterator[str]:
    for table in tables:
        if table == "layby_migrations":
            continue
        cursor = execute(f"SELECT * FROM {table}")
        names = [each[0] for each in cursor.description]
        for row in cursor.fetchall():
            cells = {n: v for n, v in zip(names, row, strict=True) if v is not None}
            columns = ", ".join(f'"{name}"' for name in cells)
            values = ", ".join(map(literal, cells.values()))
            yield f"INSERT INTO {table} ({columns}) VALUES ({values});"


def literal(cell: object) -> str:
    return str(cell) if isinstance(cell, int) else "'" + str(cell).replace("'", "''") + "'"


def main(address: str, part: str = "") -> None:
    if part == "park":
        asyncio.run(park(address))
    engine = engine_on(address)
    engine.start()
    suspend_a_task_of_an_sdk(engine)
    engine.stop()
    subprocess.run([sys.executable, __file__, address, "park"], check=True, timeout=60)
    for line in rows_of(address):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
