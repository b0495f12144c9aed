"""The client of an engine in the same process."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.model import NEVER
from layby.errors import EngineStopped
from layby.local import LocalClient
from tests.helpers import requests as r
from tests.helpers.worlds import World

inline_or_threaded = pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])


def play(world: World, scene) -> None:
    """Run one scene with a client of its own."""

    async def run() -> None:
        client = LocalClient(world.engine)
        await scene(client)
        await client.close()

    asyncio.run(asyncio.wait_for(run(), 30))


@inline_or_threaded
def test_answers_and_refusals_are_replies(threaded: bool) -> None:
    """An exception would mean that the store failed."""

    async def scene(client: LocalClient) -> None:
        assert (await client.send(r.promise("x"))).status == 200
        assert (await client.send(c.GetPromise(id="none"))).status == 404
        assert (await client.send(r.promise(""))).status == 400

    with World(threaded=threaded, paused=False) as world:
        play(world, scene)


@inline_or_threaded
def test_requests_of_one_turn_leave_together(threaded: bool) -> None:
    """A crowd of coroutines shares one commit."""

    async def scene(client: LocalClient) -> None:
        sends = (client.send(r.promise(f"x{at}")) for at in range(50))
        replies: list[Any] = await asyncio.gather(*sends)
        assert [reply.data.promise.id for reply in replies] == [f"x{at}" for at in range(50)]

    with World("sqlite", threaded=threaded, paused=False) as world:
        before = world.engine.commits
        play(world, scene)
        assert world.engine.commits == before + 1


@inline_or_threaded
@pytest.mark.parametrize("moment", ["under way", "just answered"])
@pytest.mark.parametrize("kind", ["take", "run", "finish", "fail", "defer", "acquire", "create"])
def test_claims_of_a_cancelled_caller_are_handed_back(
    threaded: bool, kind: str, moment: str
) -> None:
    """Whatever claimed them: released, never forgotten, and somebody else gets them."""
    taker = r.take()
    deferred = r.defer("run/c:a", 1, r.trigger("Event", name="e"))
    requests: dict[str, tuple[c.Command, str]] = {
        "take": (taker, "run/a:a"),
        "run": (r.run("run/b", with_take=r.take(1), a=""), "run/b:a"),
        "finish": (r.finish("run/c:a", with_take=r.take(1)), "run/c:b"),
        "fail": (c.FailTask(id="run/c:a", version=1, take=r.take(1)), "run/c:b"),
        "defer": (replace(deferred, take=r.take(1)), "run/a:a"),
        "acquire": (r.acquire("t", 0), "t"),
        "create": (r.claimed("new"), "new"),
    }
    request, claimed = requests[kind]

    async def scene(client: LocalClient) -> None:
        await client.send(r.run("run/c", a="", b="a"))
        await client.send(r.take())
        await client.send(r.target("t"))
        if kind in ("take", "defer"):
            await client.send(r.run("run/a", a=""))
        sending = asyncio.ensure_future(client.send(request))
        await asyncio.sleep(0)  # it has left the caller, and nobody has answered yet
        if moment == "just answered":
            await soon_answered(sending)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await client.send(c.GetTask(id=claimed))  # has been answered, so the claim has too
        await client.send(c.GetTask(id=claimed))  # and what was handed back has left before this

    with World(threaded=threaded, paused=False) as world:
        play(world, scene)
        task = world.task(claimed)
        assert (task.state, task.version) == ("pending", 1)
        assert task.tries == (kind in ("acquire", "create")), "only the protocol counts it"
        world.check()


async def soon_answered(sending: "asyncio.Future[Any]") -> None:
    """Until its answer is there, and it has not gone on with it yet."""
    waited: Any = sending
    while not waited._fut_waiter.done():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


@inline_or_threaded
def test_a_waiting_take_whose_caller_was_cancelled_keeps_nothing(threaded: bool) -> None:
    """What it would have got goes to one that still waits."""

    async def scene(client: LocalClient) -> None:
        gone = asyncio.ensure_future(client.send(r.take(1, wait_ms=NEVER)))
        await client.send(c.GetPromise(id="x"))
        gone.cancel()
        waits = asyncio.ensure_future(client.send(r.take(1, pid="q", wait_ms=NEVER)))
        await client.send(c.GetPromise(id="x"))
        await client.send(r.run(a=""))
        reply: Any = await waits
        assert [claim.task.id for claim in reply.data.claims] == ["run/a:a"]

    with World(threaded=threaded, paused=False) as world:
        play(world, scene)
        assert world.task("run/a:a").pid == "q"


def test_a_stopped_engine_says_so() -> None:
    """Nothing hangs, whether asked before or after."""

    async def scene(client: LocalClient) -> None:
        waiting = asyncio.ensure_future(client.send(r.take(wait_ms=NEVER)))
        await client.send(c.GetPromise(id="x"))
        world.engine.stop()
        with pytest.raises(EngineStopped):
            await waiting
        with pytest.raises(EngineStopped):
            await client.send(c.GetPromise(id="x"))

    world = World(threaded=True, paused=False)
    play(world, scene)


def test_an_answer_after_the_loop_is_closed_disturbs_nobody() -> None:
    """The writer goes on serving others."""

    async def ask() -> None:
        client = LocalClient(world.engine)
        asking = asyncio.ensure_future(client.send(r.take(wait_ms=NEVER)))
        await client.send(c.GetPromise(id="x"))
        asking.cancel()

    with World(threaded=True, paused=False) as world:
        asyncio.run(ask())
        world.ok(r.run(a=""))
        assert world.ok(c.GetTask(id="run/a:a")).task.id == "run/a:a"
