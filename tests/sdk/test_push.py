"""A worker that the server posts its messages to, as to a function in some cloud."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import World
from tests.sdk.sdks import NEWEST, Sdk
from tests.sdk.servers import Server

pytestmark = [
    pytest.mark.sdk,
    pytest.mark.parametrize("sdk", NEWEST[:1], indirect=True, ids=str),  # Python's has no such way
]


@pytest.fixture
def world(sdk: Sdk, tmp_path: Path) -> Iterator[World]:
    with Server(tmp_path, "--push-allow", "127.0.0.1") as server:
        world = World(sdk, server, tmp_path, is_pushed=True)
        try:
            yield world
        finally:
            world.end()


def test_a_worker_that_is_pushed_to(world: World):
    """It runs, calls itself, sleeps, fans out and hears the results."""
    worker = world.worker()
    worker.run("sums", "sums", 3)
    worker.run("naps", "naps", 50)
    worker.run("fans", "fans_out", 20)
    assert worker.result("sums") == 12
    assert worker.result("naps") is None
    assert worker.result("fans") == 420
    assert world.effects() == ["lies down", "gets up"]
