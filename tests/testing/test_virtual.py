"""Virtual time: what jumps, what holds it, what is put back."""

import asyncio
import logging
import random
import socket
import threading
import time
from typing import Any

import pytest

from layby.clock import virtual_clock
from layby.errors import UsageError
from layby.testing import (
    VirtualDeadlock,
    current_clock,
    idle,
    real_work,
    run_virtual,
    virtual_test,
    virtual_time,
)
from layby.testing import virtual as virtual_module

PATIENCE = 90.0


def selector_run(main):
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)


# --- jumping ---------------------------------------------------------------------------------


@virtual_test
async def test_an_hour_of_sleeps_takes_no_time():
    """3,600 sleeps of a second pass exactly an hour, and the wall clock hardly moves."""
    begin = time.perf_counter()
    clock = current_clock()
    since = clock.now()
    for _ in range(3_600):
        await asyncio.sleep(1)
    assert clock.now() - since == 3_600_000
    assert clock.elapsed == 3_600
    assert time.perf_counter() - begin < 60


@virtual_test
async def test_ten_thousand_sleepers_wake_in_order_of_their_time():
    """Sleeps of random length, gathered, end sorted by length; equal ones first come first."""
    order = []

    async def sleeper(number, seconds):
        await asyncio.sleep(seconds)
        order.append((seconds, number))

    chance = random.Random(7)
    await asyncio.gather(*(sleeper(n, chance.randrange(1_000)) for n in range(10_000)))
    assert [seconds for seconds, _ in order] == sorted(seconds for seconds, _ in order)


async def order_of_timers():
    """The order in which 300 timers at 20 instants are called, some cancelled before."""
    loop, seen, chance = asyncio.get_running_loop(), [], random.Random(3)
    base, done = loop.time(), loop.create_future()
    timers = [
        loop.call_at(base + chance.randrange(20) * 0.01, seen.append, number)
        for number in range(300)
    ]
    for timer in chance.sample(timers, 45):  # of more, a late loop builds its heap anew
        timer.cancel()
    loop.call_at(base + 0.21, done.set_result, None)
    await done
    return seen


def test_timers_run_in_the_order_of_a_real_loop():
    """Timers, many of them at the same instant, are called in the order of a real loop."""
    assert run_virtual(order_of_timers()) == selector_run(order_of_timers())


@pytest.mark.parametrize("start", [0, 1_700_000_000_123])
@pytest.mark.parametrize("seed", range(5))
def test_a_timer_never_finds_the_clock_one_millisecond_early(start, seed):
    """However odd the instants are, a wait for T milliseconds ends at T or later, without spin."""
    chance = random.Random(seed)

    async def main():
        clock, loop = current_clock(), asyncio.get_running_loop()
        for _ in range(3_000):
            await asyncio.sleep(chance.choice([0.0000003, 0.0004999, 0.1, 1 / 3, 7.77, 86_400.5]))
            due = clock.now() + chance.randrange(1, 100_000)
            rung = loop.create_future()
            loop.call_later((due - clock.now()) / 1000, rung.set_result, None)
            await rung
            assert due <= clock.now() <= due + 1

    run_virtual(main(), start=start, limit=float("inf"))


@virtual_test
async def test_timeouts_and_wait_for_end_at_their_virtual_time():
    """`asyncio.timeout` and `wait_for` end when they should, and leave nothing behind."""
    clock = current_clock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1_800):
            await asyncio.sleep(3_600)
    assert clock.elapsed == 1_800
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 200)
    assert clock.elapsed == 2_000
    assert await asyncio.wait_for(asyncio.sleep(5, "x"), 60) == "x"
    assert clock.elapsed == 2_005


@virtual_test
async def test_advance_lets_everything_due_happen():
    """After `advance(10)` all that was due by then has happened, long chains too, and no more."""
    clock = current_clock()
    ticks = []

    async def chain():
        for _ in range(50):
            await asyncio.sleep(0)
        ticks.append("chain")

    async def ticker():
        while True:
            await asyncio.sleep(1)
            ticks.append(clock.elapsed)

    task = asyncio.create_task(ticker())
    tasks: list[asyncio.Task[None]] = []
    asyncio.get_running_loop().call_later(10, lambda: tasks.append(asyncio.create_task(chain())))
    await clock.advance(10)
    assert clock.elapsed == 10
    assert sorted(t for t in ticks if t != "chain") == list(range(1, 11))
    assert "chain" in ticks
    task.cancel()


@virtual_test
async def test_time_does_not_go_back():
    """A negative or senseless advance is refused."""
    for seconds in (-1, float("nan")):
        with pytest.raises(UsageError, match="cannot go back"):
            await current_clock().advance(seconds)


# --- what holds it ---------------------------------------------------------------------------


@virtual_test
async def test_threads_in_flight_hold_time_still():
    """A thread's answer comes before a timer that was set earlier for a shorter time."""
    gate, order = threading.Event(), []
    loop = asyncio.get_running_loop()
    loop.call_later(0.001, order.append, "timer")

    def body():
        assert gate.wait(PATIENCE)
        order.append("thread")

    work = asyncio.create_task(asyncio.to_thread(body))
    threading.Timer(0.05, gate.set).start()
    await work
    assert order == ["thread"]
    assert current_clock().elapsed == 0
    await asyncio.sleep(1)
    assert order == ["thread", "timer"]


@virtual_test
async def test_counted_work_holds_time_until_it_ends():
    """A thread of one's own holds time when `real_work()` counts it, and its end lets go."""
    clock, work = current_clock(), real_work()
    answered, gate = [], threading.Event()

    def body():
        assert gate.wait(PATIENCE)
        answered.append(clock.now())
        work.end()

    work.begin()
    thread = threading.Thread(target=body)
    thread.start()
    since = clock.now()
    threading.Timer(0.03, gate.set).start()
    await asyncio.sleep(3_600)
    assert answered == [since]
    assert clock.elapsed == 3_600
    thread.join()


def test_a_thread_that_never_answers_does_not_hold_time_for_ever(caplog):
    """After `patience` real seconds of silence time goes on, and a warning says so once."""
    gate = threading.Event()

    async def main():
        async with virtual_time(patience=0.02) as clock:
            stuck = asyncio.create_task(asyncio.to_thread(gate.wait, PATIENCE))
            for _ in range(50):
                await asyncio.sleep(60)
            assert clock.elapsed == 3_000
            gate.set()
            await stuck

    with caplog.at_level(logging.WARNING):
        selector_run(main())
    assert len([r for r in caplog.records if "held virtual time" in r.message]) == 1


@virtual_test
async def test_a_thread_nobody_counts_may_still_wake_an_idle_loop():
    """`call_soon_threadsafe` from any thread wakes a loop that has nothing else to wait for."""
    loop = asyncio.get_running_loop()
    rung = loop.create_future()
    timer = threading.Timer(0.05, loop.call_soon_threadsafe, [rung.set_result, "rung"])
    timer.start()
    assert await rung == "rung"
    timer.join()


@virtual_test
async def test_a_conversation_over_sockets_is_not_overtaken():
    """An echo server and its client talk while a long timeout runs, and the timeout stays."""

    async def echo(reader, writer):
        while line := await reader.readline():
            writer.write(line)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for number in range(20):
            writer.write(b"%d\n" % number)
            assert await reader.readline() == b"%d\n" % number
        writer.close()
        await writer.wait_closed()
    assert current_clock().elapsed < 30


@virtual_test
async def test_a_slow_peer_gets_its_grace():
    """A peer outside the loop that answers after some real milliseconds beats a timer of hours."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    timer = threading.Timer(0.002, theirs.send, [b"x"])
    timer.start()
    async with asyncio.timeout(7_200):
        assert await asyncio.get_running_loop().sock_recv(ours, 1) == b"x"
    assert current_clock().elapsed == 0
    timer.join()
    ours.close()
    theirs.close()


@virtual_test
async def test_a_listening_socket_costs_no_grace():
    """An idle server does not make each jump wait: a thousand jumps stay quick."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    begin = time.perf_counter()
    async with server:
        for _ in range(1_000):
            await asyncio.sleep(60)
    assert time.perf_counter() - begin < 60


@virtual_test
async def test_subprocesses_are_waited_for():
    """A child's output arrives before hours have passed, since its pipe is open."""
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo hello", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert out == b"hello\n"


# --- nothing can happen any more -------------------------------------------------------------


def test_a_deadlock_is_an_error_that_names_the_waiting():
    """A test that waits for what nobody will do fails at once, and says who waits where."""

    async def waits_for_ever():
        await asyncio.Event().wait()

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_ever(), name="the-other")

    with pytest.raises(VirtualDeadlock, match="nothing can happen") as caught:
        run_virtual(main())
    assert "2 tasks are waiting" in str(caught.value)
    assert "the-other at test_virtual.py" in str(caught.value)
    assert "waits_for_ever" in str(caught.value)


def test_cleanup_runs_after_a_deadlock():
    """`finally` blocks of a deadlocked test run, even when they wait themselves."""
    seen = []

    async def main():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(10)
            seen.append(current_clock().elapsed)

    with pytest.raises(VirtualDeadlock):
        run_virtual(main())
    assert seen == [10]


def test_a_deadlock_that_is_swallowed_for_ever_still_ends(monkeypatch: pytest.MonkeyPatch):
    """A test that catches every cancellation and waits again is ended through the loop."""
    # A hundred times: a thread of another test that still ends must not cost a second each time.
    monkeypatch.setattr(idle, "_UNCOUNTED_THREADS_S", 0.001)

    async def main():
        this = asyncio.current_task()
        assert this is not None
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if this.cancelling() > 150:
                    raise

    async def outer():
        async with virtual_time():
            await main()

    loop = asyncio.SelectorEventLoop()
    task = loop.create_task(outer())
    with pytest.raises(VirtualDeadlock):
        loop.run_until_complete(task)
    for _ in range(100):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_deadlock_after_the_entering_task_ended_comes_out_of_the_loop():
    """Entered by a fixture's task that is gone, the error still reaches whoever runs the loop."""
    loop = asyncio.SelectorEventLoop()
    virtual = virtual_time()
    loop.run_until_complete(virtual.__aenter__())
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(VirtualDeadlock, match="nothing can happen"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.run_until_complete(virtual.__aexit__(None, None, None))
    assert "time" not in vars(loop)
    loop.close()


def test_time_that_runs_away_meets_its_limit():
    """An endless poll in virtual time is an error at the limit, not a hot loop for ever."""

    async def main():
        polls = 0
        while True:
            await asyncio.sleep(30)
            polls += 1

    with pytest.raises(VirtualDeadlock, match="past its limit of 86400 s"):
        run_virtual(main(), limit=86_400)


def test_a_cancel_by_somebody_else_stays_a_cancel():
    """A test cancelled from outside ends cancelled; virtual time does not rename it."""

    async def main():
        async with virtual_time():
            this = asyncio.current_task()
            assert this is not None
            this.cancel()
            await asyncio.sleep(1)

    with pytest.raises(asyncio.CancelledError):
        selector_run(main())


# --- on and off ------------------------------------------------------------------------------


class Boom(Exception):
    pass


def insides(loop):
    names = sorted(name for name in vars(loop) if not name.startswith("_"))
    return names, sorted(vars(loop._selector)), loop._clock_resolution


@pytest.mark.parametrize("error", [None, Boom])
def test_everything_is_put_back(error):
    """After the block, failed or not, the loop has its own time, selector and resolution."""

    async def main():
        loop: Any = asyncio.get_running_loop()
        before = insides(loop)
        try:
            async with virtual_time() as clock:
                assert current_clock() is clock
                assert real_work() is clock.work
                await asyncio.sleep(3_600)
                if error:
                    raise error
        except Boom:
            pass
        assert virtual_clock.get() is None
        assert insides(loop) == before
        assert abs(loop.time() - time.monotonic()) < 1
        begin = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - begin >= 0.049

    selector_run(main())


def test_a_timer_left_over_keeps_the_time_it_had_to_go():
    """What was to ring in 50 ms when the block ended rings 50 real milliseconds later."""

    async def main():
        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        async with virtual_time():
            loop.call_later(3_600.05, rung.set_result, None)
            await asyncio.sleep(3_600)
        begin = time.monotonic()
        async with asyncio.timeout(30):
            await rung
        assert time.monotonic() - begin >= 0.049

    selector_run(main())


def test_nested_use_is_refused():
    """Turning it on twice in one loop is an error that names the outer clock; the outer stays."""

    async def main():
        async with virtual_time() as clock:
            with pytest.raises(UsageError, match="already on"):
                async with virtual_time():
                    pass
            await asyncio.sleep(60)
            assert clock.elapsed == 60

    selector_run(main())


def test_a_loop_of_another_kind_is_refused_with_the_remedy():
    """On uvloop or a proactor the error names the loop and what to use instead."""

    class Loop(asyncio.AbstractEventLoop):
        pass

    with pytest.raises(UsageError, match=r"Loop.*run_virtual"):
        virtual_module._checked_loop(Loop())


def test_no_clock_outside():
    """`current_clock()` outside says what to do."""
    with pytest.raises(UsageError, match="virtual_time"):
        current_clock()


def test_loops_in_threads_have_their_own_time():
    """Two loops in two threads jump independently of each other."""
    elapsed = {}

    def run(seconds):
        async def main():
            for _ in range(200):
                await asyncio.sleep(seconds)
            elapsed[seconds] = current_clock().elapsed

        run_virtual(main())

    threads = [threading.Thread(target=run, args=(seconds,)) for seconds in (1, 10, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert elapsed == {1: 200, 10: 2_000, 100: 20_000}


def test_as_a_decorator_each_call_has_its_own_time():
    """`@virtual_time()` on a coroutine function starts afresh with each call."""
    seen = []

    @virtual_time(start=1_000)
    async def job(seconds):
        await asyncio.sleep(seconds)
        seen.append(current_clock().now())

    async def main():
        await job(60)
        await job(60)

    selector_run(main())
    assert seen == [61_000, 61_000]


@pytest.mark.parametrize(("a", "b"), [(1, "x"), (2, "x")])
@virtual_test
async def test_virtual_tests_take_parameters_and_fixtures(a, b, tmp_path):
    """A decorated test keeps its signature, so that pytest gives it what it asks for."""
    await asyncio.sleep(a * 1_000)
    assert current_clock().elapsed == a * 1_000
    assert b == "x"
    assert tmp_path.exists()
