"""Streams to workers: in order, in pieces, with room for so much, and patience with so few."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest

from layby.core.model import Message, Promise
from layby.delivery.routing import Router
from layby.engine.outbox import Outgoing
from layby.server.poll_stream import (
    LITTLE_CHARS,
    MAX_CHARS,
    PIECE_BYTES,
    PING,
    PollConnection,
    StreamRoom,
)
from tests.delivery.test_routing import Outbox, execute, new_router, settled, unblock
from tests.helpers.push_receivers import Seen, on_loop

FOREVER = 3_600.0


class Reader:
    """One stream. It takes chunks while its gate is open."""

    def __init__(
        self,
        router: Router,
        name: str = "a",
        *,
        buffer: int = 100,
        ping_every: float = FOREVER,
        patience: float = FOREVER,
        slowly: Callable[[], Awaitable[None]] | None = None,
        room: StreamRoom | None = None,
    ) -> None:
        self.poll = PollConnection("g", name, router, "http://here", buffer, room)
        self.chunks = Seen()
        self.gate = asyncio.Event()
        self.gate.set()
        self._slowly = slowly
        self.stream = asyncio.ensure_future(self.poll.stream(self._write, ping_every, patience))

    async def _write(self, chunk: bytes) -> None:
        await self.gate.wait()
        if self._slowly is not None:
            await self._slowly()
        self.chunks.add(chunk)

    @property
    def told(self) -> list[str]:
        """Ids, in the order in which they came."""
        lines = b"".join(self.chunks).decode().split("\n\n")
        return [line.split('"id":"')[1].split('"')[0] for line in lines if "data: " in line]

    async def end(self) -> bool:
        self.poll.close()
        return await self.stream


def large(number: int, chars: int, to: str = "a") -> Outgoing:
    value = f'{{"data":"{"x" * chars}"}}'
    promise = Promise(f"p{number}", "p", value, "{}", 9, 0, state="resolved", settled_at=1)
    return Outgoing(Message(promise.id, "unblock", f"poll://uni@g/{to}"), promise)


def work(number: int, address: str = "poll://any@g") -> Outgoing:
    return Outgoing(Message(f"t{number}", "execute", address))


@on_loop
async def test_messages_leave_in_order_and_together() -> None:
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    router.committed([work(number) for number in range(50)], [])
    await settled()
    assert reader.told == [f"t{number}" for number in range(50)]
    assert len(reader.chunks) == 1
    assert await reader.end()


@on_loop
async def test_large_messages_leave_one_by_one() -> None:
    """So that a slow reader holds them up where they are counted."""
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    router.committed([large(number, PIECE_BYTES) for number in range(5)], [])
    await settled()
    assert reader.told == [f"p{number}" for number in range(5)]
    assert len(reader.chunks) == 5
    assert await reader.end()


@on_loop
async def test_a_stream_has_no_letters_that_a_reader_might_cut_in_two() -> None:
    """All beyond ASCII is escaped: what is cut anywhere, by bytes or lines, is still whole."""
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    promise_id, value = "größe\u2028\x85😀", '{"data":"ü"}'
    promise = Promise(promise_id, "p", value, "{}", 9, 0, state="resolved", settled_at=1)
    router.committed([Outgoing(Message(promise_id, "unblock", "poll://uni@g/a"), promise)], [])
    [chunk] = await reader.chunks.until(1)
    [told] = chunk.decode("ascii").splitlines()[:-1]
    shown = json.loads(told.removeprefix("data: "))["data"]["promise"]
    assert (shown["id"], shown["param"]) == (promise_id, {"data": "ü"})
    assert await reader.end()


@on_loop
async def test_a_silent_stream_carries_a_comment() -> None:
    reader = Reader(new_router(Outbox()), ping_every=0.01)
    assert set(await reader.chunks.until(3)) == {PING}
    assert await reader.end()


@on_loop
async def test_there_is_room_for_so_many_messages() -> None:
    """And again as soon as they are written."""
    router = new_router(Outbox())
    reader = Reader(router, buffer=3)
    await settled()
    router._accept([work(number) for number in range(5)], [])
    assert not reader.poll.has_room
    await settled()
    assert reader.told == ["t0", "t1", "t2"]
    assert reader.poll.has_room
    await reader.end()


@on_loop
async def test_there_is_room_for_so_much() -> None:
    """However few messages it is: what a value of megabytes costs is counted too."""
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    router._accept([large(number, MAX_CHARS // 4) for number in range(10)], [])
    assert not reader.poll.has_room
    await settled()
    assert reader.told == ["p0", "p1", "p2", "p3"]
    assert reader.poll.has_room
    await reader.end()


@on_loop
async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    """What it was told and not told goes to another one."""
    router = new_router(Outbox())
    stuck, other = Reader(router, "a", patience=0.05, buffer=2), Reader(router, "b")
    await settled()
    router.committed([work(0)], [])
    await settled()
    assert stuck.told == ["t0"]
    stuck.gate.clear()
    router.committed([work(1)], [])
    await settled()
    router.committed([work(2), work(3), work(4)], [])
    assert not await stuck.stream
    await settled()
    assert sorted(other.told) == ["t0", "t1", "t2", "t3", "t4"]
    assert await other.end()


@on_loop
async def test_a_reader_that_is_slow_is_waited_for() -> None:
    """Patience is with each piece, not with all of them."""

    async def slowly() -> None:
        await asyncio.sleep(0.1)

    router = new_router(Outbox())
    reader = Reader(router, patience=1.0, slowly=slowly)
    await settled()
    router.committed([large(number, PIECE_BYTES) for number in range(12)], [])
    await reader.chunks.until(12)
    assert await reader.end()


@on_loop
async def test_closing_does_not_wait_for_a_reader_that_takes_nothing() -> None:
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    reader.gate.clear()
    router.committed([work(0)], [])
    await settled()
    assert not await reader.end()


@on_loop
async def test_closing_twice_is_closing() -> None:
    reader = Reader(new_router(Outbox()))
    await settled()
    assert await reader.end()
    assert await reader.end()
    assert not reader.poll.has_room
    assert reader.chunks == []


@on_loop
async def test_what_was_withdrawn_meanwhile_is_not_told() -> None:
    """A task that somebody took is nobody else's business."""
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    router._accept([work(0), work(1)], [])
    router._accept([], [work(0).key])
    await settled()
    assert reader.told == ["t1"]
    await reader.end()


@on_loop
async def test_of_two_messages_about_one_task_the_newer_is_told() -> None:
    router = new_router(Outbox())
    reader = Reader(router)
    await settled()
    router._accept([Outgoing(Message("t", "execute", "poll://any@g", 1))], [])
    router._accept([Outgoing(Message("t", "execute", "poll://any@g", 2))], [])
    await settled()
    assert reader.told == ["t"]
    assert b'"version":2' in reader.chunks[0]
    await reader.end()


@pytest.mark.parametrize("message", [execute("poll://any@g"), unblock("poll://uni@g/a")])
def test_a_stream_that_is_cancelled_leaves_its_messages(message: Outgoing) -> None:
    """Its task ends for whatever reason: whoever comes next is told."""

    @on_loop
    async def scene() -> None:
        router = new_router(Outbox())
        reader = Reader(router)
        await settled()
        reader.gate.clear()
        router.committed([message], [])
        await settled()
        reader.stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader.stream
        assert message.message not in router._assignments
        following = Reader(router)
        router.offered([message])
        await settled()
        assert following.told == [message.message.id]
        await following.end()

    scene()


# --- all streams together --------------------------------------------------------------------


@on_loop
async def test_streams_that_do_not_read_have_only_so_much_room_together() -> None:
    """Each may hold a little, whatever the others hold; and all of it is given back."""
    router, room = new_router(Outbox()), StreamRoom(3 * PIECE_BYTES)
    stuck = [Reader(router, name, room=room) for name in "ab"]
    for each in stuck:
        each.gate.clear()
    await settled()
    for number in range(3):
        router.committed([large(number, PIECE_BYTES, "a")], [])
        await settled()
    assert room.left <= 0
    assert not stuck[0].poll.has_room
    router.committed([large(8, 2 * LITTLE_CHARS, "b")], [])
    await settled()
    assert not stuck[1].poll.has_room
    other = Reader(router, "c", room=room)
    await settled()
    router.committed([large(9, PIECE_BYTES, "c")], [])
    await settled()
    assert other.told == ["p9"]
    assert await other.end()
    stuck[0].gate.set()
    await settled()
    assert stuck[0].told == ["p0", "p1", "p2"]
    assert stuck[1].poll.has_room
    stuck[1].poll.close()
    assert room.left == 3 * PIECE_BYTES
    for each in stuck:
        each.gate.set()
        await each.end()


@on_loop
async def test_what_was_withdrawn_takes_no_room() -> None:
    router, room = new_router(Outbox()), StreamRoom(10 * PIECE_BYTES)
    reader = Reader(router, room=room)
    reader.gate.clear()
    await settled()
    outgoing = [large(number, PIECE_BYTES) for number in range(4)]
    router.committed(outgoing[:1], [])
    await settled()
    router.committed(outgoing[1:], [])
    await settled()
    router.committed([], [each.key for each in outgoing[1:]])
    reader.gate.set()
    await settled()
    assert reader.told == ["p0"]
    assert room.left == 10 * PIECE_BYTES
    await reader.end()
