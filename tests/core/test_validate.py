"""What is refused with 400 before any row is looked at, and how that is worded."""

import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.core import tag_names
from layby.core.validate import MAX_VALUE_CHARS, problems
from tests.helpers import requests as r
from tests.helpers.worlds import World

LONG = "x" * 1025
WIDE = "é" * 600


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (c.GetPromise(id=""), "Promise ID is required"),
        (c.GetPromise(id="a\0b"), "Promise ID must not contain NUL"),
        (c.GetPromise(id=LONG), "Promise ID must not be longer than 1024 bytes"),
        (c.GetPromise(id=WIDE), "Promise ID must not be longer than 1024 bytes"),
        (c.GetTask(id=""), "Task ID is required"),
        (c.GetSchedule(id=""), "Schedule ID is required"),
        (r.promise("x", -1), "timeoutAt must be non-negative"),
        (
            c.CreatePromise(id="x", timeout_at=9, param=c.Value(data="x" * (MAX_VALUE_CHARS + 1))),
            "param has 4,194,305 characters, more than 4,194,304: store it elsewhere",
        ),
        (
            c.SettlePromise(
                id="x", state="resolved", value=c.Value(headers={"h": "x" * MAX_VALUE_CHARS})
            ),
            "value has 4,194,305 characters",
        ),
        (r.promise("x", 9, delay="1"), "resonate:delay requires a resonate:target tag"),
        (r.target("x", 9, delay="9"), "resonate:delay must be less than timeoutAt"),
        (r.target("x", 9, delay="-1"), "resonate:delay must be a non-negative integer"),
        (r.target("x", 9, delay="²"), "resonate:delay must be a non-negative integer"),
        (r.target("x", 9, delay="9" * 30), "resonate:delay must be a non-negative integer"),
        (
            r.target("x", 9, delay="9223372036854775808"),
            "resonate:delay must be a non-negative integer",
        ),
        (r.promise("x", 9, target="nowhere"), "Invalid resonate:target address"),
        (r.promise("x", 9, target=f"http://{LONG}"), "Invalid resonate:target address"),
        (r.promise("x", 9, target="http://a\0b"), "Invalid resonate:target address"),
        (r.settle("x", "pending"), "state must be one of resolved, rejected, rejected_canceled"),
        (r.callback("x", "x"), "Awaited and awaiter must be different promises"),
        (c.RegisterListener(awaited="x", address="y"), "Invalid listener address"),
        (r.acquire("x", -1), "version must be non-negative"),
        (r.acquire("x", 0, ttl=0), "ttl must be positive"),
        (r.acquire("x", 0, pid=""), "Process ID is required"),
        (r.suspend("x", 0), "Actions array cannot be empty"),
        (r.suspend("x", 0, "x"), "Awaited and awaiter must be different promises"),
        (c.FenceTask(id="x", version=0, inner=None), "Invalid fence action kind"),
        (
            c.FenceTask(id="x", version=0, inner=r.settle("x")),
            "Action ID must not equal the task ID",
        ),
        (r.beat(""), "Process ID is required"),
        (c.HaltTask(id="x", version=-1), "version must be non-negative"),
        (q.SearchPromises(limit=0), "limit must be between 1 and 1000"),
        (q.SearchTasks(limit=1001), "limit must be between 1 and 1000"),
        (q.SearchSchedules(limit=0), "limit must be between 1 and 1000"),
        (q.ListHeld(pid="p", incarnation="1", limit=0), "limit must be between 1 and 1000"),
        (r.take(-1), "free must be between 0 and 100000"),
        (r.take(2**62), "free must be between 0 and 100000"),
        (r.take(incarnation=""), "Incarnation is required"),
        (r.take(group=""), "Group is required"),
        (r.take(group="a/b"), "Group must not contain '/' or '?'"),
        (c.HeartbeatWorker(pid="", incarnation="1"), "Process ID is required"),
        (c.LeaveWorker(pid="p", incarnation=""), "Incarnation is required"),
        (r.finish("x", with_take=r.take(-1)), "free must be between 0 and 100000"),
        (r.fail("x", retry_in=-1), "retryIn must be non-negative"),
        (c.AnnotateTask(id="x", version=-1), "version must be non-negative"),
        (c.ResolvePromise(id="x", state="?"), "state must be one of"),
        (
            c.StartRun(
                id="run/a", name="", group="g", nodes=(c.Node(id="a", name="f"),), timeout=9
            ),
            "Name of run 'run/a' is required",
        ),
        (
            c.StartRun(
                id="run/a", name="n", group="", nodes=(c.Node(id="a", name="f"),), timeout=9
            ),
            "Group is required",
        ),
        (
            c.StartRun(
                id="run/a",
                name="n",
                group="g",
                nodes=(c.Node(id="a", name="", group="x?y"),),
                timeout=9,
            ),
            "Name of node 'a' is required; Group must not contain '/' or '?'",
        ),
        (r.nightly(id=""), "Schedule ID is required"),
        (r.nightly(id="a:b"), "Schedule ID 'a:b' must not contain ':' (it is part of run IDs)"),
        (r.nightly(id="a.b/c"), "must not contain '.' (it is part of run IDs); Schedule ID"),
        (r.nightly(id="x" * 1005), "Node ID must not be longer than 1024 bytes"),
        (r.nightly(cron="x" * 1025), "Cron expression must not be longer than 1024 bytes"),
        (r.nightly(timezone="x" * 1025), "Time zone must not be longer than 1024 bytes"),
        (r.nightly(name=""), "Name of run 'nightly' is required"),
        (r.nightly(group="a/b"), "Group must not contain '/' or '?'"),
        (r.nightly(timeout=0), "timeout must be positive"),
        (r.nightly(nodes=()), "Run 'nightly' has no nodes"),
        (
            r.nightly(nodes=(c.Node("a", "f", ("b",)), c.Node("b", "f", ("a", "z")))),
            "Node 'b' depends on unknown node 'z'; Dependencies form a cycle: a -> b -> a",
        ),
        (r.nightly(nodes=(c.Node("a", "f"), c.Node("a", "f"))), "Duplicate node 'a'"),
    ],
)
def test_what_is_wrong_is_said(request_: c.Command | q.Query, why: str) -> None:
    """The text of the refusal."""
    assert why in (problems(request_) or "")
    with World() as world:
        reply = world.send(request_)
        assert reply.status == 400
        assert why in str(reply.data)
        assert not world.dump().promises


def test_of_very_much_that_is_wrong_the_first_is_said() -> None:
    """The text, and the time that everybody waits for it, do not grow with the request."""
    nodes = tuple(c.Node(f"n{number}", "f", priority=1_000) for number in range(10_000))
    told = problems(r.nightly(nodes=nodes)) or ""
    assert told.startswith("priority of node 'n0' must be between")
    assert told.endswith("; and more")
    assert len(told) < 2_000


@pytest.mark.parametrize("tag", sorted(tag_names.RESERVED))
def test_what_is_believed_of_a_tag_is_not_for_a_client_to_say(tag: str) -> None:
    """In whichever request that creates a promise: whom a trigger asks for, whose checkpoints a
    task keeps, whose wait a person has ended.
    """
    made = c.CreatePromise(id="x", timeout_at=9, tags={"resonate:target": r.OTHER, tag: "y"})
    for request in (
        made,
        c.CreateTask(pid="p", ttl=1, action=c.CreateAction("promise.create", {}, made)),
        c.FenceTask(id="t", version=1, inner=made),
        c.CreateBelow(id="t", version=1, promise_id="x", tags=made.tags),
        c.CreateSchedule(
            id="s", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=made.tags
        ),
    ):
        with World() as world:
            reply = world.send(request)
            assert reply.status == 400
            assert (
                str(reply.data)
                == f"{tag} is reserved: it is set by {tag_names.RESERVED[tag]} alone"
            )


def test_several_problems_are_told_together() -> None:
    """Joined by `; `."""
    assert problems(r.acquire("", -1, pid="", ttl=0)) == (
        "Task ID is required; version must be non-negative; Process ID is required; "
        "ttl must be positive"
    )


@pytest.mark.parametrize("text", ["x" * 1024, "é" * 512, " ", "a/b:c.d", "\U0001f600" * 256])
def test_ids_may_be_anything_else(text: str) -> None:
    """Up to 1024 bytes of it, on either store."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            assert world.ok(r.promise(text)).promise.id == text
            assert world.ok(c.GetPromise(id=text)).promise.id == text
