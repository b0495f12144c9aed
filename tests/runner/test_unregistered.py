"""A run whose workflow nobody has registered says so, wherever one looks."""

from typing import NoReturn

import pytest

from layby import Runner, Workflow, task
from layby.core.commands import GetPromise
from layby.core.model import NEVER
from layby.runner.flow_directory import FlowDirectory
from layby.workflow import plan
from tests.helpers.troubled_server import play, served


@task
async def works(context):
    pass


FLOW = Workflow("billing", tasks=[works])


async def unasked(_: object) -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize(
    ("address", "pasted"),
    [
        ("http://h:8001", "http://h:8001"),
        ("postgresql://u:secret@/d?host=/tmp&port=1", "'postgresql://u:***@/d?host=/tmp&port=1'"),
    ],
)
def test_the_command_that_helps_can_be_pasted(address: str, pasted: str) -> None:
    directory = FlowDirectory(unasked, address, "default", elapsed=lambda: 0)
    assert f"layby worker MODULE --url {pasted}" in directory.how_to_work


@pytest.mark.parametrize("where", ["memory", "http"])
def test_nobody_has_the_code(where: str):
    """The status and the end of one's patience name the code, instead of a free slot."""

    async def look(runner: Runner) -> None:
        assert (await runner.send(plan.plan(FLOW, "x", {}, "default", NEVER))).is_ok
        run = await runner.get("x")
        told = (await run.status()).tasks["works"]
        assert told.status == "Ready"
        assert told.waiting_on is not None
        nobody = "no worker of group 'default' with the code of 'billing/works' is connected"
        assert told.waiting_on.sentence.startswith(f"is ready, but {nobody}")
        with pytest.raises(TimeoutError, match=r"with the code of 'billing/works'.*register\(\)"):
            await run.result(timeout=0.01)
        runner.register(FLOW)
        await run.result(timeout=60)
        assert (await runner.send(GetPromise(id="run/x"))).is_ok

    async def scene() -> None:
        if where == "memory":
            async with Runner("memory:") as runner:
                await look(runner)
            return
        async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
            await look(runner)

    play(scene)
