"""A worker that the server posts its messages to, as to a function in some cloud."""

from typing import Any

import pytest

from tests.sdk.conftest import Peers
from tests.sdk.sdks import NEWEST

pytestmark = [
    pytest.mark.sdk,
    pytest.mark.parametrize("sdk", NEWEST[:1], indirect=True, ids=str),  # Python's has no such way
]


@pytest.fixture
def server_options() -> tuple[str, ...]:
    return ("--push-allow", "127.0.0.1")


@pytest.fixture
def peer_options() -> dict[str, Any]:
    return {"is_pushed": True}


def test_a_worker_that_is_pushed_to(peers: Peers):
    """It runs, calls itself, sleeps, fans out and hears the results."""
    worker = peers.worker()
    worker.run("sums", "sums", 3)
    worker.run("naps", "naps", 50)
    worker.run("fans", "fans_out", 20)
    assert worker.result("sums") == 12
    assert worker.result("naps") is None
    assert worker.result("fans") == 420
    assert peers.effects() == ["lies down", "gets up"]
