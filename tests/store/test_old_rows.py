"""Rows that an older layby has written, with work that waited: this one goes on with all of it."""

import asyncio
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from layby import Context, Runner
from layby.clock import SystemClock
from layby.core import commands as c
from layby.core.invariants import check
from layby.core.limits import GetLimit
from layby.core.queries import SnapDebug
from layby.core.replies import LimitStanding
from layby.core.settings import Settings
from layby.core.state import State
from layby.engine.engine import Engine, EngineConfig
from layby.engine.opening import clock_of, open_store
from layby.store import migrate
from layby.store.dialect import SqliteDialect
from layby.store.postgres_migrating import prepare_schema
from tests.helpers.newer_layby import knowing
from tests.helpers.postgres import cluster
from tests.store.old_rows import parked

HERE = Path(parked.__file__).parent
ALL = sorted(each.stem for each in HERE.glob("*.sql"))
HOUR_MS = 3_600_000


def statements(name: str) -> list[str]:
    """As if it had been an hour ago, whatever the clock says here."""
    text = (HERE / f"{name}.sql").read_text()
    times = [int(found) for found in re.findall(r"\b17\d{11}\b", text)]
    shift = time.time_ns() // 1_000_000 - HOUR_MS - max(times)
    moved = re.sub(r"\b17\d{11}\b", lambda found: str(int(found[0]) + shift), text)
    return ["DELETE FROM store_time", *moved.splitlines()]


@pytest.fixture(params=ALL)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database with the schema of then, and the rows of then."""
    name: str = request.param
    sort, _, version = name.partition("_")
    return database_of(sort, int(version), statements(name), tmp_path)


def database_of(sort: str, version: int, rows: list[str], folder: Path) -> str:
    then = tuple(each for each in migrate.known() if each.version <= version)
    with knowing(*then):
        return (_postgres if sort == "postgres" else _sqlite)(rows, folder)


def _sqlite(rows: list[str], folder: Path) -> str:
    with closing(sqlite3.connect(folder / "old.db", isolation_level=None)) as file:
        migrate.migrate(file, SqliteDialect())
        for statement in rows:
            file.execute(statement)
    return f"sqlite:{folder / 'old.db'}"


def _postgres(rows: list[str], _: Path) -> str:
    url = cluster().url(cluster().new_database())
    prepare_schema(url)
    with psycopg.connect(url, options="-c search_path=layby") as database:
        for statement in rows:
            database.execute(statement.encode())
    return url


def test_parked_tasks_go_on(address: str) -> None:
    """What was done is not done again; waits, sleeps and back-offs end as they would have."""
    parked.bodies.clear()
    orders, naps, stumbles = asyncio.run(results(address))
    assert (orders["ordered"], orders["shipped"]) == (2, 42)
    assert naps["rested"] is True
    assert stumbles["tries"] == 2
    assert sorted(parked.bodies) == ["nap", "pay", "ship", "stumble"]


async def results(address: str) -> list[Context]:
    async with Runner(address) as runner:
        runs = [
            await runner.start(flow, run_id=run_id)
            for run_id, flow in (
                ("o", parked.ORDERS),
                ("n", parked.NAPS),
                ("s", parked.STUMBLES),
            )
        ]
        assert [run.is_new for run in runs] == [False] * 3
        await runner.resolve("payment-1", {"amount": 21})
        return [await run.result() for run in runs]


def test_suspended_tasks_of_others_go_on(address: str) -> None:
    """Their waits and listeners are as they were, and the whole state is sound."""
    store = open_store(address, "full", Settings())
    engine = Engine(store, clock_of(store, SystemClock()), config=EngineConfig(debug=True))
    engine.start()
    try:
        assert engine.call(c.SettlePromise(id="signal", state="resolved")).is_ok
        state = engine.call(SnapDebug()).data
        now = engine.clock.now()
    finally:
        engine.stop()
    assert isinstance(state, State)
    assert check(state, now) == []
    assert state.tasks["theirs"].state == "pending"
    assert {(each.kind, each.address) for each in state.messages.values()} == {
        ("execute", "poll://any@sdk"),
        ("unblock", "poll://uni@sdk/me"),
    }


def limit_of_0026(name: str, pattern: int, cursor: str | None, paid_us: int = 0) -> str:
    """Killed between two ticks: it is due."""
    told = "NULL" if cursor is None else f"'{cursor}'"
    columns = 'name, defined, pattern, rate, burst, count_parked, held, paid_us, next_at, "cursor"'
    cells = f"'{name}', 1, {pattern}, '1/h', 1, 0, 0, {paid_us}, 1, {told}"
    return f"INSERT INTO limits ({columns}) VALUES ({cells})"


@pytest.mark.parametrize("sort", ["sqlite", "postgres"])
def test_a_cursor_with_two_meanings_becomes_two(sort: str, tmp_path: Path) -> None:
    """How far parked bodies and names have been told is kept, and ticks go on from there."""
    paid_us = (time.time_ns() // 1_000_000 + HOUR_MS // 2) * 1_000
    rows = [
        limit_of_0026("api", 0, "\nrun/x:a"),
        limit_of_0026("t-*", 1, "\n"),
        limit_of_0026("u-*", 1, "u-3"),
        limit_of_0026("paid", 0, None, paid_us),
    ]
    address = database_of(sort, 26, rows, tmp_path)
    store = open_store(address, "full", Settings())
    with store.transaction():
        limits = store.dump().limits
    assert {name: (each.cursor, each.parked_after) for name, each in limits.items()} == {
        "api": (None, "run/x:a"),
        "t-*": ("", ""),
        "u-*": ("u-3", None),
        "paid": (None, None),
    }
    engine = Engine(store, clock_of(store, SystemClock()), config=EngineConfig(debug=True))
    engine.start_inline()
    try:
        engine.pump()
        state = engine.call(SnapDebug()).data
        assert isinstance(state, State)
        told = [(each.cursor, each.parked_after, each.next_at) for each in state.limits.values()]
        assert told == [(None, None, None)] * 4
        paid = engine.call(GetLimit(name="paid")).data
        assert isinstance(paid, LimitStanding)
        assert paid.next_at == paid_us // 1_000
    finally:
        engine.stop()
