"""What a worker knows of its leases, and what it does outside them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from layby import Runner, task
from layby.clock import SystemClock
from layby.core.commands import HeartbeatTasks, HeartbeatWorker, ReleaseTask
from layby.core.model import Message
from layby.core.replies import HeartbeatData, Reply, ok, refuse
from layby.errors import StoreUnavailable
from layby.testing import virtual_test
from layby.worker.lease import LeaseTime
from layby.worker.renewal import Renewal
from tests.helpers.callers import answer_to, call
from tests.helpers.server_thread import Elsewhere, play, server_elsewhere
from tests.helpers.workers import flow_of

BEAT = "layby.worker.heartbeat"

elapsed_ms = SystemClock().elapsed


class Watch:
    """A clock that somebody turns."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


# --- counting --------------------------------------------------------------------------------


def test_a_lease_counts_from_the_sending():
    """Not from the answer, which may have taken long."""
    watch = Watch()
    lease = LeaseTime(3_000, watch)
    assert not lease.is_held()
    sent_at = lease.elapsed()
    watch.ms += 2_000
    lease.renewed(sent_at)
    assert lease.is_held()
    watch.ms += 999
    assert lease.is_held()
    watch.ms += 1
    assert not lease.is_held()


def test_an_answer_that_comes_late_shortens_nothing():
    lease = LeaseTime(3_000, Watch())
    lease.renewed(1_000)
    lease.renewed(0)
    assert lease._ends_at == 4_000


def test_what_an_earlier_life_hears_renews_nothing():
    watch = Watch()
    lease = LeaseTime(3_000, watch, "first")
    lease.renewed(1_000, "first")
    lease.begin_anew("second")
    assert not lease.is_held()
    lease.renewed(1_000, "first")
    assert not lease.is_held()
    lease.renewed(1_000, "second")
    assert lease.is_held()


def test_who_lives_and_dies_with_the_store_always_holds():
    watch = Watch()
    lease = LeaseTime(None, watch)
    watch.ms += 10**12
    assert lease.is_held()


def test_the_clock_goes_forward():
    first = elapsed_ms()
    assert 0 <= elapsed_ms() - first < 60_000


# --- renewing --------------------------------------------------------------------------------


class Host:
    """A worker and its store, as far as a renewal sees them."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.lease = LeaseTime(3_000, Watch(), "a")
        self.client: Any = self
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.told: list[Any] = []

    async def send(self, request: Any) -> Reply:
        self.sent.append(request)
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def heartbeat(self) -> HeartbeatWorker:
        return HeartbeatWorker(pid="p", incarnation="a")

    def start_over(self, incarnation: str, reply: Reply) -> None:
        self.told.append(("start_over", incarnation))

    def lost(self, task_id: str, version: int) -> None:
        self.told.append((task_id, version))

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(coroutine)


@virtual_test
async def test_all_who_ask_share_one_heartbeat():
    host = Host(ok(HeartbeatData([Message("t", "lost", "a", 2)], True, 0)))
    renewal = Renewal(host)
    await asyncio.gather(*(renewal.renew() for _ in range(5)))
    assert len(host.sent) == 1
    assert host.told == [("t", 2)]
    assert host.lease.is_held()


@virtual_test
async def test_one_who_is_ended_meanwhile_ends_it_for_nobody_else():
    host = Host(ok(HeartbeatData([], True, 0)))
    renewal = Renewal(host)
    first, second = (asyncio.ensure_future(renewal.renew()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert host.lease.is_held()


@virtual_test
async def test_a_store_that_does_not_answer_is_asked_again():
    """Who wants to begin waits for as long as that takes."""
    host = Host(StoreUnavailable("away"), StoreUnavailable("away"), ok(HeartbeatData([], True, 0)))
    await Renewal(host).renew()
    assert len(host.sent) == 3
    assert host.lease.is_held()


@virtual_test
async def test_a_refusal_ends_what_was_held():
    host = Host(refuse(409, "gone"))
    await Renewal(host).renew()
    assert host.told == [("start_over", "a")]
    assert not host.lease.is_held()


# --- before a body and before a checkpoint ---------------------------------------------------


@pytest.fixture
def elsewhere():
    with server_elsewhere() as found:
        yield found


@pytest.mark.parametrize("plain", [False, True])
def test_outside_the_lease_a_body_and_a_checkpoint_ask_first(plain: bool, elsewhere: Elsewhere):
    """The heart beats every 20 s here: what is heard in between was asked by them."""
    heard: list[tuple[str, int]] = []
    watch = Watch()

    def note(what: str) -> None:
        heard.append((what, elsewhere.count(BEAT)))

    @task(id="works")
    async def coroutine(context, handle):
        note("begun")
        await handle.checkpoint("inside", note, "inside")
        watch.ms += 100_000
        await handle.checkpoint("outside", note, "outside")

    @task(id="works")
    def thread(context, handle):
        note("begun")
        handle.checkpoint("inside", note, "inside")
        watch.ms += 100_000
        handle.checkpoint("outside", note, "outside")

    async def scene() -> None:
        async with elsewhere.runner(lease=60) as runner:
            runner.worker.lease.elapsed = watch
            watch.ms = elapsed_ms() + 100_000
            before = elsewhere.count(BEAT)
            await runner.execute(flow_of(thread if plain else coroutine), run_id="a")
            assert [(what, count - before) for what, count in heard] == [
                ("begun", 1),
                ("inside", 1),
                ("outside", 2),
            ]

    play(scene)


def test_inside_the_lease_nobody_asks(elsewhere: Elsewhere):
    @task
    async def works(context, handle):
        await handle.checkpoint("k", lambda: 1)

    async def scene() -> None:
        async with elsewhere.runner(lease=60) as runner:
            before = elsewhere.count(BEAT)
            await runner.execute(flow_of(works), run_id="a")
            assert elsewhere.count(BEAT) == before

    play(scene)


def test_a_body_waits_for_as_long_as_the_store_is_away(elsewhere: Elsewhere):
    """It has been given the task, and cannot know whether it still has it: nothing is dropped."""
    begun: list[int] = []

    @task
    async def works(context, handle):
        begun.append(elsewhere.count(BEAT))

    async def scene() -> None:
        async with elsewhere.runner(lease=60) as runner:
            runner.worker.lease.elapsed = lambda: elapsed_ms() + 100_000
            elsewhere.meddler.trouble(BEAT, "refuse", "refuse", "refuse")
            before = elsewhere.count(BEAT)
            await runner.execute(flow_of(works), run_id="a")
            assert [count - before for count in begun] == [4]

    play(scene)


# --- calls, whose leases are their own -------------------------------------------------------


class Stopped:
    """A function that finds, in its first try, that an hour has passed since it began."""

    def __init__(self, runner: Runner, *, is_taken: bool) -> None:
        self.runner = runner
        self.is_taken = is_taken
        self.beats: list[HeartbeatTasks] = []
        self.charged: list[int] = []
        self.ahead = 0
        runner.worker.lease.elapsed = lambda: elapsed_ms() + self.ahead
        self._send = runner.client.send
        runner.client.send = self.send  # pyright: ignore[reportAttributeAccessIssue]

    async def send(self, request: Any) -> Reply:
        if isinstance(request, HeartbeatTasks):
            self.beats.append(request)
        return await self._send(request)

    def code(self):
        @task(rpc="charge")
        async def charge(context, handle):
            if not self.ahead:
                self.ahead = 3_600_000
                if self.is_taken:
                    await self._send(ReleaseTask(id="c", version=1))
            return await handle.checkpoint("charge", self.charged.append, handle.try_number)

        return charge


@virtual_test
async def test_a_call_outside_its_lease_is_renewed_by_its_name():
    async with Runner("memory:") as runner:
        stopped = Stopped(runner, is_taken=False)
        runner.register(stopped.code())
        await call(runner, "c", "charge")
        await answer_to(runner, "c")
        assert [[each.id for each in beat.tasks] for beat in stopped.beats] == [["c"]]
        assert stopped.charged == [1]


@virtual_test
async def test_a_call_that_somebody_else_has_meanwhile_does_nothing_more():
    """No answer to a heartbeat says so: it looks."""
    async with Runner("memory:") as runner:
        stopped = Stopped(runner, is_taken=True)
        runner.register(stopped.code())
        await call(runner, "c", "charge")
        await answer_to(runner, "c")
        assert stopped.charged == [2]
