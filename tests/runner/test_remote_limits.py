"""Limits through a server: two Runners together stay below them."""

import asyncio

from layby import Runner, Workflow, task
from tests.helpers.troubled_server import play, served


def test_two_remote_runners_share_limits() -> None:
    """Static ones, ones that follow from the context, and with bodies that park in between."""
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    two_call = asyncio.Event()
    """The first one waits for the second: however busy the machine is, they meet."""

    async def runs(name: str) -> None:
        running[name] = running.get(name, 0) + 1
        most[name] = max(most.get(name, 0), running[name])
        if running.get("api") == 2:
            two_call.set()
        await two_call.wait()
        await asyncio.sleep(0.01)
        running[name] -= 1

    @task(limit="api")
    async def call(context, handle):
        await runs("api")
        await handle.sleep(0.02)
        await runs("api")

    @task(id="sync", dependencies=[call], limit=lambda context: f"tenant-{context['tenant']}")
    async def sync(context):
        await runs(context["tenant"])

    flow = Workflow("w", tasks=[call, sync])

    async def scene() -> None:
        async with served() as server:
            url = f"http://127.0.0.1:{server.port}"
            async with Runner(url, slots=4) as one, Runner(url, slots=4) as two:
                shown = await one.limit("api", concurrency=2)
                assert shown.concurrency == 2
                await two.limit("tenant-*", concurrency=1)
                started = [
                    await (one, two)[number % 2].start(flow, {"tenant": "ab"[number % 2]})
                    for number in range(10)
                ]
                for run in started:
                    await run.result(timeout=30)
                standings = {each.name: each for each in await two.limits()}
                assert standings["api"].held == 0

    play(scene)
    assert most == {"api": 2, "a": 1, "b": 1}
