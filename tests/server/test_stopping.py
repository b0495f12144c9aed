"""A server that is asked to stop, and whoever comes in that very moment."""

import asyncio
import time
from typing import Any

import pytest

from layby.client.http import HttpClient
from layby.client.transport import StreamRefused
from layby.core import commands as c
from tests.client.stage import play, served
from tests.core import requests as r


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
            assert time.monotonic() - began < 2
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
