"""Who is told what, and that nobody is told twice or not at all when streams come and go."""

import asyncio
from typing import Any, cast

from layby.client.local import LocalClient
from layby.core.commands import (
    CreatePromise,
    ForgetMessages,
    OfferMessages,
    RegisterListener,
    SettlePromise,
)
from layby.core.model import Message, Promise
from layby.core.replies import OK, Reply, ok
from layby.engine.clock import ManualClock
from layby.engine.engine import Engine
from layby.engine.outbox import Outgoing
from layby.errors import StoreBusy
from layby.server.front import Front
from layby.server.poll import PollConnection
from layby.server.routing import Router
from tests.server.receivers import on_loop
from tests.worlds import World


class Outbox:
    """Engine and client at once: answers what the router asks when it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.forgetting: list[asyncio.Future[Reply]] = []

    def ask(self, request: object) -> "asyncio.Future[Reply]":
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if isinstance(request, ForgetMessages):
            self.forgetting.append(answer)
        else:
            answer.set_result(ok(OfferMessages()))
        return answer

    async def send(self, request: object) -> Reply:
        return await self.ask(request)


class Wire:
    """What one stream has carried; once it is cut, writing to it fails as it does on a socket."""

    def __init__(self, router: Router, name: str, buffer: int = 100) -> None:
        self.poll = PollConnection("g", name, router, "http://here", buffer)
        self.carried = b""
        self.is_cut = False
        self._stream = asyncio.ensure_future(self.poll.stream(self._write, 60, 60))

    async def _write(self, chunk: bytes) -> None:
        if self.is_cut:
            raise ConnectionResetError
        self.carried += chunk

    async def end(self) -> None:
        self.poll.close()
        await self._stream

    @property
    def told(self) -> int:
        return self.carried.count(b"data: ")


def new_router(outbox: Outbox, choose: Any = lambda receivers: receivers[0]) -> Router:
    router = Router(choose=choose)
    router.attach(cast("Engine", outbox), cast("LocalClient", outbox))
    return router


def unblock(address: str) -> Outgoing:
    promise = Promise("p", "p", "{}", "{}", 9, 0, state="resolved", settled_at=1)
    return Outgoing(Message("p", "unblock", address), promise)


def execute(address: str) -> Outgoing:
    return Outgoing(Message("t", "execute", address))


async def settled() -> None:
    """Everything that can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


@on_loop
async def test_what_was_told_is_not_told_again_while_it_is_being_forgotten() -> None:
    """A page of the outbox that was read before the message was forgotten may still name it."""
    outbox = Outbox()
    router = new_router(outbox)
    wire = Wire(router, "a")
    await settled()
    router.committed([unblock("poll://uni@g/a")], [])
    await settled()
    router.offered([unblock("poll://uni@g/a")])
    await settled()
    assert (wire.told, len(outbox.forgetting)) == (1, 1)
    outbox.forgetting[0].set_result(OK)
    await wire.end()


@on_loop
async def test_what_could_not_be_forgotten_is_told_again() -> None:
    """The outbox still has it, and the next who reads it there cannot know."""
    outbox = Outbox()
    router = new_router(outbox)
    wire = Wire(router, "a")
    await settled()
    router.committed([unblock("poll://uni@g/a")], [])
    await settled()
    outbox.forgetting[0].set_exception(StoreBusy("busy"))
    await settled()
    router.offered([unblock("poll://uni@g/a")])
    await settled()
    assert wire.told == 2
    await wire.end()


@on_loop
async def test_what_a_dead_stream_did_not_carry_goes_to_the_next() -> None:
    """A socket whose peer has hung up takes no message with it, if there is another."""
    for message in (unblock("poll://any@g/a"), execute("poll://any@g")):
        outbox = Outbox()
        router = new_router(outbox)
        dead, alive = Wire(router, "a"), Wire(router, "b")
        await settled()
        dead.is_cut = True
        router.committed([message], [])
        await settled()
        assert (dead.told, alive.told) == (0, 1)
        await alive.end()


@on_loop
async def test_a_closed_stream_leaves_its_queue_to_the_next() -> None:
    """It neither tells what another one tells now, nor counts it as told."""
    outbox = Outbox()
    router = new_router(outbox)
    first, second = Wire(router, "a"), Wire(router, "a")
    await settled()
    router._take([unblock("poll://uni@g/a")], [])  # in the queue of the first, and there it stays
    first.poll.close()
    await settled()
    assert (first.told, second.told) == (0, 1)
    await first.end()
    await second.end()


@on_loop
async def test_a_message_for_nobody_waits_in_the_outbox() -> None:
    """It is told when somebody comes, from what is offered then."""
    outbox = Outbox()
    router = new_router(outbox)
    router.committed([unblock("poll://uni@g/a")], [])
    await settled()
    wire = Wire(router, "a")
    router.offered([unblock("poll://uni@g/a")])
    await settled()
    assert wire.told == 1
    await wire.end()


@on_loop
async def test_an_execute_goes_to_another_worker_when_its_receiver_is_gone() -> None:
    """It has been read, perhaps, and nobody took the task: so somebody else is told of it."""
    outbox = Outbox()
    router = new_router(outbox)
    first, second = Wire(router, "a"), Wire(router, "b")
    await settled()
    router.committed([execute("poll://any@g")], [])
    await settled()
    assert (first.told, second.told) == (1, 0)
    await first.end()
    await settled()
    assert (first.told, second.told) == (1, 1)
    await second.end()


@on_loop
async def test_a_socket_that_closes_takes_no_message_with_it() -> None:
    """Between the end of a stream and the notice of it nothing is told to nobody."""
    router = Router()
    with World(threaded=True, paused=False, now=1, delivery=router) as world:
        client = LocalClient(world.engine)
        router.attach(world.engine, client)
        front = Front(client, router)
        port = await front.listener.listen("127.0.0.1", 0)
        world.ok(CreatePromise(id="p", timeout_at=9))
        world.ok(RegisterListener(awaited="p", address="poll://uni@g/a"))
        reader, writer = await opened(port)
        [protocol] = front.listener._state.connections
        world.ok(SettlePromise(id="p", state="resolved"))  # on its way to the router, and
        protocol.transport.close()  # before it is there its peer has hung up
        assert b"unblock" not in await reader.read()
        again, other_writer = await opened(port)
        assert b"unblock" in await again.readuntil(b'"p"')
        for each in (writer, other_writer):
            each.close()
            await each.wait_closed()
        await front.close(1)
        await client.close()


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /poll/g/a HTTP/1.1\r\nhost: here\r\n\r\n")
    assert b"200" in await reader.readuntil(b"\r\n\r\n")
    return reader, writer
