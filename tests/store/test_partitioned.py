"""`promises` may be partitioned by root, as docs/scale.md says: no statement has to know."""

import asyncio
from contextlib import closing

import psycopg
import pytest

from layby import Runner
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store.postgres import PostgresStore
from layby.store.postgres_migrating import prepare_schema
from tests.helpers.newer_layby import migrate_tomorrow
from tests.helpers.postgres import cluster
from tests.helpers.worlds import World
from tests.model.scripts import seeded_script
from tests.model.test_engine import play
from tests.runner.postgres_flows import steps

PARTS = 4
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexname <> %s"
VIEWS = "SELECT viewname, definition FROM pg_views WHERE schemaname = 'layby'"


def partition(url: str) -> None:
    """As the page says it: before there are rows."""
    with psycopg.connect(url, options="-c search_path=layby") as database:
        indexes = database.execute(INDEXES, ("promises", "promises_pkey")).fetchall()
        views = database.execute(VIEWS).fetchall()
        statements = [f"DROP VIEW {name}" for name, _ in views]
        statements += ["ALTER TABLE promises RENAME TO whole"]
        statements += [f"DROP INDEX {name}" for name, _ in indexes]
        statements += [
            """CREATE TABLE promises (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (root, id))
                PARTITION BY HASH (root)""",
            "CREATE INDEX promises_id ON promises (id)",
            "DROP TABLE whole",
        ]
        statements += [
            f"CREATE TABLE promises_{at} PARTITION OF promises "
            f"FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {at})"
            for at in range(PARTS)
        ]
        statements += [definition for _, definition in indexes]
        statements += [f"CREATE VIEW {name} AS {text}" for name, text in views]
        for statement in statements:
            database.execute(statement.encode())


@pytest.fixture
def url() -> str:
    url = cluster().url(cluster().new_database())
    prepare_schema(url)
    partition(url)
    return url


def test_a_partitioned_database_answers_as_ever(url: str) -> None:
    """A long script gets the model's answers, refusals of what is there already included."""
    with World(wrap=lambda _: PostgresStore(url, Settings(), next_after)) as world:
        play(world, seeded_script(1, 100))
        world.check()


def test_runs_on_a_partitioned_database(url: str) -> None:
    """Each tree is in one partition. It can be migrated like any other."""
    migrate_tomorrow(url, "gentle")

    async def run_twice() -> list[object]:
        async with Runner(url) as runner:
            found = [await runner.execute(steps, run_id=each) for each in ("a", "b")]
        return [each["second"] for each in found]

    assert len(asyncio.run(run_twice())) == 2
    with closing(psycopg.connect(url)) as database:
        used = database.execute(
            "SELECT DISTINCT tableoid::regclass::text, root FROM layby.promises"
        ).fetchall()
    assert len(used) == len({root for _, root in used})
