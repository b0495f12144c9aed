"""What turns add to the wire: both directions carry the same."""

from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.replies import Reply
from layby.wire import answers
from layby.wire.ask import ask
from layby.wire.decode import decode
from layby.wire.encode import encode
from tests.helpers import requests as r
from tests.helpers.worlds import World


def there_and_back(world: World, request: c.Command) -> tuple[Any, Any]:
    """The data of an answer as the engine gave it, and as a client reads it."""
    reply = world.engine.call(request, world.now)
    assert reply.is_ok, reply
    read = answers.read(request, encode(request.kind, "c", reply))
    return reply.data, read.data


REQUESTS = {
    "take": replace(
        r.take(1), ahead=3, before=7, in_line=True, begun=(c.TaskVersion("run/a:a", 1),)
    ),
    "release": c.ReleaseTasks(
        pid="p",
        incarnation="1",
        tasks=(
            c.Released("run/a:a", 1),
            c.Released("b", 2, 5, begun=False, delay=1, history='"h"'),
        ),
    ),
    "finish": replace(r.finish("run/a:a"), root=c.RootVerdict("rejected", c.Value(data="eA=="))),
    "fail": replace(r.fail("run/a:a"), root=c.RootVerdict("resolved")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_arrive_as_they_were_sent(name: str) -> None:
    request = REQUESTS[name]
    assert decode(ask(request, "0", None)).body == request


def test_an_older_worker_may_leave_the_new_fields_out() -> None:
    """They have defaults that mean what was before."""
    data = b'{"pid":"p","incarnation":"1","tasks":[{"id":"x","version":1}]}'
    body = b'{"kind":"layby.worker.release","head":{"corrId":"c","version":"2026-04-01"},"data":%b}'
    request = decode(body % data).body
    assert isinstance(request, c.ReleaseTasks)
    (released,) = request.tasks
    assert released == c.Released("x", 1, ready_at=None, begun=True, delay=0, history=None)


def test_answers_name_what_is_left_and_what_is_ahead() -> None:
    """In those of take, finish, fail and start."""
    with World(now=5) as world:
        for at in range(3):
            told, read = there_and_back(world, r.run(f"run/{at}", a="", with_take=r.take(0)))
            assert read.taken.oldest_left == told.taken.oldest_left == 5
        _, taken = there_and_back(world, replace(r.take(1), ahead=1))
        assert [(each.task.ahead, each.task.tries) for each in taken.claims] == [
            (False, 1),
            (True, 0),
        ]
        assert taken.oldest_left == 5
        _, failed = there_and_back(world, c.FailTask(id="run/0:a", version=1, take=r.take(0)))
        assert failed.taken.oldest_left == 5
        _, finished = there_and_back(world, r.finish("run/1:a", with_take=r.take(1)))
        assert (len(finished.taken.claims), finished.taken.oldest_left) == (2, None)


def test_the_settled_root_travels_with_the_answer() -> None:
    with World() as world:
        for at in range(2):
            world.ok(r.run(f"run/{at}", a=""))
        world.ok(r.take(2))
        for at, name in enumerate(("finish", "fail")):
            told, read = there_and_back(world, replace(REQUESTS[name], id=f"run/{at}:a"))
            assert read.root.id == told.root.id
            assert (read.root.state, read.root.value) == (told.root.state, told.root.value)


def test_the_param_of_the_root_travels_with_a_claim() -> None:
    with World() as world:
        world.ok(replace(r.run(a=""), param=c.Value(data="eA==")))
        told, read = there_and_back(world, r.take(1))
        assert read.claims[0].root_param == told.claims[0].root_param
        assert "eA==" in read.claims[0].root_param


def test_without_verdict_there_is_no_root() -> None:
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take(1))
        reply = world.engine.call(r.finish("run/a:a"), 0)
        assert b"root" not in encode("layby.task.finish", "c", reply)


def test_a_record_of_the_protocol_counts_each_claim_as_a_try() -> None:
    """It does not tell tries, and a worker of calls has to know a number."""
    with World() as world:
        world.ok(r.target("t"))
        _, read = there_and_back(world, r.acquire("t", 0))
        assert read.task.try_number == 1


def test_a_release_is_answered_with_nothing() -> None:
    with World() as world:
        told, read = there_and_back(world, REQUESTS["release"])
        assert told == read
        assert isinstance(world.engine.call(REQUESTS["release"], 0), Reply)
