"""A server with auth, and peers that were given a token for some ids and some groups."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.keys import public_pem, signed
from tests.sdk.conftest import Peers

pytestmark = pytest.mark.sdk


@pytest.fixture
def server_options(tmp_path: Path) -> tuple[str, ...]:
    key = tmp_path / "key.pem"
    key.write_text(public_pem())
    return ("--auth-public-key", str(key))


@pytest.fixture
def peer_options() -> dict[str, Any]:
    claims = {"prefix": "mine", "groups": ["default", "clients"], "exp": int(time.time()) + 600}
    return {"token": signed(claims)}


def test_a_token_is_good_for_its_ids_and_groups(peers: Peers):
    """All that a workflow makes begins as the workflow does; other ids are refused."""
    peers.worker()
    client = peers.client()
    client.rpc("mine-1", "naps", 50)
    client.rpc("mine-2", "calls", "Ada")
    client.rpc("mine-3", "leaves", "Bo")
    client.rpc("others-1", "hello", "Eve")
    assert client.result("mine-1") is None
    assert client.result("mine-2") == "Hello, Ada!"
    assert client.result("mine-3").startswith("mine-3")
    assert "403" in client.hear("error", id="others-1")["message"]
