"""One PostgreSQL for each test process, started when the first test asks for it."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import pytest
from deploy.topology.cluster import QUICK, USER, Cluster

PASSWORD: Final = "open-sesame"

__all__ = ["PASSWORD", "USER", "Cluster", "cluster", "own_cluster", "remove_cluster"]


@cache
def cluster() -> Cluster:
    """The one of this process; tests are skipped where there is no PostgreSQL."""
    try:
        made = Cluster(password=PASSWORD)
    except LookupError as missing:
        if os.environ.get("LAYBY_REQUIRE_TOOLS") or os.environ.get("LAYBY_TEST_STORE"):
            raise
        pytest.skip(str(missing))
    atexit.register(made.remove)
    return made


def remove_cluster() -> None:
    """At the end of a test session."""
    if cluster.cache_info().currsize:
        cluster().remove()
        cluster.cache_clear()


@contextmanager
def own_cluster(**settings: str) -> Iterator[Cluster]:
    """For tests that stop it."""
    cluster()  # skips
    made = Cluster({**QUICK, **settings}, password=PASSWORD)
    try:
        yield made
    finally:
        made.remove()
