"""Workers of layby and of the SDKs share a server and call each other."""

import pytest

from tests.sdk.conftest import World

pytestmark = pytest.mark.sdk


def test_layby_calls_a_function_of_an_sdk(world: World):
    """By name, and gets its result."""
    world.worker()
    layby = world.layby()
    layby.rpc("call-1", "hello", "layby")
    assert layby.result("call-1") == "Hello, layby!"


def test_layby_calls_a_workflow_of_an_sdk(world: World):
    """One that calls and waits for others in its turn."""
    world.worker()
    layby = world.layby()
    layby.rpc("call-1", "fans_out", 5)
    layby.rpc("call-2", "calls", "both")
    assert layby.result("call-1") == 30
    assert layby.result("call-2") == "Hello, both!"


def test_an_error_of_an_sdk_is_raised_in_layby(world: World):
    """With its message."""
    world.worker()
    layby = world.layby()
    layby.rpc("call-1", "fails", "no luck")
    assert layby.result("call-1") == "caught: no luck"


def test_a_call_by_layby_outlives_the_worker_that_does_it(world: World):
    """And the server, too."""
    layby = world.layby()
    first = world.worker(ttl=1_000, hangs="second")
    layby.rpc("call-1", "survives")
    first.hear("effect", what="second")
    first.kill()
    world.server.kill()
    world.server.start()
    world.worker()
    assert layby.result("call-1") == ["first", "second", "Hello, again!"]
    assert world.effects() == ["first", "second", "second"]
