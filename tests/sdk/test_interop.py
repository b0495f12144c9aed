"""Workers of layby and of the SDKs share a server and call each other."""

import pytest

from tests.sdk.conftest import Peers
from tests.sdk.sdks import LAYBY, NEWEST, SDKS

VALUES = [
    *(None, False, 0, -1.5, 2**53 - 1, "", [], {}),
    {"a": [1, None, {"ü€😀": True}]},
    "\0 \u2028 \x85 😀",
    "ü" * 500_000,
]

TTL_MS = 3_000
"""So long a killed worker's task is still its own; see test_recovery.py."""

pytestmark = [
    pytest.mark.sdk,
    pytest.mark.parametrize("sdk", NEWEST, indirect=True, ids=str),  # calls are as they were before
]


def test_layby_calls_a_function_of_an_sdk(peers: Peers):
    """By name, and gets its result."""
    peers.worker()
    layby = peers.layby()
    layby.rpc("call-1", "hello", "layby")
    assert layby.result("call-1") == "Hello, layby!"


def test_layby_calls_a_workflow_of_an_sdk(peers: Peers):
    """One that calls and waits for others in its turn."""
    peers.worker()
    layby = peers.layby()
    layby.rpc("call-1", "fans_out", 5)
    layby.rpc("call-2", "calls", "both")
    assert layby.result("call-1") == 30
    assert layby.result("call-2") == "Hello, both!"


def test_an_error_of_an_sdk_is_raised_in_layby(peers: Peers):
    """With its message."""
    peers.worker()
    layby = peers.layby()
    layby.rpc("call-1", "fails", "no luck")
    assert layby.result("call-1") == "caught: no luck"


def test_a_call_by_layby_outlives_the_worker_that_does_it(peers: Peers):
    """And the server, too."""
    layby = peers.layby()
    first = peers.worker(ttl=TTL_MS, hangs="second")
    layby.rpc("call-1", "survives")
    first.hear("effect", what="second")
    layby.hear("created", id="call-1")
    first.kill()
    peers.server.kill()
    peers.server.start()
    peers.worker()
    assert layby.result("call-1") == ["first", "second", "Hello, again!"]
    assert peers.effects() == ["first", "second", "second"]


def test_an_sdk_calls_a_task_of_layby(peers: Peers):
    """From outside, and from within a workflow."""
    peers.layby()
    worker = peers.worker()
    worker.rpc("outside", "shout", "hi", target="layby")
    worker.run("within", "calls_for", "shout", ["hey"], "layby")
    assert worker.result("outside") == "HI"
    assert worker.result("within") == "HEY"


def test_an_object_is_what_a_task_of_layby_is_given(peers: Peers):
    """And what it sets there is the answer."""
    peers.layby()
    client = peers.client()
    client.rpc("greet", "greet", {"name": "Ada"}, target="layby")
    assert client.result("greet") == {"greeting": "Good day, Ada."}


def test_an_error_of_layby_is_raised_in_an_sdk(peers: Peers):
    """With its message."""
    peers.layby()
    client = peers.client()
    client.rpc("refuse", "refuse", "no chance", target="layby")
    assert "no chance" in client.hear("error", id="refuse")["message"]


def test_both_call_each_other(peers: Peers):
    """A workflow of the SDK calls layby, which sleeps, calls the SDK and answers."""
    peers.layby()
    worker = peers.worker()
    worker.run("chain", "calls_for", "call_back", ["you"], "layby")
    assert worker.result("chain") == "Hello, you!"


def test_more_calls_than_slots(peers: Peers):
    """Those that find no slot wait; none is lost."""
    peers.layby()
    client = peers.client()
    for number in range(30):
        client.rpc(f"shout-{number}", "shout", f"n{number}", target="layby")
    assert [client.result(f"shout-{n}") for n in range(30)] == [f"N{n}" for n in range(30)]


def test_a_killed_worker_of_layby_leaves_calls_to_another(peers: Peers):
    """What it has checkpointed is not repeated."""
    client = peers.client()
    first = peers.layby(ttl=TTL_MS, hangs="second")
    client.rpc("endure", "endure", target="layby")
    first.hear("effect", what="second")
    peers.layby()
    first.kill()
    assert client.result("endure") == ["first", "second"]
    assert peers.effects() == ["first", "second", "second"]


def test_a_group_may_be_mixed(peers: Peers):
    """Whoever hears of a call that it has no function for leaves it to the other."""
    peers.layby(group="default")
    peers.worker(group="default")
    client = peers.client()
    for number in range(10):
        client.rpc(f"hello-{number}", "hello", "all")
        client.rpc(f"shout-{number}", "shout", "all")
    assert {client.result(f"hello-{number}") for number in range(10)} == {"Hello, all!"}
    assert {client.result(f"shout-{number}") for number in range(10)} == {"ALL"}


def test_every_value_comes_back_as_it_was(peers: Peers):
    """From layby to an SDK and back, and from an SDK to layby and back."""
    peers.layby()
    worker = peers.worker()
    for number, value in enumerate(VALUES):
        worker.run(f"to-{number}", "calls_for", "echo", [value], "layby")
        worker.rpc(f"fro-{number}", "calls_for", "echo", [value], "default", target="layby")
    for number, value in enumerate(VALUES):
        assert worker.result(f"to-{number}") == value
        assert worker.result(f"fro-{number}") == value


def test_a_call_goes_through_all_sdks_and_versions(peers: Peers):
    """Each calls the next; their ways to name what they call do not get in each other's way."""
    places = [LAYBY, *(sdk for sdk in SDKS if sdk.is_installed)]
    peers.layby(group="place-0")
    for number, sdk in enumerate(places[1:], 1):
        peers.worker(group=f"place-{number}", sdk=sdk)
    route = [*range(len(places)), *reversed(range(len(places)))]
    call = ["echo", ["there and back"], "place-0"]
    for number in route:
        call = ["calls_for", call, f"place-{number}"]
    client = peers.client()
    client.rpc("long-way", "calls_for", *call, target="place-0")
    assert client.result("long-way") == "there and back"
