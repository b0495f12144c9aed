"""Who is told what, and that nobody is told twice or not at all when streams come and go."""

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest

from layby.core.commands import CreatePromise, RegisterListener, SettlePromise
from layby.core.model import NEVER, Message, MessageKey, Promise
from layby.core.queries import OfferMessages
from layby.core.replies import OK, Reply, ok
from layby.core.ticks import ForgetMessages
from layby.delivery.routing import Router
from layby.engine.elsewhere import ReleaseMessages
from layby.engine.engine import Engine
from layby.engine.outbox import Outgoing
from layby.errors import StoreBusy
from layby.local import LocalClient
from layby.server.front import Front
from layby.server.poll_stream import PollConnection
from tests.helpers.clocks import ManualClock
from tests.helpers.push_receivers import Seen, on_loop
from tests.helpers.worlds import BACKENDS, Backend, World


class Outbox:
    """Engine and client at once: answers what the router asks when it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.forgetting: list[asyncio.Future[Reply]] = []
        self.forgotten: list[Message] = []
        self.released: list[Message] = []
        self.is_shared = False

    def forget(self, messages: Sequence[Message]) -> None:
        self.forgotten += messages

    def ask(self, request: object) -> "asyncio.Future[Reply]":
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if isinstance(request, ForgetMessages):
            self.forgetting.append(answer)
        elif isinstance(request, ReleaseMessages):
            self.released += request.messages
            answer.set_result(OK)
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
        self._grown = asyncio.Event()
        self._stream = asyncio.ensure_future(self.poll.stream(self._write, 60, 60))

    async def _write(self, chunk: bytes) -> None:
        if self.is_cut:
            raise ConnectionResetError
        self.carried += chunk
        self._grown.set()

    async def until(self, count: int) -> None:
        """It has carried so many."""
        while self.told < count:
            self._grown.clear()
            await self._grown.wait()

    async def end(self) -> None:
        self.poll.close()
        await self._stream

    @property
    def told(self) -> int:
        return self.carried.count(b"data: ")

    @property
    def ids(self) -> list[bytes]:
        return re.findall(rb'"id":"([^"]*)"', self.carried)


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
    router._accept([unblock("poll://uni@g/a")], [])  # in the queue of the first, and there it stays
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


# --- who it is -------------------------------------------------------------------------------


class Ear:
    """A receiver in this process, with room for as much as it is given."""

    def __init__(self, router: Router, name: str, group: str = "g", room: int = 1_000) -> None:
        self.group = group
        self.id = name
        self.room = room
        self.heard: list[str] = []
        self.rung = asyncio.Event()
        router.connect(self)

    @property
    def has_room(self) -> bool:
        return len(self.heard) < self.room

    def receive(self, outgoing: Outgoing) -> None:
        self.heard.append(outgoing.message.id)
        self.rung.set()


def about(name: str, address: str) -> Outgoing:
    return Outgoing(Message(name, "execute", address))


@on_loop
async def test_an_address_may_name_one_receiver() -> None:
    """`uni` is for that one alone, `any` prefers it; case counts, a query does not."""
    router = new_router(Outbox())
    a, b, other = Ear(router, "a"), Ear(router, "b"), Ear(router, "a", group="G")
    for number, address in enumerate(
        (
            "poll://uni@g/b",
            "poll://any@g/b",
            "poll://any@g/b?x=y",
            "poll://uni@g/B",
            "poll://any@G/zzz",
            "poll://any@g/zzz",
            "poll://uni@h/a",
        )
    ):
        router._accept([about(str(number), address)], [])
    assert (a.heard, b.heard, other.heard) == (["5"], ["0", "1", "2"], ["4"])


@on_loop
async def test_everybody_in_a_group_is_chosen_alike() -> None:
    router = new_router(Outbox(), choose=random.Random(7).choice)
    ears = [Ear(router, str(number)) for number in range(5)]
    router._accept([about(str(number), "poll://any@g") for number in range(1_000)], [])
    assert all(150 < len(ear.heard) < 250 for ear in ears)


@on_loop
async def test_who_has_come_again_is_told_where_it_is_now() -> None:
    """Its older stream may be dead already, and nobody knows."""
    router = new_router(Outbox())
    older, newer = Ear(router, "a"), Ear(router, "a")
    router._accept([about("t", "poll://uni@g/a")], [])
    assert (older.heard, newer.heard) == ([], ["t"])
    router.disconnect(newer)
    assert older.heard == ["t"]


@on_loop
async def test_one_that_is_full_is_passed_by() -> None:
    """A preference is none for a reader that does not read."""
    router = new_router(Outbox())
    full, roomy = Ear(router, "full", room=1), Ear(router, "roomy")
    for number in range(4):
        router._accept([about(str(number), "poll://any@g/full")], [])
    router._accept([about("4", "poll://any@g")], [])
    assert (full.heard, roomy.heard) == (["0"], ["1", "2", "3", "4"])


@on_loop
async def test_what_is_for_one_that_is_full_waits_for_it() -> None:
    router = new_router(Outbox())
    full, roomy = Ear(router, "full", room=0), Ear(router, "roomy")
    message = about("t", "poll://uni@g/full")
    router._accept([message], [])
    assert (full.heard, roomy.heard) == ([], [])
    full.room = 1
    router._accept_offered([message])
    assert full.heard == ["t"]


@on_loop
async def test_those_who_go_together_leave_nothing_to_each_other() -> None:
    """At the end of a server thousands go: a message must not travel past them all."""
    router = new_router(Outbox())
    going, staying = [Ear(router, str(number)) for number in range(50)], Ear(router, "x", "h")
    for number in range(50):
        router._accept([about(str(number), f"poll://any@g/{number}")], [])
    router.disconnect(*going)
    assert all(ear.heard == [ear.id] for ear in going)
    assert staying.heard == []
    assert not any(
        about(str(number), f"poll://any@g/{number}").message in router._assignments
        for number in range(50)
    )


@pytest.mark.parametrize(
    "address", ["poll://uni@g", "gcps://project/topic", "bash://", "bash://docker/image"]
)
def test_what_leads_nowhere_is_dropped_and_counted(address: str) -> None:
    """Nobody will ever take it: it must not stay in the outbox for good."""

    @on_loop
    async def scene() -> None:
        counted: list[tuple[str, str]] = []
        outbox = Outbox()
        router = Router(count=lambda kind, status: counted.append((kind, status)))
        router.attach(cast("Engine", outbox), cast("LocalClient", outbox))
        Ear(router, "a")
        router._accept([about("t", address)], [])
        assert counted == [("execute", "dropped")]
        assert [each.key for each in outbox.forgotten] == [("t", "execute", address)]

    scene()


@pytest.mark.parametrize("address", ["poll://any@g", "poll://any@g/a"])
def test_who_was_told_and_did_nothing_is_passed_by_when_it_is_told_again(address: str) -> None:
    """It may hang, with its connection open."""

    @on_loop
    async def scene() -> None:
        router = new_router(Outbox())
        hanging, other = Ear(router, "a"), Ear(router, "b")
        for _ in range(2):
            router._accept([about("t", address)], [])
        assert (hanging.heard, other.heard) == (["t"], ["t"])

    scene()


@pytest.mark.parametrize("address", ["poll://any@g", "poll://uni@g/a"])
def test_who_is_the_only_one_is_told_again(address: str) -> None:
    """It may have lost the message."""

    @on_loop
    async def scene() -> None:
        router = new_router(Outbox())
        ear = Ear(router, "a")
        others = [Ear(router, "b")] if "uni" in address else []
        for _ in range(3):
            router._accept([about("t", address)], [])
        assert (ear.heard, [other.heard for other in others]) == (["t"] * 3, [[]] * len(others))

    scene()


# --- what is given back ------------------------------------------------------------------------


def taken_and_given_back(router: Router, message: Outgoing) -> Outgoing:
    """By whoever was told of it: the execute that follows."""
    version = message.message.version + 1
    router._accept([], [message.key])
    router.note_hand_back(message.message.id, version)
    follower = Outgoing(Message(message.message.id, "execute", message.message.address, version))
    router._accept([follower], [])
    return follower


@pytest.mark.parametrize("address", ["poll://any@g", "poll://any@g/a", "poll://any@g/c"])
def test_who_gives_a_task_back_is_asked_last(address: str) -> None:
    """Whoever has its function is found before anybody is asked twice."""

    @on_loop
    async def scene() -> None:
        router = new_router(Outbox(), choose=random.Random(7).choice)
        ears = [Ear(router, name) for name in "abcde"]
        message = about("t", address)
        router._accept([message], [])
        for _ in range(4):
            message = taken_and_given_back(router, message)
        assert [ear.heard for ear in ears] == [["t"]] * 5

    scene()


@on_loop
async def test_what_everybody_has_given_back_is_told_again_after_a_pause() -> None:
    """They would be busy with nothing else; a page of the outbox tells it no sooner."""
    router = new_router(Outbox())
    ear = Ear(router, "a")
    message = about("t", "poll://any@g")
    router._accept([message], [])
    message = taken_and_given_back(router, message)
    router._accept_offered([message])
    assert ear.heard == ["t"]
    ear.rung.clear()
    await ear.rung.wait()
    assert message.message in router._assignments


@on_loop
async def test_what_is_taken_meanwhile_is_not_told_after_its_pause() -> None:
    router = new_router(Outbox())
    ear = Ear(router, "a")
    message = about("t", "poll://uni@g/a")
    router._accept([message], [])
    message = taken_and_given_back(router, message)
    [(_, pause)] = router._paused.values()
    router._accept([], [message.key])
    assert pause.cancelled()
    assert (ear.heard, router._paused) == (["t"], {})


@on_loop
async def test_who_gave_a_task_back_is_asked_again_when_the_others_decline() -> None:
    """It may have been a passing failure, and nobody waits half a minute for that."""
    router = new_router(Outbox())
    taker, message = Ear(router, "a"), about("t", "poll://any@g")
    router._accept([message], [])
    other = Ear(router, "b")
    message = taken_and_given_back(router, message)
    assert other.heard == ["t"]
    taker.rung.clear()
    router.decline("t", 1, "poll://any@g", "b")
    await taker.rung.wait()
    assert (taker.heard, other.heard) == (["t", "t"], ["t"])


def test_what_is_pushed_and_given_back_is_pushed_again_after_a_pause() -> None:
    pushed = Seen()

    class Pushes:
        def push(self, outgoing: Outgoing) -> None:
            pushed.add(outgoing.message.version)

        def withdraw(self, key: MessageKey) -> None:
            del key

        @property
        def pending(self) -> list[Message]:
            return []

    @on_loop
    async def scene() -> None:
        router = Router(push=Pushes())
        router.attach(cast("Engine", Outbox()), cast("LocalClient", Outbox()))
        message = about("t", "http://there/hook")
        router._accept([message], [])
        taken_and_given_back(router, message)
        assert pushed == [0]
        assert await pushed.until(2) == [0, 1]

    scene()


# --- what waits ------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [1, 7, 100, 1_000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_that_waits_is_told_once_to_who_comes(backend: Backend, buffer: int) -> None:
    """Page by page, whatever fits into its buffer, while more is coming."""

    @on_loop
    async def scene() -> None:
        router = Router()
        with World(backend, threaded=True, paused=False, now=1, delivery=router) as world:
            client = LocalClient(world.engine)
            router.attach(world.engine, client)
            for number in range(250):
                world.ok(called(f"before{number}"))
            wire = Wire(router, "a", buffer)
            for number in range(50):
                await client.send(called(f"after{number}"))
            await wire.until(300)
            await settled()
            assert len(set(wire.ids)) == wire.told == 300
            await wire.end()
            await client.close()

    scene()


def called(promise_id: str) -> CreatePromise:
    tags = {"resonate:target": "poll://any@g"}
    return CreatePromise(id=promise_id, timeout_at=NEVER, tags=tags)


class SlowOutbox(Outbox):
    """It answers no page of the outbox before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[asyncio.Future[Reply]] = []

    async def send(self, request: object) -> Reply:
        if not isinstance(request, OfferMessages):
            return await super().send(request)
        self.pages.append(asyncio.get_running_loop().create_future())
        return await self.pages[-1]


@on_loop
async def test_one_page_of_the_outbox_is_read_at_a_time_however_many_connect() -> None:
    """A command that comes meanwhile waits for one, not for as many as there are streams."""
    outbox = SlowOutbox()
    router = new_router(outbox)
    wires = [Wire(router, f"a{number}") for number in range(5)]
    for asked in range(1, 2 * len(wires) + 1):  # its own messages, and those to any of the group
        await settled()
        assert len(outbox.pages) == asked
        outbox.pages[-1].set_result(ok(OfferMessages()))
    await settled()
    for wire in wires:
        await wire.end()


@on_loop
async def test_a_stream_that_ends_while_its_page_is_read_leaves_its_turn_to_others() -> None:
    outbox = SlowOutbox()
    router = new_router(outbox)
    wires = [Wire(router, "a"), Wire(router, "b")]
    await settled()
    await wires[0].end()
    await settled()
    assert len(outbox.pages) == 2
    await wires[1].end()
