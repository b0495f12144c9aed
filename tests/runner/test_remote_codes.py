"""Blocked tasks and pinned runs, with a server between the workers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from layby import Conflict, Run, Runner, Workflow, task
from layby.core.queries import ExplainPromise
from layby.server.server import Server
from layby.workflow.reasons import reason_of
from tests.helpers.troubled_server import play, served


def shop(event: str, *, pin: bool = False) -> Workflow:
    @task
    async def pays(context, handle):
        context["paid"] = await handle.wait_for(event)

    @task(dependencies=[pays])
    def ships(context):
        context["shipped"] = True

    return Workflow("shop", tasks=[pays, ships], pin=pin)


def at_a_server(scene: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as server:
            await scene(server)

    play(run)


async def until(run: Run, kind: str) -> str:
    """Until the first task waits for that; the sentence about it."""
    while True:
        waiting = (await run.status()).tasks["pays"].waiting_on
        if waiting is not None and waiting.kind == kind:
            return waiting.sentence
        await asyncio.sleep(0.01)


async def why(runner: Runner) -> str:
    reply = await runner.send(ExplainPromise(id="run/o-7:pays"))
    return reason_of(reply.data, runner.now()).sentence  # pyright: ignore[reportArgumentType]


def test_two_workers_of_different_code_at_one_server() -> None:
    """The bad one refuses what the good one hands back; a new good one goes on, beside it."""

    async def scene(server: Server) -> None:
        async with Runner(server.url, version="v1") as old:
            await until(await old.start(shop("paid"), run_id="o-7"), "promise")
        async with Runner(server.url, version="v2") as bad:
            bad.register(shop("payment"))
            run = await bad.get("o-7")
            assert 'wait_for("payment")' in await until(run, "code")
            assert "no worker of group 'default' with such code is connected" in await why(bad)
            await bad.resolve("paid", 7)
            async with Runner(server.url, version="v1") as good:
                good.register(shop("paid"))
                assert (await run.result()).to_dict() == {"paid": 7, "shipped": True}
            status = await run.status()
        assert status.tasks["pays"].failures == 0
        assert status.codes[:2] == ("v1", "v2")

    at_a_server(scene)


def test_a_pinned_run_at_a_server() -> None:
    """It waits for its code, which `why` names, until somebody lets other code go on."""

    async def scene(server: Server) -> None:
        async with Runner(server.url, version="v1") as old:
            await until(await old.start(shop("paid", pin=True), run_id="o-7"), "promise")
        async with Runner(server.url, version="v2") as new:
            new.register(shop("paid", pin=True))
            run = await new.get("o-7")
            await until(run, "code")
            assert "a worker with code 'v1'" in await why(new)
            assert (await run.status()).pin == "v1"
            with pytest.raises(Conflict, match=r"run 'o-7' is not halted but blocked.*'v1'"):
                await run.continue_()
            with pytest.raises(Conflict, match=r"task 'pays' of run 'o-7' is not halted but blo"):
                await new.continue_("o-7", "pays")
            await new.resolve("paid", 7)
            await run.continue_(code=True)
            assert (await run.result())["shipped"]
            assert (await run.status()).pin == "v2"

    at_a_server(scene)
