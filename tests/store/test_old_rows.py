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
from layby.core.queries import SnapDebug
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
    then = tuple(each for each in migrate.known() if each.version <= int(version))
    with knowing(*then):
        return (_postgres if sort == "postgres" else _sqlite)(name, tmp_path)


def _sqlite(name: str, folder: Path) -> str:
    with closing(sqlite3.connect(folder / "old.db", isolation_level=None)) as file:
        migrate.migrate(file, SqliteDialect())
        for statement in statements(name):
            file.execute(statement)
    return f"sqlite:{folder / 'old.db'}"


def _postgres(name: str, _: Path) -> str:
    url = cluster().url(cluster().new_database())
    prepare_schema(url)
    with psycopg.connect(url, options="-c search_path=layby") as database:
        for statement in statements(name):
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
