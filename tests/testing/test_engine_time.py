"""An inline engine behind a LocalClient lives by virtual time."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from layby.clock import virtual_clock
from layby.core.commands import CreatePromise, Node, ResolvePromise, StartRun, Take, WatchPromise
from layby.core.model import NEVER
from layby.engine.engine import Engine
from layby.local import LocalClient
from layby.testing import current_clock, virtual_test
from tests.helpers.worlds import BACKENDS, new_store


@asynccontextmanager
async def embedded(backend) -> AsyncGenerator[Any]:
    clock = virtual_clock.get()
    assert clock is not None
    engine = Engine(new_store(backend), clock)
    engine.start_inline()
    client = LocalClient(engine)
    try:
        yield client
    finally:
        await client.close()
        engine.stop()


def take(pid="w", wait_ms=0, ttl=60_000):
    return Take(pid=pid, incarnation="1", group="g", names=("n",), free=1, wait_ms=wait_ms, ttl=ttl)


def one_node(run_id):
    return StartRun(id=run_id, name="flow", group="g", nodes=(Node(id="a", name="n"),))


@pytest.mark.parametrize("backend", BACKENDS)
@virtual_test
async def test_a_promise_times_out_at_its_virtual_instant(backend):
    """A promise that ends in an hour ends then, to the millisecond, and at once on the wall."""
    clock, begin = current_clock(), time.perf_counter()
    async with embedded(backend) as client:
        due = clock.now() + 3_600_123
        await client.send(CreatePromise(id="p", timeout_at=due))
        reply = await client.send(WatchPromise(id="p"))
        assert reply.data.promise.state == "rejected_timedout"
        assert clock.now() == due
    assert time.perf_counter() - begin < 60


@virtual_test
async def test_many_timers_fire_each_at_its_time():
    """Five hundred promises end at five hundred instants, each watcher sees its own."""
    clock = current_clock()
    async with embedded("sqlite") as client:

        async def watch(number):
            due = clock.now() + number * 997
            await client.send(CreatePromise(id=f"p{number}", timeout_at=due))
            await client.send(WatchPromise(id=f"p{number}"))
            return clock.now() - due

        late = await asyncio.gather(*(watch(number) for number in range(1, 501)))
    assert set(late) == {0}


@virtual_test
async def test_a_waiting_take_ends_empty_or_with_work():
    """A take that waits ends empty after its `wait_ms`, and with work as soon as there is some."""
    clock = current_clock()
    async with embedded("memory") as client:
        reply = await client.send(take(wait_ms=20_000))
        assert (reply.data.claims, clock.elapsed) == ((), 20)
        waiting = asyncio.create_task(client.send(take(wait_ms=20_000)))
        await clock.advance(5)
        await client.send(one_node("run/r"))
        reply = await waiting
        assert [claim.task.id for claim in reply.data.claims] == ["run/r:a"]
        assert clock.elapsed == 25


@virtual_test
async def test_a_silent_holder_expires_and_its_task_goes_to_the_next():
    """A worker that stops renewing loses its task when its lease ends, not before."""
    clock = current_clock()
    async with embedded("sqlite") as client:
        await client.send(one_node("run/r"))
        lost = await client.send(take("w1", ttl=30_000))
        assert lost.data.claims
        got = await client.send(take("w2", wait_ms=100_000, ttl=200_000))
        assert [claim.task.id for claim in got.data.claims] == ["run/r:a"]
        assert clock.elapsed == 30


@virtual_test
async def test_an_outsider_settles_while_hours_pass():
    """A promise settled by another coroutine after hours wakes its watcher in that instant."""
    clock = current_clock()
    async with embedded("memory") as client:
        watching = asyncio.create_task(client.send(WatchPromise(id="p")))
        await client.send(CreatePromise(id="q", timeout_at=NEVER))
        watching.cancel()
        watching = asyncio.create_task(client.send(WatchPromise(id="q")))
        await clock.advance(7_200)
        assert not watching.done()
        await client.send(ResolvePromise(id="q"))
        assert (await watching).data.promise.state == "resolved"
        assert clock.elapsed == 7_200
