"""A refusal after an answer was lost: was it our own doing?

Each request is sent twice to a real engine, as if the first answer had been lost. In between the
world goes on: sometimes so that the refusal of the second copy is the truth.
"""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from layby.client.lost_replies import recovered_reply
from layby.core import commands as c
from layby.core import queries as q
from layby.core.replies import Reply
from tests.helpers import requests as r
from tests.helpers.worlds import Answered, World

OURS, THEIRS = c.Value(data="Im91cnMi"), c.Value(data="InRoZWlycyI=")
Script = Sequence[c.Command | int]
"""What happens in the world; a number is time that passes."""

FINISH = c.FinishTask(id="run/a:a", version=1, value=OURS)
FAIL = c.FailTask(id="run/a:a", version=1, error=OURS)
BACK_OFF = c.FailTask(id="run/a:a", version=1, error=OURS, retry_in=9_000)
SETTLE = c.SettlePromise(id="t", state="resolved", value=OURS)
FULFILL = c.FulfillTask(id="t", version=1, action=c.SettleAction("promise.settle", {}, SETTLE))
RELEASE = c.ReleaseTask(id="run/a:a", version=1)
CONTINUE = c.ContinueTask(id="run/a:a")
LET_GO = c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/a:a", 1),))
SUSPEND = r.suspend("t", 1, "x")
UNSCHEDULE = c.DeleteSchedule(id="nightly")

TAKEN: Script = (r.run(a=""), r.take(1))
HALTED: Script = (*TAKEN, c.HaltTask(id="run/a:a"))
OFFERED: Script = (r.target("t"),)
CLAIMED: Script = (r.claimed("t"), r.promise("x"))
RETAKEN: Script = (60_000, r.take(1, pid="q"))
"""The lease is over, and another worker has the task."""


def settled(state: str, value: c.Value) -> c.SettlePromise:
    return c.SettlePromise(id="run/a:a", state=state, value=value)


def doubted(before: Script, request: c.Command, between: Script, *, applied: bool) -> Answered:
    """What a client that has lost an answer says in the end."""
    with World() as world:
        play(world, before)
        if applied:
            world.ok(request)
        play(world, between)
        refusal = world.send(request)
        assert not refusal.is_ok, "its second copy is not refused: there is no doubt"

        async def read(asked: c.Command | q.Query) -> Reply:
            assert isinstance(asked, c.GetPromise | c.GetTask | c.GetSchedule), "only reading helps"
            reply = world.send(asked)
            return Reply(reply.status, reply.data)

        return asyncio.run(recovered_reply(read, request, Reply(refusal.status, refusal.data)))


def play(world: World, script: Script) -> None:
    for each in script:
        if isinstance(each, int):
            world.tick(each)
        else:
            world.ok(each)


OUR_DOING: dict[str, tuple[Script, c.Command, Script]] = {
    "finished": (TAKEN, FINISH, ()),
    "finished long ago": (TAKEN, FINISH, (60_000,)),
    "failed": (TAKEN, FAIL, ()),
    "backs off": (TAKEN, BACK_OFF, ()),
    "has backed off": (TAKEN, BACK_OFF, (10_000,)),
    "backed off and taken": (TAKEN, BACK_OFF, (10_000, r.take(1, pid="q"))),
    "fulfilled": (CLAIMED, FULFILL, ()),
    "suspended": (CLAIMED, SUSPEND, ()),
    "suspended and resumed": (CLAIMED, SUSPEND, (r.settle("x"),)),
    "acquired": ((r.target("t"),), r.acquire("t", 0), ()),
    "created": ((), r.claimed("t"), ()),
    "released": (TAKEN, RELEASE, ()),
    "released and taken": (TAKEN, RELEASE, (r.take(1, pid="q"),)),
    "continued": (HALTED, CONTINUE, ()),
    "continued and taken": (HALTED, CONTINUE, (LET_GO, r.take(1))),
    "unscheduled": ((r.nightly(),), UNSCHEDULE, ()),
}


@pytest.mark.parametrize("case", OUR_DOING)
def test_what_was_our_doing_is_a_success(case: str):
    """Though the server refuses the second copy, whatever others have done since."""
    before, request, between = OUR_DOING[case]
    reply = doubted(before, request, between, applied=True)
    assert reply.status == 200, reply


NOT_OURS: dict[str, tuple[Script, c.Command, Script]] = {
    "finish: lease lost": (TAKEN, FINISH, RETAKEN),
    "finish: cancelled": (TAKEN, FINISH, (c.CancelPromise(id="run/a:a"),)),
    "finish: another value": (TAKEN, FINISH, (settled("resolved", THEIRS),)),
    "finish: another state": (TAKEN, FINISH, (settled("rejected", OURS),)),
    "finish: no such task": ((), FINISH, ()),
    "fail: lease lost": (TAKEN, FAIL, RETAKEN),
    "fail: another error": (TAKEN, FAIL, (settled("rejected", THEIRS),)),
    "back off: lease lost": (TAKEN, BACK_OFF, RETAKEN),
    "back off: halted": (TAKEN, BACK_OFF, (c.HaltTask(id="run/a:a"),)),
    "fulfill: lease lost": (CLAIMED, FULFILL, (5_000, r.acquire("t", 1, pid="q"))),
    "fulfill: cancelled": (CLAIMED, FULFILL, (c.CancelPromise(id="t"),)),
    "suspend: lease lost": (CLAIMED, SUSPEND, (5_000, r.acquire("t", 1, pid="q"))),
    "acquire: another": (OFFERED, r.acquire("t", 0), (r.acquire("t", 0, pid="q"),)),
    "acquire: lease over": (OFFERED, r.acquire("t", 0), (r.acquire("t", 0), 5_000)),
    "acquire: a later claim": (
        OFFERED,
        r.acquire("t", 0),
        (r.acquire("t", 0), 5_000, r.acquire("t", 1)),
    ),
    "acquire: cancelled": (OFFERED, r.acquire("t", 0), (c.CancelPromise(id="t"),)),
    "create: another": ((), r.claimed("t"), (r.claimed("t", pid="q"),)),
    "release: no such task": ((), RELEASE, ()),
    "release: no such version": (TAKEN, c.ReleaseTask(id="run/a:a", version=2), ()),
    "continue: finished": (TAKEN, CONTINUE, (FINISH,)),
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_what_was_not_our_doing_stays_refused(case: str):
    """The first copy never arrived, and others were faster."""
    before, request, between = NOT_OURS[case]
    reply = doubted(before, request, between, applied=False)
    assert reply.status in (404, 409), reply


def test_the_answer_is_what_the_lost_one_was():
    """The settled promise, the claimed task, the failed one."""
    finished = doubted(TAKEN, FINISH, (), applied=True)
    assert finished.data.promise.state == "resolved"
    assert finished.data.taken.claims == ()
    failed = doubted(TAKEN, BACK_OFF, (), applied=True)
    assert (failed.data.promise.state, failed.data.task.failures) == ("pending", 1)
    claimed = doubted((r.target("t"),), r.acquire("t", 0), (), applied=True)
    assert (claimed.data.task.version, claimed.data.promise.id) == (1, "t")


@pytest.mark.parametrize("request_", [FINISH, FAIL], ids=["finish", "fail"])
def test_the_answer_tells_whether_the_verdict_was_applied(request_: c.FinishTask | c.FailTask):
    """The root stands there as the verdict says; with another node open it was ignored."""
    verdict = c.RootVerdict("resolved", OURS)
    request = replace(request_, root=verdict)
    last = doubted(TAKEN, request, (), applied=True)
    assert (last.data.root.id, last.data.root.state) == ("run/a", "resolved")
    two: Script = (r.run(a="", b=""), r.take(1))
    assert doubted(two, request, (), applied=True).data.root is None
    assert doubted(TAKEN, request_, (), applied=True).data.root is None


def test_a_release_is_never_refused():
    """So there is no doubt: its second copy finds nothing to do."""
    with World() as world:
        play(world, TAKEN)
        release = c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("run/a:a", 1),))
        for _ in range(2):
            world.ok(release)
        assert world.task("run/a:a").state == "pending"


def test_a_value_is_compared_as_it_is_stored():
    """Headers count, an empty value is one too."""
    for value in (c.NOTHING, c.Value(headers={}), c.Value(headers={"k": "v"}, data="")):
        request = c.FinishTask(id="run/a:a", version=1, value=value)
        assert doubted(TAKEN, request, (), applied=True).status == 200
    bare = c.FinishTask(id="run/a:a", version=1, value=c.Value(data="x"))
    other = settled("resolved", c.Value(headers={}, data="x"))
    assert doubted(TAKEN, bare, (other,), applied=False).status == 409
