"""A server with auth, and peers that were given a token for some ids and some groups."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.keys import public_pem, signed
from tests.sdk.conftest import World
from tests.sdk.sdks import Sdk
from tests.sdk.servers import Server

pytestmark = pytest.mark.sdk


@pytest.fixture
def world(sdk: Sdk, tmp_path: Path) -> Iterator[World]:
    key = tmp_path / "key.pem"
    key.write_text(public_pem())
    claims = {"prefix": "mine", "groups": ["default", "clients"], "exp": int(time.time()) + 600}
    with Server(tmp_path, "--auth-public-key", str(key)) as server:
        world = World(sdk, server, tmp_path, token=signed(claims))
        try:
            yield world
        finally:
            world.end()


def test_a_token_is_good_for_its_ids_and_groups(world: World):
    """All that a workflow makes begins as the workflow does; other ids are refused."""
    world.worker()
    client = world.client()
    client.rpc("mine-1", "naps", 50)
    client.rpc("mine-2", "calls", "Ada")
    client.rpc("mine-3", "leaves", "Bo")
    client.rpc("others-1", "hello", "Eve")
    assert client.result("mine-1") is None
    assert client.result("mine-2") == "Hello, Ada!"
    assert client.result("mine-3").startswith("mine-3")
    assert "403" in client.hear("error", id="others-1")["message"]
