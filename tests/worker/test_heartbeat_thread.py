"""A remote worker's leases: what keeps them, what loses them, and what happens then."""

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby import RunCancelled, Runner, task
from layby.client.http import HttpClient
from layby.core import commands as c
from layby.core.model import NEVER
from layby.runner import remote
from layby.worker import worker as workers
from layby.worker.heartbeat_thread import HeartbeatThread
from layby.workflow.plan import plan
from tests.helpers.server_thread import Elsewhere, play, server_elsewhere, soon
from tests.helpers.troubled_server import Trouble
from tests.helpers.workers import flow_of

BEAT = "layby.worker.heartbeat"
LISTEN = "promise.register_listener"
SLOW: list[Trouble] = ["slow"] * 100


def block(seconds: float) -> None:
    """User code that does not let the event loop turn."""
    threading.Event().wait(seconds)


@pytest.fixture
def elsewhere():
    with server_elsewhere() as found:
        yield found


class Bodies:
    """What ran, and how it ended."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[str] = []
        self.gate = asyncio.Event()

    async def wait(self, handle: Any) -> None:
        self.begun.append(handle.try_number)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")

    def flow(self):
        @task
        async def waits(context, handle):
            await self.wait(handle)
            context["try"] = handle.try_number

        return flow_of(waits)


# --- leases that are kept --------------------------------------------------------------------


def test_a_body_that_blocks_the_loop_keeps_its_lease(elsewhere: Elsewhere):
    """Heartbeats have a thread of their own: three leases long, and nobody takes over."""

    @task
    async def blocks(context, handle):
        block(1.8)
        context["try"] = handle.try_number

    async def scene() -> None:
        async with elsewhere.runner() as runner:
            result = await runner.execute(flow_of(blocks), run_id="a")
            assert result["try"] == 1
            assert (await elsewhere.task("run/a:blocks")).version == 1

    play(scene)
    assert elsewhere.count(BEAT) >= 6


def test_a_heartbeat_whose_answer_never_comes_costs_no_lease(elsewhere: Elsewhere):
    """It is given up in time for another one."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=0.9) as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            elsewhere.meddler.trouble(BEAT, "hang", "pass", "hang", "lose")
            before = elsewhere.count(BEAT)
            await soon(lambda: elsewhere.count(BEAT) >= before + 6)
            bodies.gate.set()
            assert (await run.result())["try"] == 1

    play(scene)


def test_heartbeats_that_take_long_still_keep_the_lease(elsewhere: Elsewhere):
    """Each takes most of the time between two: it is not given up, and no other waits behind it."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=1.8) as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            elsewhere.meddler.trouble(BEAT, *SLOW)
            before = elsewhere.count(BEAT)
            await soon(lambda: elsewhere.count(BEAT) >= before + 7)
            bodies.gate.set()
            assert (await run.result())["try"] == 1

    play(scene)


def test_a_long_lease_is_renewed_too(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch):
    """Though its heart beats less often than a loop may be blocked."""
    monkeypatch.setattr(
        remote, "HeartbeatThread", functools.partial(HeartbeatThread, max_block=0.7)
    )

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=2.4) as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: elsewhere.count(BEAT) >= 5)
            bodies.gate.set()
            assert (await run.result())["try"] == 1

    play(scene)


def test_a_server_that_is_away_for_less_than_the_lease_is_waited_for(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
):
    """The body goes on meanwhile, and is not run again; that it is away is said once."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=3) as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            await elsewhere.ask(elsewhere.meddler.down())
            await soon(lambda: "heartbeats are not answered" in caplog.text)
            await elsewhere.ask(elsewhere.meddler.up())
            bodies.gate.set()
            assert (await run.result())["try"] == 1
        assert bodies.ended == ["done"]

    play(scene)
    assert caplog.text.count("heartbeats are not answered") == 1


# --- leases that are lost --------------------------------------------------------------------


def test_a_loop_that_is_blocked_for_too_long_is_given_up(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Others may take what is stuck there; the log names the task; afterwards work goes on."""
    monkeypatch.setattr(
        remote, "HeartbeatThread", functools.partial(HeartbeatThread, max_block=0.5)
    )

    @task
    async def stuck(context, handle):
        if handle.try_number == 1:
            until = time.monotonic() + 20
            while elsewhere.look("run/a:stuck").state == "acquired":
                assert time.monotonic() < until
                block(0.02)
        context["try"] = handle.try_number

    async def scene() -> None:
        async with elsewhere.runner() as runner:
            assert (await runner.execute(flow_of(stuck), run_id="a"))["try"] >= 2

    play(scene)
    told = [each.message for each in caplog.records if "blocked" in each.message]
    assert told
    assert all("run/a:stuck" in each for each in told)


@pytest.mark.parametrize("how", ["expired", "given up"])
def test_a_worker_that_lost_its_lease_starts_over(elsewhere: Elsewhere, how: str):
    """Its bodies end, it comes back as another incarnation, and work goes on; so does waiting."""

    async def scene() -> None:
        bodies = Bodies()
        await elsewhere.ok(c.EnsurePromise(id="event"))
        async with elsewhere.runner() as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            result = asyncio.ensure_future(run.result())
            event = asyncio.ensure_future(runner.client.send(c.WatchPromise(id="event")))
            await soon(lambda: bodies.begun)
            first = runner.worker.incarnation
            await lose_lease(elsewhere, runner, how)
            await soon(lambda: "cancelled" in bodies.ended)
            await soon(lambda: len(bodies.begun) >= 2)  # on a busy machine it is lost again
            assert runner.worker.incarnation != first
            bodies.gate.set()
            async with asyncio.timeout(10):
                assert (await result)["try"] == bodies.begun[-1]
                await elsewhere.ok(c.ResolvePromise(id="event"))
                await event

    play(scene)


async def lose_lease(elsewhere: Elsewhere, runner: Runner, how: str) -> None:
    worker = runner.worker
    if how == "given up":
        await elsewhere.ok(c.LeaveWorker(pid=worker.config.pid, incarnation=worker.incarnation))
        return
    await elsewhere.ask(elsewhere.meddler.down())
    while (await elsewhere.task("run/a:waits")).state == "acquired":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await elsewhere.ask(elsewhere.meddler.up())


def test_a_worker_without_code_comes_back_as_well(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
):
    """It takes nothing, but it listens; and it does not lose what it has just got again."""

    async def scene() -> None:
        await elsewhere.ok(c.EnsurePromise(id="event"))
        async with elsewhere.runner() as runner:
            await soon(lambda: elsewhere.meddler.streams)
            event = asyncio.ensure_future(runner.client.send(c.WatchPromise(id="event")))
            await soon(lambda: elsewhere.count(LISTEN))
            await lose_lease(elsewhere, runner, "given up")
            listeners = elsewhere.count(LISTEN)
            await soon(lambda: elsewhere.count(LISTEN) > listeners)
            before = elsewhere.count(BEAT)
            await soon(lambda: elsewhere.count(BEAT) >= before + 4)
            await elsewhere.ok(c.ResolvePromise(id="event"))
            async with asyncio.timeout(20):
                await event

    play(scene)
    assert caplog.text.count("lost its lease") == 1


# --- tasks that are taken away ---------------------------------------------------------------


def test_cancelling_a_run_reaches_its_body_at_once(elsewhere: Elsewhere):
    """By the stream, long before a heartbeat."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=60) as runner:
            run = await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            began = time.monotonic()
            await elsewhere.ok(c.CancelPromise(id="run/a"))
            await soon(lambda: bodies.ended == ["cancelled"])
            assert time.monotonic() - began < 15  # a heartbeat comes each 20 s
            with pytest.raises(RunCancelled):
                await run.result()

    play(scene)


def test_cancelling_reaches_a_body_by_the_heartbeat_if_the_stream_is_down(elsewhere: Elsewhere):
    """A little later, and without a word on the stream."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner() as runner:
            await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            elsewhere.meddler.refuses_streams = True
            elsewhere.loop.call_soon_threadsafe(elsewhere.meddler.end_streams)
            await elsewhere.ok(c.CancelPromise(id="run/a"))
            await soon(lambda: bodies.ended == ["cancelled"])

    play(scene)


def test_cancelling_reaches_a_body_though_the_answer_that_said_so_was_lost(elsewhere: Elsewhere):
    """The store has said it once, and counts the task as held until its body has ended."""

    async def scene() -> None:
        bodies = Bodies()
        async with elsewhere.runner(lease=1.2) as runner:
            await runner.start(bodies.flow(), run_id="a")
            await soon(lambda: bodies.begun)
            elsewhere.meddler.refuses_streams = True
            elsewhere.loop.call_soon_threadsafe(elsewhere.meddler.end_streams)
            await soon(lambda: not elsewhere.meddler._open_streams)
            lost: list[Trouble] = ["lose"] * 4
            elsewhere.meddler.trouble(BEAT, *lost)
            await elsewhere.ok(c.CancelPromise(id="run/a"))
            await soon(lambda: bodies.ended == ["cancelled"])

    play(scene)


# --- the end ---------------------------------------------------------------------------------


def test_a_worker_that_leaves_has_not_lost_anything(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
):
    """A heartbeat after the good-bye is refused, and that is nothing to be upset about."""

    async def scene() -> None:
        runner = elsewhere.runner(lease=1)
        async with runner:
            heart: Any = runner._link._heart  # type: ignore[union-attr]
            stop = heart.stop

            async def stop_late() -> None:
                before = elsewhere.count(BEAT)
                await soon(lambda: elsewhere.count(BEAT) >= before + 3)
                await stop()

            heart.stop = stop_late

    play(scene)
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("has_left", [False, True])
def test_nobody_is_told_of_a_blocked_loop_that_was_abandoned(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture, has_left: bool
):
    """Its triggers go on elsewhere: a minute later there is nothing to complain about."""

    async def scene() -> None:
        async with elsewhere.runner(lease=60) as runner:
            heart: Any = runner._link._heart  # type: ignore[union-attr]
            heart._max_block = -1.0
            runner.worker.has_left = has_left
            assert heart._is_blocked()
            heart._max_block = 60.0

    play(scene)
    assert ("has been blocked" in caplog.text) is not has_left


@pytest.mark.parametrize("trouble", ["hang", "away"])
def test_a_heart_stops_though_nobody_answers(elsewhere: Elsewhere, trouble: str):
    """A beat that is under way is not waited for, and the thread ends."""

    def hearts() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "layby-heartbeat"}

    async def scene() -> None:
        before = hearts()  # of other tests: one may not have ended yet
        runner = elsewhere.runner(lease=1.2)
        await runner.__aenter__()
        assert hearts() - before
        if trouble == "hang":
            hanging: list[Trouble] = ["hang"] * 10
            elsewhere.meddler.trouble(BEAT, *hanging)
            await soon(lambda: elsewhere.count(BEAT))
        else:
            await elsewhere.ask(elsewhere.meddler.down())
            await asyncio.sleep(0.5)
            await elsewhere.ask(elsewhere.meddler.up())
        began = time.monotonic()
        await runner.close()
        assert time.monotonic() - began < 20
        assert hearts() <= before

    play(scene)


class SlowlyClosed:
    """Connections of heartbeats, of which each takes a while to close."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.closing = threading.Event()
        self.connected, self.closed = list[Any](), list[Any]()
        monkeypatch.setattr(remote.RemoteLink, "_connect", self._connect)

    def _connect(self, within: float) -> Any:
        client: Any = HttpClient(self.url, patience=0, answer_within=within)
        client.close = functools.partial(self._close, client, client.close)
        self.connected.append(client)
        return client

    async def _close(self, client: Any, close: Callable[[], Awaitable[None]]) -> None:
        self.closing.set()
        await asyncio.sleep(0.1)
        await close()
        self.closed.append(client)

    def all_are_closed(self) -> bool:
        return bool(self.connected) and set(self.connected) == set(self.closed)


def test_a_heart_that_stops_by_itself_closes_its_connection(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    """Who stops it at that very moment does not interrupt it."""
    connections = SlowlyClosed(elsewhere.url, monkeypatch)

    async def scene() -> None:
        runner = elsewhere.runner(lease=0.15)
        await runner.__aenter__()
        heart: Any = runner._link._heart  # type: ignore[union-attr]
        heart._is_stopping = True
        await soon(connections.closing.is_set)
        await runner.close()
        assert connections.all_are_closed()

    play(scene)


def test_connections_of_late_beats_are_closed_whenever_it_stops(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    """Also if their closing has begun, which must not be interrupted."""
    connections = SlowlyClosed(elsewhere.url, monkeypatch)

    async def scene() -> None:
        runner = elsewhere.runner(lease=0.15)
        await runner.__aenter__()
        await soon(connections.closing.is_set)
        await runner.close()
        assert len(connections.connected) > 1
        assert connections.all_are_closed()

    async def late(*_: Any) -> bool:
        await asyncio.sleep(0.06)
        return True

    monkeypatch.setattr(HeartbeatThread, "_beat_is_answered", late)
    play(scene)


def test_closing_does_not_wait_for_a_server_that_is_away(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    """Its tasks are taken over when the lease is up; nobody can be told sooner."""
    monkeypatch.setattr(workers, "LEAVE_S", 0.3)

    async def scene() -> None:
        runner = elsewhere.runner(lease=60)
        await runner.__aenter__()
        await elsewhere.ask(elsewhere.meddler.down())
        began = time.monotonic()
        await runner.close()
        assert time.monotonic() - began < 20
        await elsewhere.ask(elsewhere.meddler.up())

    play(scene)


def test_a_take_whose_answer_never_comes_is_asked_again(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    """Something in between may swallow it and keep the connection: nobody would notice."""
    monkeypatch.setattr(workers, "WAIT_MS", 300)
    monkeypatch.setattr(remote, "HttpClient", functools.partial(HttpClient, answer_within=0.5))

    @task
    async def works(context): ...

    async def scene() -> None:
        elsewhere.meddler.trouble(
            "layby.worker.take", "hang", when=lambda data: data.get("waitMs") and data["free"]
        )
        async with elsewhere.runner() as runner, elsewhere.runner(group="other") as other:
            runner.register(flow_of(works))
            await soon(lambda: elsewhere.count("layby.worker.take") >= 3)
            plan_ = plan(flow_of(works), "a", {}, "default", NEVER)
            assert (await other.client.send(plan_)).is_ok
            assert (await (await other.get("a")).result(timeout=20)).to_dict() == {}

    play(scene)


def test_a_worker_that_begins_anew_is_registered_before_its_heart_beats(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
):
    """A heartbeat that comes first is refused, and would make it begin anew once more."""
    take, shut = "layby.worker.take", [True]

    async def scene() -> None:
        async with elsewhere.runner(lease=1.2) as runner:
            runner.register(Bodies().flow())
            worker, before = runner.worker, runner.worker.incarnation
            refuses: list[Trouble] = ["refuse"] * 1000
            elsewhere.meddler.trouble(
                take, *refuses, when=lambda data: shut[0] and data["incarnation"] != before
            )
            await elsewhere.ok(c.LeaveWorker(pid=worker.config.pid, incarnation=before))
            await soon(lambda: worker.incarnation != before)
            takes = elsewhere.count(take)
            await soon(lambda: elsewhere.count(take) >= takes + 12)
            shut.clear()
            shut.append(False)
            beats = elsewhere.count(BEAT)
            await soon(lambda: elsewhere.count(BEAT) >= beats + 3)

    with caplog.at_level(logging.ERROR):
        play(scene)
    assert caplog.text.count("starts over") == 1
