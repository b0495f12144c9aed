"""A server that is asked to stop, and whoever comes in that very moment."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from layby import Runner, Workflow, task
from layby.client.http import HttpClient
from layby.client.transport import StreamRefused
from layby.core import commands as c
from tests.helpers import requests as r
from tests.helpers.troubled_server import play, served


def test_a_stream_that_is_being_opened_does_not_hold_it_up():
    """It is not among the streams that are ended, since it is none yet; it must not become one."""

    async def scene() -> None:
        async with served() as server:
            client = HttpClient(server.url)
            await client.send(r.take(0))
            asked, go_on = asyncio.Event(), asyncio.Event()
            send = server.client.send

            async def slowly(request: Any, now: Any = None) -> Any:
                if isinstance(request, c.CheckHolder):
                    asked.set()
                    await go_on.wait()
                return await send(request, now)

            server.client.send = slowly
            opening = asyncio.ensure_future(anext(client.transport.events("layby.g", "p", "1")))
            await asked.wait()
            began = time.monotonic()
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0)
            go_on.set()
            await stopping
            assert time.monotonic() - began < 8  # of 10 that it may take
            with pytest.raises(StreamRefused) as refused:
                await opening
            assert refused.value.status == 503
            await client.close()

    play(scene)


def test_it_may_stop_as_soon_as_it_has_started():
    """What it does in the background at first is no reason to complain."""

    async def scene() -> None:
        for _ in range(5):
            async with served():
                pass

    play(scene)


def test_a_stranger_at_the_place_of_its_socket_does_not_hold_it_up(tmp_path: Path):
    """It served without the socket, and closes its file; whoever comes next may open it."""
    place: dict[str, object] = {"db": f"sqlite:{tmp_path / 'layby.db'}"}
    (tmp_path / "layby.db.sock").mkdir()

    async def scene() -> None:
        for _ in range(2):
            async with served(place) as server:
                assert (await server.client.send(r.promise("p"))).status == 200
        assert (tmp_path / "layby.db.sock").is_dir()

    play(scene)


def test_nobody_is_blamed_for_the_time_it_was_away(tmp_path: Path):
    """Workers could not be heard: their leases begin anew, and what they run goes on."""
    begun, gate = asyncio.Event(), asyncio.Event()

    @task
    async def works(context, handle):
        begun.set()
        await gate.wait()
        context["try"] = handle.try_number

    async def scene() -> None:
        place: dict[str, object] = {"db": f"sqlite:{tmp_path / 'layby.db'}"}
        async with served(place) as server:
            runner = await Runner(server.url, lease=1.5).__aenter__()
            run = await runner.start(Workflow("w", tasks=[works]), run_id="a")
            await begun.wait()
        await asyncio.sleep(2.0)  # longer than the lease
        async with served(place | {"server.port": server.port}) as server:
            await asyncio.sleep(0.3)  # some heartbeats
            gate.set()
            assert (await run.result())["try"] == 1
            assert (await run.status()).tasks["works"].crashes == 0
            await runner.close()

    play(scene)
