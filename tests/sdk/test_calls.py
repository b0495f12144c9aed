"""What every user of an SDK does first, with a worker and a client in processes of their own."""

import pytest

from tests.sdk.conftest import Peers

pytestmark = pytest.mark.sdk


def test_hello(peers: Peers):
    """A function is called by name, from another process."""
    peers.worker()
    client = peers.client()
    client.rpc("hello", "hello", "world")
    assert client.result("hello") == "Hello, world!"


def test_a_workflow_runs_where_it_was_started(peers: Peers):
    """Its steps are recorded one by one."""
    worker = peers.worker()
    worker.run("sums", "sums", 5)
    assert worker.result("sums") == 30


def test_a_workflow_calls_and_waits(peers: Peers):
    """It leaves its worker while the other function runs, and comes back with the answer."""
    worker = peers.worker()
    worker.run("calls", "calls", "again")
    assert worker.result("calls") == "Hello, again!"


def test_a_workflow_fans_out(peers: Peers):
    """Twenty calls at once, on two workers."""
    worker = peers.worker()
    peers.worker()
    worker.run("fans", "fans_out", 20)
    assert worker.result("fans") == 420


def test_many_calls_at_once_are_each_done_once(peers: Peers):
    """Fifty roots, two workers."""
    peers.worker()
    peers.worker()
    client = peers.client()
    for number in range(50):
        client.rpc(f"many-{number}", "step", f"step {number}")
    assert [client.result(f"many-{n}") for n in range(50)] == [f"step {n}" for n in range(50)]
    assert sorted(peers.effects()) == sorted(f"step {number}" for number in range(50))


def test_the_same_id_is_the_same_call(peers: Peers):
    """Two processes ask for it, it is done once, and both are answered."""
    peers.worker()
    clients = [peers.client(), peers.client()]
    for client in clients:
        client.rpc("once", "step", "only once")
    assert [client.result("once") for client in clients] == ["only once"] * 2
    assert peers.effects() == ["only once"]


def test_an_error_reaches_the_caller(peers: Peers):
    """Over the wire, with its message: at the top, and where a workflow catches it."""
    peers.worker()
    client = peers.client()
    client.rpc("fails", "fails", "no luck")
    assert client.hear("error", id="fails")["message"] == "no luck"
    client.rpc("catches", "catches", "no luck")
    assert client.result("catches") == "caught: no luck"


def test_a_sleep_is_not_cut_short(peers: Peers):
    """It may end late on a busy machine, never early."""
    worker = peers.worker()
    worker.run("naps", "naps", 700)
    assert worker.result("naps") is None
    lain_down = worker.hear("effect", what="lies down")["at"]
    assert worker.hear("effect", what="gets up")["at"] - lain_down >= 0.69
    assert peers.effects() == ["lies down", "gets up"]


def test_a_detached_call_goes_its_own_way(peers: Peers):
    """The workflow ends without it; whoever knows its id hears its result."""
    worker = peers.worker()
    worker.run("leaves", "leaves", "you")
    left = worker.result("leaves")
    worker.order("get", id=left)
    assert worker.result(left) == "Hello, you!"
