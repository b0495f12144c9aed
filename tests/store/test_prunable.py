"""What pruning asks of a store: by index, in order, without values, and the file shrinks."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.endings import OF_TREES, STAGES, Look, stage_of
from layby.core.model import NEVER
from layby.core.pruning import LONGEST_PASS_MS, PACE_MS, Cursor
from layby.core.replies import PruneData
from layby.core.settings import RetentionPolicy, Settings
from layby.engine.batch import declared
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.memory import MemoryStore
from layby.store.postgres import PostgresStore
from layby.store.shrinking import LEAST_SPARE_PAGES, free_space
from layby.store.sql import SqlStore
from layby.store.sqlite import SqliteStore
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock
from tests.helpers.random_runs import SMALL, seeded_run_script
from tests.helpers.worlds import World, new_store


def test_every_stage_is_a_range_of_its_index() -> None:
    """However many promises there are, a batch reads no more than it needs, and sorts nothing."""
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        sql = store._sql
        told = [(stage, sql.stages_after[stage]) for stage in STAGES]
        told += [(stage, sql.stages_from[stage]) for stage in OF_TREES]
        for stage, statement in told:
            index = {"ids": "promises_expired", "holders": "holders_past"}.get(
                stage, f"promises_{stage}"
            )
            plan = plan_of(store, statement, (0, "", 9, 9))
            assert any(f"INDEX {index} (" in line for line in plan), plan
            assert not any("TEMP B-TREE" in line for line in plan), plan


def test_what_is_known_of_candidates_is_found_by_index() -> None:
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        sql = store._sql
        for statement, given in (
            (sql.ids_below, ("[]", "", "", 9)),
            (sql.lean_pairs, ("[]",)),
            (sql.awaited_ids, ("[]", "[]", "[]")),
            (sql.drop_tags.text, ("[]",)),
            (sql.due_remains, (0, 9)),
        ):
            plan = plan_of(store, statement, given)
            scans = [line for line in plan if line.startswith("SCAN")]
            assert all("json_each" in line or "subquery" in line for line in scans), plan


def plan_of(store: SqlStore, statement: str, given: tuple[object, ...]) -> list[str]:
    found = store._connection.execute(f"EXPLAIN QUERY PLAN {statement}", given).fetchall()
    return [row[3] for row in found]


@pytest.mark.parametrize("seed", range(6))
def test_the_indexes_hold_what_core_says(seed: int) -> None:
    """Of every row of random states, in both stores."""
    script = seeded_run_script(seed, 150, early=True, prunes=True)
    for backend in ("memory", "sqlite"):
        with World(backend, settings=SMALL) as world:
            for request, now in script:
                world.send(request, now)
            state, store = world.dump(), world.store
            expected = {stage: list[tuple[int, str]]() for stage in STAGES}
            for key, promise in state.promises.items():
                if (found := stage_of(promise, state.tasks.get(key))) is not None:
                    expected[found[0]].append((found[1], key))
            assert isinstance(store, SqlStore | MemoryStore)
            for stage in STAGES[:-1]:
                got = store.ended_keys(Look(stage, 0, 1), 2**62, 10_000)
                assert got == sorted(expected[stage]), stage


def test_values_are_not_loaded() -> None:
    """A batch may be about rows of megabytes."""
    with World("sqlite") as world:
        world.ok(r.promise("x"))
        world.ok(c.SettlePromise(id="x", state="resolved", value=c.Value(data="eA==" * 1_000)))
        command = c.Prune(completed=0, foreign=True, cursor='[2,-1,"",null,0]')
        rows = world.store.load(declared([(command, 0)], 0), 0)
        assert rows.promises["x"].value == "{}"
        assert rows.found is not None
        assert rows.found.keys == [(0, "x")]


def test_the_file_shrinks(tmp_path: Path) -> None:
    """As rows go, down to what is kept free for new ones."""
    path = tmp_path / "layby.db"
    engine = Engine(SqliteStore(path, Settings(), next_after, "normal"), ManualClock(0))
    engine.start_inline()
    value = c.Value(data="eA==" * 500)
    for number in range(3_000):
        engine.call(r.promise(f"p{number}"))
        engine.call(c.SettlePromise(id=f"p{number}", state="resolved", value=value))
    full = sizes(path)
    cursor: str | None = ""
    while cursor is not None:
        prune = c.Prune(completed=0, foreign=True, limit=50, cursor=cursor)
        cursor = pruned(engine, prune).cursor
    engine.stop()
    after = sizes(path)
    assert after.size < full.size / 2
    assert after.free // 4096 <= LEAST_SPARE_PAGES + 64
    assert after.is_given_back


def test_the_file_shrinks_after_a_few_large_values(tmp_path: Path) -> None:
    """They leave more room in one batch than is given back in one: a pass ends when it is gone."""
    path = tmp_path / "layby.db"
    engine = Engine(SqliteStore(path, Settings(), next_after, "normal"), ManualClock(0))
    engine.start_inline()
    prune_large(engine)
    last = c.Prune(completed=0, cursor=Cursor(len(STAGES) - 1).text)
    assert pruned(engine, replace(last, dry_run=True)).cursor is None
    while (cursor := pruned(engine, last).cursor) is not None:
        last = replace(last, cursor=cursor)
    engine.stop()
    assert sizes(path).free // 4096 <= LEAST_SPARE_PAGES


def test_the_file_shrinks_by_itself_as_well(tmp_path: Path) -> None:
    """A pass of retention goes on in its usual pace until the room is given back."""
    path = tmp_path / "layby.db"
    kept = Settings(retention=RetentionPolicy(completed_ms=NEVER))
    clock = ManualClock(0)
    engine = Engine(SqliteStore(path, kept, next_after, "normal"), clock)
    engine.start_inline()
    prune_large(engine)
    clock.set(2 * LONGEST_PASS_MS)
    for _ in range(60):
        engine.pump()
        clock.advance(PACE_MS)
    engine.stop()
    assert sizes(path).free // 4096 <= LEAST_SPARE_PAGES


def prune_large(engine: Engine) -> None:
    """A thousand pages, in one batch."""
    value = c.Value(data="eA==" * 50_000)
    for number in range(20):
        engine.call(r.promise(f"p{number}"))
        engine.call(c.SettlePromise(id=f"p{number}", state="resolved", value=value))
    of_foreign = Cursor(STAGES.index("foreign_completed")).text
    prune = c.Prune(completed=0, foreign=True, limit=5_000, cursor=of_foreign)
    assert pruned(engine, prune).roots == 20


def pruned(engine: Engine, prune: c.Prune) -> PruneData:
    data = engine.call(prune).data
    assert isinstance(data, PruneData)
    return data


def sizes(path: Path):
    with closing(sqlite3.connect(path)) as connection:
        return free_space(connection)


def test_an_older_file_keeps_its_pages(tmp_path: Path) -> None:
    """It was made when files could not shrink: pruning works, and reuses the room."""
    path = tmp_path / "layby.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("CREATE TABLE layby_migrations (version, name, checksum)")
    engine = Engine(SqliteStore(path, Settings(), next_after, "normal"), ManualClock(0))
    engine.start_inline()
    engine.call(r.promise("x"))
    engine.call(r.settle("x"))
    prune = c.Prune(completed=0, foreign=True, cursor='[2,-1,"",null,0]')
    assert pruned(engine, prune).roots == 1
    engine.stop()
    assert not sizes(path).is_given_back


def test_what_another_process_is_changing_keeps_its_tree() -> None:
    """On PostgreSQL such rows are not waited for, and not taken for absent."""
    with World("postgres") as world:
        assert isinstance(world.store, PostgresStore)
        for each in ("foo", "foo.1", "foo.2"):
            world.ok(r.promise(each))
            world.ok(r.settle(each))
        prune = c.Prune(completed=0, foreign=True, cursor='[2,-1,"",null,0]')
        with psycopg.connect(world.store._url) as other:
            other.execute("SELECT 1 FROM layby.promises WHERE id = 'foo.2' FOR UPDATE")
            assert world.ok(prune).roots == 0
            assert set(world.dump().promises) == {"foo", "foo.1", "foo.2"}
        assert world.ok(prune).roots == 1
        assert set(world.dump().promises) == {"foo"}
