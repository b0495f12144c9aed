"""Every answer can be read again, has a schema, and is refused when it makes no sense."""

from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core.limits import GetLimit
from layby.core.replies import Explanation, LimitStanding, PreloadData, Reply, ok
from layby.core.stats import GetStats
from layby.errors import WireError
from layby.wire import decode
from layby.wire.answers import codec_of, read, read_message
from layby.wire.decode import KINDS
from layby.wire.encode import encode
from tests.helpers import requests as r
from tests.helpers.worlds import World

PROMISE: dict[str, Any] = {
    "id": "a",
    "state": "pending",
    "param": {},
    "value": {},
    "tags": {},
    "timeoutAt": 1,
    "createdAt": 0,
}
TASK = {"id": "a", "state": "acquired", "version": 1, "resumes": 0}


def answer(data: Any, status: int = 200) -> bytes:
    head = {"corrId": "0", "status": status, "version": decode.VERSION}
    return msgspec.json.encode({"kind": "some.kind", "head": head, "data": data})


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_json_schemas(kind: str) -> None:
    """Of its request, and of the data of its answer."""
    request: Any = decode.FenceRequest if kind == "task.fence" else KINDS[kind]
    names = {each.encode_name for each in msgspec.structs.fields(request)}
    schema = msgspec.json.schema(request)
    assert schema["$defs"][request.__name__]["properties"].keys() == names
    assert msgspec.json.schema(codec_of(KINDS[kind].answer).shape)


@pytest.mark.parametrize(
    ("request_", "data", "why"),
    [
        (c.GetPromise(id="a"), {}, "promise"),
        (c.GetPromise(id="a"), {"promise": PROMISE | {"state": "bogus"}}, "bogus"),
        (c.GetPromise(id="a"), {"promise": PROMISE | {"timeoutAt": "soon"}}, "timeoutAt"),
        (c.GetTask(id="a"), {"promise": PROMISE}, "task"),
        (c.GetTask(id="a"), {"task": TASK | {"state": None}}, "state"),
        (r.acquire("a", 0), {"task": TASK, "preload": []}, "promise"),
        (c.FinishTask(id="a", version=1), {"promise": PROMISE}, "claims"),
        (c.FailTask(id="a", version=1), {"promise": PROMISE, "claims": []}, "task"),
        (c.AnnotateTask(id="a", version=1), {}, "task"),
        (c.AnnotateTask(id="a", version=1), {"task": TASK | {"deadlines": [1]}}, "object"),
        (c.AnnotateTask(id="a", version=1), {"task": TASK | {"deadlines": {"b": "x"}}}, "int"),
        (q.GetRun(id="a"), {"rows": [
            {"promise": PROMISE, "task": TASK | {"deadlines": 1}}
        ]}, "object"),
        (q.GetRun(id="a"), {"rows": [
            {"promise": PROMISE, "task": TASK | {"refused": {"f": 1}}}
        ]}, "array"),
        (q.GetRun(id="a"), {"rows": [
            {"promise": PROMISE, "task": TASK | {"refused": ["f", [1]]}}
        ]}, "str"),
        (c.FenceTask(id="a", version=1, inner=None), {"preload": []}, "action"),
        (c.FenceTask(id="a", version=1, inner=None), {
            "action": {"kind": "no.such", "head": {"corrId": "0", "status": 200}, "data": {}},
            "preload": [],
        }, "unknown kind: no.such"),
        (c.HeartbeatWorker(pid="p", incarnation="i"), {"lost": [{"id": "a"}]}, "version"),
        (q.ListHeld(pid="p", incarnation="i"), {"tasks": "none"}, "array"),
        (q.ExplainPromise(id="a"), {"promise": PROMISE}, "awaited"),
        (q.SnapDebug(), {}, "promises"),
        (GetStats(), {}, "now"),
    ],
)  # fmt: skip
def test_nonsense_of_a_peer_is_an_error_that_says_what_is_wrong(request_, data, why) -> None:
    with pytest.raises(WireError, match=why):
        read(request_, answer(data))


def test_a_message_in_a_snapshot_is_about_something() -> None:
    names = ("promises", "promiseTimeouts", "callbacks", "listeners", "tasks")
    empty: dict[str, Any] = {name: [] for name in names}
    about_nothing = {"address": "x", "message": {"kind": "execute", "head": {}, "data": {}}}
    data = empty | {"taskTimeouts": [], "messages": [about_nothing]}
    with pytest.raises(WireError, match="a message to x names neither a promise nor a task"):
        read(q.SnapDebug(), answer(data))


def test_a_message_that_makes_no_sense_is_an_error() -> None:
    with pytest.raises(WireError, match="data"):
        read_message(b'{"kind":"execute","head":{}}')


def across(world: World, request: Any) -> tuple[Reply, Reply]:
    reply: Any = world.send(request)
    return reply, read(request, encode(request.kind, "0", reply))


def test_statistics_and_suspensions_are_read_as_they_were_given() -> None:
    """Both were read as an empty answer once."""
    with World() as world:
        reply, told = across(world, GetStats())
        assert told == reply
        world.ok(r.target("t"))
        world.ok(r.promise("p"))
        world.ok(r.acquire("t", 0))
        _, told = across(world, r.suspend("t", 1, "p"))
        assert told == ok(PreloadData())
        world.ok(c.SettlePromise(id="p", state="resolved"))
        world.ok(r.acquire("t", 1))
        world.ok(r.promise("q"))
        world.ok(c.SettlePromise(id="q", state="resolved"))
        _, told = across(world, r.suspend("t", 2, "q"))
        assert told == Reply(300, PreloadData([]))


def test_an_explanation_tells_no_secret_of_the_holder() -> None:
    with World() as world:
        world.ok(r.run("run/a", a=""))
        world.ok(r.take(free=1))
        reply, told = across(world, q.ExplainPromise(id="run/a:a"))
        assert isinstance(reply.data, Explanation)
        assert isinstance(told.data, Explanation)
        assert reply.data.holder is not None
        assert told.data.holder is not None
        assert (told.data.holder.incarnation, told.data.holder.names) == ("", ())


def test_a_limit_is_the_same_on_both_sides() -> None:
    with World() as world:
        world.ok(c.SetLimit(name="api", concurrency=1))
        node = c.Node(id="a", name="f", limits=("api",))
        world.ok(c.StartRun(id="run/a", name="root", group="g", nodes=(node,), take=r.take()))
        reply, told = across(world, GetLimit(name="api"))
        assert told == reply
        assert isinstance(told.data, LimitStanding)
        assert told.data.holders == ("run/a:a",)
