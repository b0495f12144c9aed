"""Engines on one database, each with a router: a message is offered by one of them at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from layby.clock import SystemClock
from layby.core import commands as c
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.delivery.routing import Router
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.outbox import Outgoing
from layby.local import LocalClient
from layby.store.announcement import Announcement
from layby.store.postgres import PostgresStore
from tests.helpers.postgres import cluster
from tests.helpers.push_receivers import Seen, on_loop


class Server:
    """As much of one as delivers."""

    def __init__(self, url: str) -> None:
        self.taken_over = 0
        self.router = Router(count_taken_over=self._count)
        store = PostgresStore(url, Settings(), next_after)
        self.engine = Engine(store, store.clock_beside(SystemClock().elapsed), self.router)
        self.listens = threading.Event()
        """What others announce before that is not heard."""
        self._note_listening()
        self.engine.start()
        self.client = LocalClient(self.engine)
        self.router.attach(self.engine, self.client)

    def _note_listening(self) -> None:
        hear = self.engine.hear

        def hearing(announcement: Announcement) -> None:
            hear(announcement)
            if announcement.everything:
                self.listens.set()

        cast("Any", self.engine).hear = hearing

    def _count(self) -> None:
        self.taken_over += 1

    async def ok(self, request: Any) -> Any:
        reply = await self.client.send(request)
        assert reply.is_ok, reply
        return reply.data

    async def close(self) -> None:
        await self.client.close()
        await asyncio.get_running_loop().run_in_executor(None, self.engine.stop)


class Listener:
    """Takes so many messages, and may decline them."""

    def __init__(self, server: Server, name: str, room: int = 1_000) -> None:
        self.group, self.id, self.room = "g", name, room
        self.heard = Seen()
        self.promises: list[str] = []
        self._router = server.router
        server.router.connect(self)

    @property
    def has_room(self) -> bool:
        return len(self.heard) < self.room

    def receive(self, outgoing: Outgoing) -> None:
        self.promises += [] if outgoing.promise is None else [outgoing.promise.state]
        self.heard.add((outgoing.message.id, outgoing.message.version))

    def decline(self, task_id: str, version: int) -> None:
        self._router.decline(task_id, version, "poll://any@g", self.id)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Server, Server]]:
    url = cluster().url(cluster().new_database())
    servers = Server(url), Server(url)
    try:
        for each in servers:
            assert await asyncio.to_thread(each.listens.wait, 60), "it does not listen"
        yield servers
    finally:
        for each in servers:
            await each.close()


def called(task_id: str) -> c.CreatePromise:
    tags = {"resonate:target": "poll://any@g"}
    return c.CreatePromise(id=task_id, timeout_at=NEVER, tags=tags)


@on_loop
async def test_who_declines_passes_it_on_to_another_server() -> None:
    """And is not asked again, though its server would be free to offer it."""
    async with two() as (a, b):
        one, other = Listener(a, "one"), Listener(b, "other")
        await a.ok(called("t"))
        assert await one.heard.until(1) == [("t", 0)]
        one.decline("t", 0)
        assert await other.heard.until(1) == [("t", 0)]
        await a.ok(called("u"))
        await one.heard.until(2)
        assert one.heard == [("t", 0), ("u", 0)]
        assert (a.taken_over, b.taken_over) == (0, 0)


@on_loop
async def test_who_is_full_leaves_the_rest_to_another_server() -> None:
    async with two() as (a, b):
        full, free = Listener(a, "full", room=3), Listener(b, "free")
        for number in range(10):
            await a.ok(called(f"t{number}"))
        await free.heard.until(7)
        assert len({*full.heard, *free.heard}) == len(full.heard) + len(free.heard) == 10


@on_loop
async def test_who_leaves_passes_it_on_to_another_server() -> None:
    async with two() as (a, b):
        gone = Listener(a, "gone")
        await a.ok(called("t"))
        await gone.heard.until(1)
        other = Listener(b, "other")
        a.router.disconnect(gone)
        assert await other.heard.until(1) == [("t", 0)]


@on_loop
async def test_a_newer_message_of_the_same_task_arrives() -> None:
    """It was taken and handed back elsewhere: what the server knows of the older one is stale."""
    async with two() as (a, b):
        ear = Listener(b, "ear")
        await b.ok(called("t"))
        await ear.heard.until(1)
        await a.ok(c.AcquireTask(id="t", version=0, pid="p", ttl=60_000))
        await a.ok(c.ReleaseTask(id="t", version=1))
        assert await ear.heard.until(2) == [("t", 0), ("t", 1)]


@on_loop
async def test_what_is_taken_elsewhere_is_withdrawn() -> None:
    async with two() as (a, b):
        ear = Listener(b, "ear")
        await b.ok(called("t"))
        await ear.heard.until(1)
        forgotten = Seen()
        hand_backs = cast("Any", b.router._hand_backs)
        hand_backs.note_taken = lambda task_id, _: forgotten.add(task_id)
        await a.ok(c.AcquireTask(id="t", version=0, pid="p", ttl=60_000))
        await forgotten.until(1)
        assert list(b.router._assignments) == []


@on_loop
async def test_a_message_that_another_server_tells_of_costs_one_round_trip() -> None:
    """It is leased, and what it is about is read, with one commit: somebody waits for it."""
    async with two() as (a, b):
        ear, trips = Listener(b, "ear"), Seen()
        await a.ok(c.CreatePromise(id="p", timeout_at=NEVER))
        await a.ok(c.RegisterListener(awaited="p", address="poll://uni@g/ear"))
        counting_trips(b, trips)
        await a.ok(c.SettlePromise(id="p", state="resolved"))
        assert await ear.heard.until(1) == [("p", 0)]
        assert ear.promises == ["resolved"]
        assert (await trips.until(1))[-1] == 1


@on_loop
async def test_a_message_that_nobody_here_may_get_costs_nothing() -> None:
    async with two() as (a, b):
        trips = Seen()
        counting_trips(b, trips)
        await a.ok(called("t"))
        assert (await trips.until(1))[-1] == 0


def counting_trips(server: Server, trips: Seen) -> None:
    """To the database, by what the server hears of messages."""
    store, loop = cast("Any", server.engine._store), asyncio.get_running_loop()
    run, hear, counted = store._session._run, server.engine.hear, 0

    def running(statements: Any) -> Any:
        nonlocal counted
        counted += 1
        return run(statements)

    def hearing(announcement: Any) -> None:
        before = counted
        hear(announcement)
        if announcement.messages:
            loop.call_soon_threadsafe(trips.add, counted - before)

    store._session._run = running
    cast("Any", server.engine).hear = hearing
