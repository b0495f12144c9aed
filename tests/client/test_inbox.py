"""One stream for everything a process is told, and all who wait share it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from layby.client import inbox as inboxes
from layby.client import transport
from layby.client.inbox import Inbox
from layby.client.transport import StreamRefused
from layby.core import commands as c
from layby.errors import EngineStopped, StoreUnavailable
from tests.helpers import requests as r
from tests.helpers.troubled_server import Stage, play, soon, staged

LISTEN = "promise.register_listener"


class Heard:
    """A worker as far as an inbox knows one: `p`, of group `g`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.incarnation = "1"
        self.registrations = 0
        self.lost: list[tuple[str, int]] = []
        self.told: list[Any] = []
        self.failure: Exception | None = None
        self.inbox = Inbox(
            stage.client.transport,
            stage.client.send,
            "g",
            "p",
            self._register,
            lambda task_id, version: self.lost.append((task_id, version)),
            self.told.append,
        )
        stage.client.inbox = self.inbox

    async def _register(self) -> str:
        self.registrations += 1
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self.stage.client.send(r.take(0, incarnation=self.incarnation))
        return self.incarnation

    def watch(self, promise_id: str) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self.stage.client.send(c.WatchPromise(id=promise_id)))

    async def listens(self, count: int = 1) -> None:
        """Until so many listeners have been asked for, and are there."""
        came = self.stage.meddler.came
        await came.until(lambda _: self.stage.kinds().count(LISTEN) >= count)
        await self.stage.client.send(c.GetPromise(id="x"))  # stands behind them in the line


def listening(
    scene: Callable[[Stage, Heard], Awaitable[None]], flags: dict[str, object] | None = None
) -> None:
    async def run() -> None:
        async with staged(flags) as stage, opened(stage) as heard:
            await scene(stage, heard)

    play(run)


@asynccontextmanager
async def opened(stage: Stage) -> AsyncGenerator[Heard]:
    heard = Heard(stage)
    heard.inbox.start()
    try:
        await heard.inbox.is_open.wait()
        yield heard
    finally:
        await heard.inbox.close()


# --- hearing ---------------------------------------------------------------------------------


def test_a_settled_promise_is_heard_of():
    """Pushed, whatever its value is, up to megabytes."""
    large = c.Value(data="x" * 4_000_000)

    async def scene(stage: Stage, heard: Heard) -> None:
        for promise_id, value in (("x", c.NOTHING), ("y", large)):
            await stage.ok(r.promise(promise_id))
            watching = heard.watch(promise_id)
            await stage.meddler.came.until(lambda came, p=promise_id: (LISTEN, p) in asked(came))
            await stage.client.send(c.GetPromise(id="x"))
            await stage.ok(c.SettlePromise(id=promise_id, state="resolved", value=value))
            reply = await watching
            assert reply.data.promise.state == "resolved"
            assert reply.data.promise.value == (await stage.promise(promise_id)).value
        assert stage.meddler.streams == 1

    listening(scene)


def asked(came: list[Any]) -> list[tuple[str, str]]:
    return [(kind, data.get("awaited", "")) for kind, data in came]


def test_what_is_settled_already_or_does_not_exist_is_answered_at_once():
    """Nobody waits for a message that will not come."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        await stage.ok(r.settle("x"))
        assert (await heard.watch("x")).data.promise.state == "resolved"
        assert (await heard.watch("none")).status == 404

    listening(scene)


def test_a_crowd_shares_one_listener_and_is_let_go_in_portions():
    """Ten thousand who wait for one promise: asked once, and others are served in between."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        turns, woken = 0, list[int]()

        async def wait() -> None:
            await stage.client.send(c.WatchPromise(id="x"))
            woken.append(turns)

        async def count_turns() -> None:
            nonlocal turns
            while len(woken) < 10_000:
                turns += 1
                await asyncio.sleep(0)

        crowd = [asyncio.ensure_future(wait()) for _ in range(10_000)]
        await heard.listens()
        counting = asyncio.ensure_future(count_turns())  # the news may be here before the answer
        await stage.ok(r.settle("x"))
        await asyncio.gather(counting, *crowd)
        assert stage.kinds().count(LISTEN) == 1
        assert max(woken.count(turn) for turn in set(woken)) <= 2 * inboxes.NOTIFIED_AT_ONCE
        assert len(set(woken)) >= 10_000 / inboxes.NOTIFIED_AT_ONCE / 2

    listening(scene)


def test_one_of_a_crowd_may_leave():
    """The others go on waiting; when the last one has left nobody listens any more."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        stays, *leave = [heard.watch("x") for _ in range(5_000)]
        await heard.listens()
        for each in leave:
            each.cancel()
        await asyncio.wait(leave)
        await stage.ok(r.settle("x"))
        assert (await stays).data.promise.state == "resolved"
        await stage.ok(r.promise("y"))
        alone = heard.watch("y")
        await heard.listens(2)
        alone.cancel()
        await asyncio.wait([alone])
        stage.meddler.end_streams()
        await soon(lambda: stage.meddler.streams == 2)
        await heard.inbox.is_open.wait()
        await stage.client.send(c.GetPromise(id="x"))
        assert stage.kinds().count(LISTEN) == 2

    listening(scene)


def test_a_task_that_is_taken_away_is_heard_of():
    """Cancelled or halted by somebody: the worker is told which claim of it is over."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.run(a=""))
        await stage.client.send(r.take(1))
        await stage.ok(c.CancelPromise(id="run/a:a"))
        await soon(lambda: heard.lost == [("run/a:a", 1)])

    listening(scene)


def test_what_cannot_be_understood_is_passed_over(caplog: pytest.LogCaptureFixture):
    """Messages of a newer server, or nonsense: said in the log, and the stream goes on."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        watching = heard.watch("x")
        await heard.listens()
        await stage.meddler.inject(b'data: {"kind":\n\ndata: {"kind":"new","data":{}}\n\n: hi\n\n')
        await stage.ok(r.settle("x"))
        assert (await watching).data.promise.state == "resolved"
        assert stage.meddler.streams == 1

    listening(scene)
    assert "not understood" in caplog.text


# --- streams that break off ------------------------------------------------------------------


def test_what_was_settled_while_nobody_listened_is_found_afterwards():
    """A stream is opened anew, and everybody's listener registered again."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        await stage.ok(r.promise("y"))
        x, y = heard.watch("x"), heard.watch("y")
        await heard.listens(2)
        await stage.meddler.down()
        await stage.ok(r.settle("x"))
        await stage.meddler.up()
        assert (await x).data.promise.state == "resolved"
        await heard.inbox.is_open.wait()
        await stage.ok(r.settle("y"))
        assert (await y).data.promise.state == "resolved"

    listening(scene)


def test_a_message_that_was_cut_off_is_not_lost():
    """The server believes it delivered; asking again shows what it was about."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        watching = heard.watch("x")
        await heard.listens()
        stage.meddler.cut_next_message()
        await stage.ok(r.settle("x"))
        assert (await watching).data.promise.state == "resolved"
        assert stage.meddler.streams == 2
        assert stage.kinds().count(LISTEN) == 2

    listening(scene)


def test_messages_go_to_the_newest_stream():
    """One whose reader vanished without a word looks alive to the server for a while."""

    async def scene(stage: Stage, heard: Heard) -> None:
        stage.meddler.lose_streams()
        await soon(lambda: stage.meddler.streams == 2)
        await heard.inbox.is_open.wait()
        for number in range(20):
            await stage.ok(r.promise(f"x{number}"))
        watching = [heard.watch(f"x{number}") for number in range(20)]
        await heard.listens(20)
        for number in range(20):
            await stage.ok(r.settle(f"x{number}"))
        async with asyncio.timeout(20):
            await asyncio.gather(*watching)

    listening(scene)


def test_a_listener_that_was_not_registered_is_registered_later():
    """Whoever began to wait while no server was there."""

    async def scene() -> None:
        async with staged(patience=0) as stage, opened(stage) as heard:  # it tries once
            await stage.ok(r.promise("x"))
            await stage.meddler.down()
            watching = heard.watch("x")
            await asyncio.sleep(0.2)
            await stage.meddler.up()
            await heard.listens()
            await stage.ok(r.settle("x"))
            assert (await watching).data.promise.state == "resolved"

    play(scene)


def test_many_that_are_registered_again_let_others_pass():
    """Whoever asks something meanwhile does not stand behind all of them."""
    count = 3 * inboxes.RENEWED_AT_ONCE

    async def scene(stage: Stage, heard: Heard) -> None:
        ids = [f"p{number}" for number in range(count)]
        await asyncio.gather(*(stage.ok(r.promise(each)) for each in ids))
        waiting = [heard.watch(each) for each in ids]
        await heard.listens(count)
        stage.meddler.end_streams()
        await stage.meddler.came.until(lambda _: stage.kinds().count(LISTEN) > count)
        await stage.client.send(c.GetPromise(id="x"))
        assert stage.kinds().count(LISTEN) <= count + 2 * inboxes.RENEWED_AT_ONCE
        await heard.listens(2 * count)
        await asyncio.gather(*(stage.ok(r.settle(each)) for each in ids))
        await asyncio.gather(*waiting)

    listening(scene)


def test_listeners_are_registered_again_now_and_then(monkeypatch: pytest.MonkeyPatch):
    """Whatever was lost on the server's side is made up for."""
    monkeypatch.setattr(inboxes, "RENEW_EVERY_S", 0.05)

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        watching = heard.watch("x")
        await heard.listens(3)
        await stage.ok(r.settle("x"))
        await watching
        assert stage.meddler.streams == 1

    listening(scene)


def test_pings_keep_a_stream_alive(monkeypatch: pytest.MonkeyPatch):
    """Nothing but comments is no reason to hang up; silence is."""
    monkeypatch.setattr(transport, "MAX_SILENCE_S", 0.5)

    async def pinged(stage: Stage, heard: Heard) -> None:
        await asyncio.sleep(1.0)
        assert stage.meddler.streams == 1

    async def silent(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        watching = heard.watch("x")
        await soon(lambda: stage.meddler.streams >= 2)
        await heard.inbox.is_open.wait()
        await stage.ok(r.settle("x"))
        assert (await watching).data.promise.state == "resolved"

    listening(pinged, {"poll.ping": 0.1})
    listening(silent, {"poll.ping": 30.0})


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), RuntimeError("a bug")])
def test_a_registration_that_fails_is_tried_again(failure: Exception):
    """Whatever it was: a worker without ears would wait for ever."""

    async def scene(stage: Stage, heard: Heard) -> None:
        heard.failure = failure
        stage.meddler.end_streams()
        await soon(lambda: heard.registrations == 3)
        await heard.inbox.is_open.wait()

    listening(scene)


# --- who may listen --------------------------------------------------------------------------


def test_only_the_registered_holder_may_listen_for_it():
    """The incarnation is the key to a `layby.*` stream; groups of others have none."""

    async def scene(stage: Stage, heard: Heard) -> None:
        for group, pid, incarnation in (
            ("layby.g", "p", "2"),
            ("layby.g", "q", "1"),
            ("layby.other", "p", "1"),
        ):
            with pytest.raises(StreamRefused) as refused:
                await anext(stage.client.transport.events(group, pid, incarnation))
            assert refused.value.status == 409
        with pytest.raises(StreamRefused):
            await anext(stage.client.transport.events("layby.g", "p", ""))
        events = stage.client.transport.events("default", "anybody", "")
        assert await anext(events) == b""
        await events.aclose()

    listening(scene)


def test_a_new_incarnation_listens_anew():
    """What the server forgot with the old one is registered again, at once."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(r.promise("x"))
        watching = heard.watch("x")
        await heard.listens()
        await stage.ok(c.LeaveWorker(pid="p", incarnation="1"))
        heard.incarnation = "2"
        heard.inbox.reopen()
        await heard.listens(2)
        await stage.ok(r.settle("x"))
        assert (await watching).data.promise.state == "resolved"
        assert stage.meddler.streams == 2

    listening(scene)


def test_an_incarnation_that_is_refused_is_not_insisted_on():
    """The next registration may have another one."""

    async def scene(stage: Stage, heard: Heard) -> None:
        await stage.ok(c.LeaveWorker(pid="p", incarnation="1"))
        stage.meddler.end_streams()
        await soon(lambda: heard.registrations >= 3)
        heard.incarnation = "2"
        await soon(heard.inbox.is_open.is_set)

    listening(scene)


# --- the end ---------------------------------------------------------------------------------


def test_closing_tells_everybody_who_waits():
    """Also those whose listener is still on its way."""

    async def scene() -> None:
        async with staged() as stage:
            async with opened(stage) as heard:
                await stage.ok(r.promise("x"))
                waiting = [heard.watch("x") for _ in range(100)]
                await heard.listens()
                waiting += [heard.watch(f"y{number}") for number in range(100)]
                await asyncio.sleep(0)
            async with asyncio.timeout(1):
                ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(end) for end in ends} == {EngineStopped}
            with pytest.raises(EngineStopped):
                await stage.client.send(c.WatchPromise(id="x"))

    play(scene)
