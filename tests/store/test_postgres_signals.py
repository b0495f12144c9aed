"""What processes on one database tell each other: that they are there."""

import threading

import psycopg
import pytest

from layby.core import commands as c
from layby.store.postgres_signals import VOUCHED
from tests.helpers.open_files import beyond_select
from tests.helpers.postgres import cluster
from tests.helpers.two_engines import running

PATIENCE_S = 30
HOLDERS = {("p", "1"), ("m", "1")}


def take(pid: str) -> c.Take:
    return c.Take(pid=pid, incarnation="1", group="g", names=("f",), free=1, ttl=60_000)


def seen_until(url: str, wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which holders others can see, as soon as these are among them."""
    pause = threading.Event()
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(PATIENCE_S * 20):
            seen = set(connection.execute(VOUCHED).fetchall())
            if seen >= wanted:
                break
            pause.wait(0.05)
    return seen


def test_each_worker_of_a_process_is_seen() -> None:
    """A Runner has a worker, and a manager of triggers beside it: neither hides the other."""
    url = cluster().url(cluster().new_database())
    with running(url) as engine:
        for pid, incarnation in sorted(HOLDERS):
            assert engine.call(take(pid)).is_ok
            engine.vouch(pid, incarnation)
        assert seen_until(url, HOLDERS) == HOLDERS


def test_who_starts_over_is_seen_as_the_new_one_alone() -> None:
    url = cluster().url(cluster().new_database())
    with running(url) as engine:
        assert engine.call(take("p")).is_ok
        engine.vouch("p", "1")
        assert seen_until(url, {("p", "1")}) == {("p", "1")}
        engine.vouch("p", "2")
        with psycopg.connect(url, autocommit=True) as connection:
            pause = threading.Event()
            while connection.execute(VOUCHED).fetchall():
                pause.wait(0.05)


def test_others_are_heard_in_a_process_with_a_thousand_open_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that has many connections and comes back to a database that was away."""
    url = cluster().url(cluster().new_database())
    with beyond_select(), running(url) as engine:
        assert engine.call(take("p")).is_ok
        engine.vouch("p", "1")
        assert seen_until(url, {("p", "1")}) == {("p", "1")}
    assert [each.getMessage() for each in caplog.records] == []
