"""One PostgreSQL for each test process, started when the first test asks for it."""

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from tempfile import gettempdir
from typing import Final

import pytest
from deploy.topology.cluster import QUICK, USER, Cluster

from layby.store.postgres_answers import AnswerWatch
from layby.store.postgres_connection import Connection, Connector
from layby.store.postgres_migrating import TAKE_TURN, prepare_schema

PASSWORD: Final = "open-sesame"

__all__ = [
    "PASSWORD",
    "USER",
    "Cluster",
    "being_migrated",
    "cluster",
    "connected",
    "migrated_database",
    "own_cluster",
    "remove_cluster",
    "until_waiting_to_migrate",
]


@cache
def cluster() -> Cluster:
    """The one of this process; tests are skipped where there is no PostgreSQL."""
    try:
        made = Cluster(parent=gettempdir(), password=PASSWORD)
    except LookupError as missing:
        if os.environ.get("LAYBY_REQUIRE_TOOLS") or os.environ.get("LAYBY_TEST_STORE"):
            raise
        pytest.skip(str(missing))
    atexit.register(made.remove)
    return made


def migrated_database() -> str:
    """A new one with our tables: a copy, for a fifth of what migrating costs."""
    return cluster().new_database(template=_template())


@cache
def _template() -> str:
    name = cluster().new_database()
    prepare_schema(cluster().url(name))
    return name


@contextmanager
def being_migrated(name: str) -> Iterator[None]:
    """Nobody else can migrate this database meanwhile."""
    with connected(cluster().url(name)) as connection:
        connection.execute(TAKE_TURN.encode())
        yield


def until_waiting_to_migrate(name: str) -> None:
    """Until somebody else wants to."""
    asked = f"""
        SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
        WHERE locktype = 'advisory' AND NOT granted AND datname = '{name}'
    """
    while cluster().execute(asked) == [(0,)]:
        threading.Event().wait(0.01)


def remove_cluster() -> None:
    """At the end of a test session."""
    if cluster.cache_info().currsize:
        cluster().remove()
        cluster.cache_clear()
        _template.cache_clear()


@contextmanager
def connected(url: str, settings: Mapping[str, str] | None = None) -> Iterator[Connection]:
    """As layby connects."""
    with AnswerWatch(url) as watch, Connector(url, watch, settings).connect() as connection:
        yield connection


@contextmanager
def own_cluster(**settings: str) -> Iterator[Cluster]:
    """For tests that stop it."""
    cluster()  # skips
    made = Cluster({**QUICK, **settings}, parent=gettempdir(), password=PASSWORD)
    try:
        yield made
    finally:
        made.remove()
