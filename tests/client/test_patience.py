"""What a worker does while the store does not answer."""

import asyncio
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from layby.client.patience import send_until_answered, until_answered
from layby.core import commands as c
from layby.core.replies import OK, ClaimData, PromiseData, Reply
from layby.errors import StoreUnavailable
from layby.testing import virtual_test
from tests.helpers import requests as r
from tests.helpers.worlds import World


@virtual_test
async def test_an_outage_is_told_once_however_many_requests_wait(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each asks again and again, and nobody reads the same line for each of them each time."""

    async def patient(*failures: str) -> Reply:
        left = iter(failures)

        async def send() -> Reply:
            if (why := next(left, None)) is not None:
                raise StoreUnavailable(why)
            return OK

        return await until_answered(send)

    full = tuple(repeat(f"{tmp_path}: the disk is full", 5))
    gone = tuple(repeat(f"{tmp_path}: the file is gone", 5))
    replies = await asyncio.gather(*(patient(*chain(full, gone)) for _ in range(20)))
    assert replies == [OK] * 20
    about = "the store does not answer, trying again"
    told = [each.getMessage() for each in caplog.records]
    assert told == [f"{about}: {full[0]}", f"{about}: {gone[0]}"]


class Unsure:
    """A client whose store cannot tell, so many times, what has become of a command."""

    def __init__(self, world: World, times: int, *, is_done: bool) -> None:
        self._world = world
        self._left = times
        self._is_done = is_done

    async def send(self, request: Any) -> Reply:
        is_unsure = self._left > 0 and not isinstance(request, c.GetPromise | c.GetTask)
        self._left -= is_unsure
        reply = self._world.send(request) if self._is_done or not is_unsure else None
        if reply is None or is_unsure:
            raise StoreUnavailable("the connection broke during the commit")
        return Reply(reply.status, reply.data)

    async def close(self) -> None: ...


@pytest.mark.parametrize("times", [1, 3])
@virtual_test
async def test_what_was_done_before_it_was_refused_counts(times: int) -> None:
    """Nobody knew whether it was: that it is refused later is the sign of it."""
    with World() as world:
        world.ok(r.target("t"))
        acquire = r.acquire("t", 0)
        claimed = await send_until_answered(Unsure(world, times, is_done=True), acquire)
        assert isinstance(claimed.data, ClaimData)
        assert (claimed.data.task.version, claimed.data.task.pid) == (1, "p")
        fulfill = r.fulfill("t", 1)
        assert (await send_until_answered(Unsure(world, 0, is_done=True), fulfill)).is_ok
        assert (await send_until_answered(Unsure(world, 0, is_done=True), fulfill)).status == 409
        told = await send_until_answered(Unsure(world, 0, is_done=True), fulfill, is_unsure=True)
        assert isinstance(told.data, PromiseData)
        assert told.data.promise.state == "resolved"


@virtual_test
async def test_what_others_did_meanwhile_is_a_refusal() -> None:
    with World() as world:
        world.ok(r.target("t"))
        world.ok(r.acquire("t", 0, pid="q"))
        told = await send_until_answered(Unsure(world, 2, is_done=False), r.acquire("t", 0))
        assert told.status == 409
