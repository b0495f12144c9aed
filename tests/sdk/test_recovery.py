"""Workers and servers that die or come late, while real SDKs wait."""

import time

import pytest

from tests.sdk.conftest import Peers
from tests.sdk.peers import Peer
from tests.sdk.servers import Server, until

pytestmark = pytest.mark.sdk

TTL_MS = 3_000
"""So long a killed worker's task is still its own. A living one must find the time for a heartbeat
within it, on a busy machine too.
"""


def test_a_killed_worker_leaves_its_work_to_another(peers: Peers):
    """Steps it had recorded are not repeated; the one it died in is."""
    client = peers.client()
    first = peers.worker(ttl=TTL_MS, hangs="second")
    client.rpc("survives", "survives")
    first.hear("effect", what="second")
    second = peers.worker()
    first.kill()
    assert client.result("survives") == ["first", "second", "Hello, again!"]
    assert peers.effects() == ["first", "second", "second"]
    assert len(second.heard("effect")) == 1


def test_work_that_waits_survives_its_worker(peers: Peers):
    """Suspended, it belongs to nobody: the next worker of the group goes on with it."""
    client = peers.client()
    first = peers.worker()
    client.rpc("asks", "asks", None)
    question = first.hear("asks")["promise"]
    peers.server.await_task("asks", "suspended")
    first.kill()
    peers.worker()
    peers.server.settle(question, "resolved", "never mind")
    assert client.result("asks") == "never mind"


def test_a_long_step_keeps_its_lease(peers: Peers):
    """Heartbeats renew it, each version in its own way; the second worker is not given the task."""
    client = peers.client()
    peers.worker(ttl=TTL_MS)
    peers.worker(ttl=TTL_MS)
    client.rpc("takes", "takes", 2 * TTL_MS)
    assert client.result("takes") is None
    assert peers.effects() == ["began", "ended"]


def test_a_call_made_before_its_worker_is_there(peers: Peers):
    """It is kept, and done as soon as the worker connects: no retry of 30 s is waited for."""
    client = peers.client()
    client.rpc("early", "hello", "early bird", target="later")
    client.hear("created", id="early")
    worker = peers.worker(group="later")
    assert client.result("early") == "Hello, early bird!"
    assert client.hear("result")["at"] - worker.hear("connected")["at"] < 20


def test_a_call_that_its_worker_has_no_function_for(peers: Peers):
    """It is given back, and soon tried once a second; a worker that has the function does it."""
    client = peers.client()
    began_at = time.monotonic()
    client.rpc("rolled-out", "hello", "new release", target="clients")
    until(lambda: tries(peers, "rolled-out") >= 4, lambda: "it was not tried")
    peers.worker(group="clients")
    assert client.result("rolled-out") == "Hello, new release!"
    assert tries(peers, "rolled-out") < 20 + 2 * (time.monotonic() - began_at)


def test_a_server_killed_while_work_waits(peers: Peers):
    """Both sides connect again by themselves; the answer given then reaches the client."""
    worker, client = peers.worker(), peers.client()
    client.rpc("asks", "asks", None)
    question = worker.hear("asks")["promise"]
    peers.server.await_task("asks", "suspended")
    client.hear("created", id="asks")
    restart_server(peers.server, worker, client)
    peers.server.settle(question, "resolved", "good morning")
    assert client.result("asks") == "good morning"


def test_an_answer_given_before_anybody_is_back(peers: Peers):
    """Whoever connects later still hears: the messages are kept."""
    worker, client = peers.worker(), peers.client()
    client.rpc("asks", "asks", None)
    question = worker.hear("asks")["promise"]
    peers.server.await_task("asks", "suspended")
    client.hear("created", id="asks")
    peers.server.kill()
    peers.server.start()
    peers.server.settle(question, "resolved", "early answer")
    assert client.result("asks") == "early answer"


def test_a_server_killed_while_a_sleep_ends(peers: Peers):
    """A deadline that passed while no server was there is met at its start."""
    worker, client = peers.worker(), peers.client()
    client.rpc("naps", "naps", 1_500)
    peers.server.await_task("naps", "suspended", "fulfilled")  # on a slow machine it may be over
    client.hear("created", id="naps")
    seen_at = time.monotonic()
    peers.server.kill()
    until(lambda: time.monotonic() > seen_at + 1.5, lambda: "time stands still")
    peers.server.start()
    for peer in (worker, client):
        peer.hear("connected", times=2)
    assert client.result("naps") is None
    assert peers.effects() == ["lies down", "gets up"]


def test_a_step_that_ends_while_no_server_is_there(peers: Peers):
    """Some SDKs hold the result until they are heard, others lose it and do the step again."""
    worker, client = peers.worker(ttl=TTL_MS), peers.client()
    client.rpc("takes", "takes", 200)
    worker.hear("effect", what="began")
    client.hear("created", id="takes")
    peers.server.kill()
    worker.hear("effect", what="ended")
    peers.server.start()
    if peers.sdk.beats_for_all:  # it lost the result and does not know, but still it beats
        worker.kill()
        peers.worker()
    assert client.result("takes") is None
    assert 1 <= peers.effects().count("ended") <= 2


def tries(peers: Peers, call: str) -> int:
    answer = peers.server.ask("task.get", id=call)
    return answer.data["task"]["version"] if answer.status == 200 else 0


def restart_server(server: Server, *connected: Peer) -> None:
    """kill -9, the same file and port again, and these peers are back."""
    server.kill()
    server.start()
    for peer in connected:
        peer.hear("connected", times=2)
